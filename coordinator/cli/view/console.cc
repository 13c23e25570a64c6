#include "coordinator/cli/view/console.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/cli/exit_code.h"
#include "coordinator/cli/view/render.h"

namespace isthmus::cli {

void Console::Out(const std::string& text) {
  const bool whole = std::fwrite(text.data(), 1, text.size(), out_) == text.size();
  if ((std::fflush(out_) != 0 || !whole) && out_error_ == 0) out_error_ = errno;
}

void Console::Err(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), err_);
  std::fflush(err_);
}

int Console::Finish(int code) {
  if (code != kExitOk || out_error_ == 0 || out_error_ == EPIPE) return code;  // EPIPE: `| head`
  return Fail(absl::InternalError(
      absl::StrCat("the output could not be written: ", std::strerror(out_error_))));
}

int Console::Fail(const absl::Status& status) {
  Err(absl::StrCat("isthmus: ", Printable(status.message()), "\n"));
  return ExitCodeFor(status);
}

Terminal TerminalOf(FILE* file) {
  Terminal terminal;
  const char* term = std::getenv("TERM");
  const bool dumb = term == nullptr || std::strcmp(term, "dumb") == 0;
  const int fd = fileno(file);
  terminal.interactive = fd >= 0 && isatty(fd) == 1 && !dumb;
  winsize size{};
  if (terminal.interactive && ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    terminal.width = std::clamp<size_t>(size.ws_col, 20, 500);
  }
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    const std::string locale = absl::AsciiStrToLower(value);
    terminal.unicode = absl::StrContains(locale, "utf-8") || absl::StrContains(locale, "utf8");
    break;
  }
  return terminal;
}

}  // namespace isthmus::cli
