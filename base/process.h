// Child processes: start with output to a file, wait with a deadline, stop. A child dies with the
// thread that started it (PR_SET_PDEATHSIG), so start it on one that outlives its use. Thread: one
// owner.
#ifndef ISTHMUS_BASE_PROCESS_H_
#define ISTHMUS_BASE_PROCESS_H_

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace isthmus {

struct ProcessOptions {
  std::vector<std::string> argv;  // argv[0] is a path, or a name on PATH
  std::string output_file;        // stdout and stderr, appended; empty: ours
  std::string stdout_file;        // stdout alone; wins over output_file
  bool own_group = true;          // Ctrl-C on the terminal does not reach it
};

class Process {
 public:
  // NotFound or PermissionDenied where it can't be run.
  static absl::StatusOr<Process> Start(const ProcessOptions& options);
  Process(Process&& other) noexcept;
  Process& operator=(Process&& other) noexcept;
  ~Process();  // kills (SIGKILL) and reaps what still runs

  pid_t pid() const { return pid_; }
  // The exit code once it ended (128 + signal); does not wait.
  std::optional<int> Poll();
  // The same, waiting until the deadline.
  std::optional<int> Wait(absl::Duration timeout);
  void Signal(int signal);
  // SIGTERM, and SIGKILL after `grace`. The exit code.
  int Stop(absl::Duration grace);

 private:
  explicit Process(pid_t pid) : pid_(pid) {}
  pid_t pid_ = -1;  // -1: moved from
  std::optional<int> code_;
};

// stdout of a command that ends within `timeout` with code 0; else an error with the last words of
// its output.
absl::StatusOr<std::string> RunAndCapture(const std::vector<std::string>& argv,
                                          absl::Duration timeout);

// Beside the running program, else on PATH. NotFound says where it was looked for.
absl::StatusOr<std::string> FindProgram(const std::string& name);

}  // namespace isthmus

#endif  // ISTHMUS_BASE_PROCESS_H_
