// Where a command prints, and what the terminal can show.
// Thread: one owner.
#ifndef ISTHMUS_COORDINATOR_CLI_VIEW_CONSOLE_H_
#define ISTHMUS_COORDINATOR_CLI_VIEW_CONSOLE_H_

#include <cstddef>
#include <cstdio>
#include <string>

#include "absl/status/status.h"

namespace isthmus::cli {

class Console {
 public:
  // Not owned.
  Console(FILE* out, FILE* err) : out_(out), err_(err) {}

  void Out(const std::string& text);
  void Err(const std::string& text);
  // "isthmus: <message>" on err; the exit code of `status`.
  int Fail(const absl::Status& status);
  // `code`, unless it says that all went well and some output was lost, as on a full disk.
  int Finish(int code);

  FILE* out() const { return out_; }
  FILE* err() const { return err_; }

 private:
  FILE* const out_;
  FILE* const err_;
  int out_error_ = 0;  // errno of the first write that failed
};

struct Terminal {
  bool interactive = false;  // cursor movements work
  size_t width = 80;
  bool unicode = true;
};

// Asks the file's terminal, $TERM and the locale's variables.
Terminal TerminalOf(FILE* file);

}  // namespace isthmus::cli

#endif  // ISTHMUS_COORDINATOR_CLI_VIEW_CONSOLE_H_
