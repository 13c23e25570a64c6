#include "base/process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/status.h"

namespace isthmus {
namespace {

constexpr long kPollNanoseconds = 20'000'000;
constexpr size_t kMaxCaptured = 16 << 20;

// Between fork and exec: only async-signal-safe calls. Reports errno through `report` and never
// returns.
[[noreturn]] void Exec(char* const* argv, int output, int standard_output, bool own_group,
                       pid_t parent, int report) {
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  for (int number : {SIGINT, SIGTERM, SIGPIPE}) signal(number, SIG_DFL);
  if (own_group) setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);  // it died before prctl
  if (output >= 0) {
    const int null = open("/dev/null", O_RDONLY);
    if (null >= 0) dup2(null, STDIN_FILENO);
    dup2(output, STDOUT_FILENO);
    dup2(output, STDERR_FILENO);
  }
  if (standard_output >= 0) dup2(standard_output, STDOUT_FILENO);
  execvp(argv[0], argv);
  const int error = errno;
  const ssize_t ignored = write(report, &error, sizeof(error));
  static_cast<void>(ignored);
  _exit(127);
}

class Fd {
 public:
  explicit Fd(int fd) : fd_(fd) {}
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  ~Fd() { Close(); }
  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

int OpenLog(const std::string& path) {
  return path.empty() ? -1 : open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
}

absl::Status StartError(int error, const std::string& program) {
  const std::string what = absl::StrCat("can't run ", program, ": ", std::strerror(error));
  return error == EACCES ? absl::PermissionDeniedError(what) : absl::NotFoundError(what);
}

}  // namespace

absl::StatusOr<Process> Process::Start(const ProcessOptions& options) {
  if (options.argv.empty()) return absl::InvalidArgumentError("no program to run");
  std::vector<char*> argv;
  for (const std::string& argument : options.argv)
    argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  Fd output(OpenLog(options.output_file));
  Fd standard_output(OpenLog(options.stdout_file));
  if ((!options.output_file.empty() && output.get() < 0) ||
      (!options.stdout_file.empty() && standard_output.get() < 0)) {
    return absl::InternalError(
        absl::StrCat("can't write the log of ", options.argv[0], ": ", std::strerror(errno)));
  }
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0)
    return absl::InternalError(absl::StrCat("pipe: ", std::strerror(errno)));
  Fd read_end(ends[0]);
  Fd write_end(ends[1]);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return absl::InternalError(absl::StrCat("fork: ", std::strerror(errno)));
  if (pid == 0)
    Exec(argv.data(), output.get(), standard_output.get(), options.own_group, parent,
         write_end.get());
  write_end.Close();
  Process process(pid);
  int error = 0;
  ssize_t got = 0;
  do {
    got = read(read_end.get(), &error, sizeof(error));
  } while (got < 0 && errno == EINTR);
  if (got == sizeof(error)) {
    process.Wait(absl::Seconds(5));
    return StartError(error, options.argv[0]);
  }
  return process;
}

Process::Process(Process&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), code_(other.code_) {}

Process& Process::operator=(Process&& other) noexcept {
  std::swap(pid_, other.pid_);
  std::swap(code_, other.code_);
  return *this;
}

Process::~Process() {
  if (pid_ < 0 || code_.has_value()) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

std::optional<int> Process::Poll() {
  if (code_.has_value() || pid_ < 0) return code_;
  int status = 0;
  const pid_t got = waitpid(pid_, &status, WNOHANG);
  if (got == pid_) code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  if (got < 0 && errno == ECHILD) code_ = 127;
  return code_;
}

std::optional<int> Process::Wait(absl::Duration timeout) {
  const absl::Time deadline = SteadyNow() + timeout;
  while (!Poll().has_value() && SteadyNow() < deadline) {
    const timespec pause{0, kPollNanoseconds};
    nanosleep(&pause, nullptr);
  }
  return code_;
}

void Process::Signal(int signal) {
  if (pid_ > 0 && !Poll().has_value()) kill(pid_, signal);
}

int Process::Stop(absl::Duration grace) {
  Signal(SIGTERM);
  if (!Wait(grace).has_value()) {
    Signal(SIGKILL);
    Wait(absl::Seconds(5));
  }
  return code_.value_or(128 + SIGKILL);
}

absl::StatusOr<std::string> RunAndCapture(const std::vector<std::string>& argv,
                                          absl::Duration timeout) {
  char name[] = "/tmp/isthmus-output.XXXXXX";
  const int fd = mkstemp(name);
  if (fd < 0)
    return absl::InternalError(absl::StrCat("can't make a temporary file: ", std::strerror(errno)));
  Fd file(fd);
  ProcessOptions options;
  options.argv = argv;
  options.output_file = name;
  absl::StatusOr<Process> process = Process::Start(options);
  std::optional<int> code;
  if (process.ok()) code = process->Wait(timeout);
  std::string text(kMaxCaptured, '\0');
  const ssize_t got = pread(file.get(), text.data(), text.size(), 0);
  unlink(name);
  text.resize(got > 0 ? static_cast<size_t>(got) : 0);
  if (!process.ok()) return process.status();
  if (!code.has_value()) {
    return absl::DeadlineExceededError(absl::StrCat(
        absl::StrJoin(argv, " "), " did not end within ", absl::FormatDuration(timeout)));
  }
  if (*code == 2) return absl::InvalidArgumentError(text);
  if (*code != 0)
    return absl::InternalError(
        absl::StrCat(absl::StrJoin(argv, " "), " ended with code ", *code, ": ", text));
  return text;
}

absl::StatusOr<std::string> FindProgram(const std::string& name) {
  std::vector<std::string> places;
  char self[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);
  if (length > 0) {
    const std::string path(self, static_cast<size_t>(length));
    places.push_back(path.substr(0, path.rfind('/')));
  }
  const char* path = std::getenv("PATH");
  for (const auto part : absl::StrSplit(path == nullptr ? "" : path, ':', absl::SkipEmpty()))
    places.emplace_back(part);
  for (const std::string& place : places) {
    const std::string candidate = absl::StrCat(place, "/", name);
    if (access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  return absl::NotFoundError(absl::StrCat("the program ", name, " is neither beside this one (",
                                          places.empty() ? "?" : places[0], ") nor on PATH"));
}

}  // namespace isthmus
