// Who this daemon is, and that it is alone in its state directory.
// Thread: one owner.
#ifndef ISTHMUS_DAEMON_STATE_IDENTITY_H_
#define ISTHMUS_DAEMON_STATE_IDENTITY_H_

#include <string>

#include "absl/status/statusor.h"

namespace isthmus::daemon {

// Holds the lock of a state directory while it lives; the kernel drops the lock with the process.
class StateDir {
 public:
  StateDir(StateDir&& other) noexcept;
  StateDir& operator=(StateDir&&) = delete;
  ~StateDir();

  // Makes the directory if need be. FailedPrecondition: another daemon has it (its process id is
  // named); PermissionDenied or Unavailable: it can't be made or written.
  static absl::StatusOr<StateDir> Open(const std::string& path);

  // The identity kept in `node-id`, made at the first call. DataLoss: the file is there but holds
  // none.
  absl::StatusOr<std::string> NodeId() const;

  const std::string& path() const { return path_; }

 private:
  StateDir(std::string path, int lock_fd) : path_(std::move(path)), lock_fd_(lock_fd) {}

  std::string path_;
  int lock_fd_ = -1;
};

// 32 hexadecimal digits from the system's random source.
std::string RandomId();

}  // namespace isthmus::daemon

#endif  // ISTHMUS_DAEMON_STATE_IDENTITY_H_
