// One process a state directory: an advisory lock that ends with the process, however it ends.
// Thread: create and destroy on any.
#ifndef ISTHMUS_COORDINATOR_STORE_STATE_LOCK_H_
#define ISTHMUS_COORDINATOR_STORE_STATE_LOCK_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace isthmus::coordinator {

class StateLock {
 public:
  ~StateLock();
  // Makes the directory if it is not there. AlreadyExists names the process that holds it.
  static absl::StatusOr<std::unique_ptr<StateLock>> Take(const std::string& state_dir);

 private:
  explicit StateLock(int fd) : fd_(fd) {}
  const int fd_;
};

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_STORE_STATE_LOCK_H_
