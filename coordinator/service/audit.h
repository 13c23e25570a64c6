// Who changed what, when and from where, and whom a role did not allow it: lines of JSON in
// audit.jsonl of the state directory, which becomes audit.jsonl.1 when it is full, so that the last
// kAuditBytes at least are kept. An entry that can't be written is told in the log, and the call
// goes on: jobs do not stop for a full disk. Thread: any.
#ifndef ISTHMUS_COORDINATOR_SERVICE_AUDIT_H_
#define ISTHMUS_COORDINATOR_SERVICE_AUDIT_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "proto/security.pb.h"

namespace isthmus::coordinator {

constexpr int64_t kAuditBytes = 4 << 20;  // of a file
constexpr int kMaxAuditEntries = 1000;    // of an answer

class Audit {
 public:
  explicit Audit(std::string state_dir) : file_(state_dir + "/audit.jsonl") {}

  // unix_ms is filled in where it is 0.
  void Add(AuditEntry entry);
  // The last ones, at most kMaxAuditEntries; the oldest of them first.
  absl::StatusOr<AuditReply> Last(int count) const;

 private:
  const std::string file_;
  mutable Mutex mutex_;
};

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_SERVICE_AUDIT_H_
