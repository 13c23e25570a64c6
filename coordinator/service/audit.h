// Who changed what, when and from where, and whom a role did not allow it: lines of JSON in
// audit.jsonl of the state directory, which becomes audit.jsonl.1 when it is full, so that the last
// kAuditBytes at least are kept. An entry that can't be written is told in the log, and the call
// goes on: jobs do not stop for a full disk. Thread: any.
#ifndef ISTHMUS_COORDINATOR_SERVICE_AUDIT_H_
#define ISTHMUS_COORDINATOR_SERVICE_AUDIT_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "proto/security.pb.h"

namespace isthmus::coordinator {

constexpr int64_t kAuditBytes = 4 << 20;  // of a file
constexpr int kMaxAuditEntries = 1000;    // of an answer
constexpr size_t kMaxRefused = 1000;      // callers and calls that are remembered

class Audit {
 public:
  explicit Audit(const std::string& state_dir) : file_(state_dir + "/audit.jsonl") {}

  // Says in the log where entries could not be written: at the start, not at the first call.
  void Check() const;
  // unix_ms is filled in where it is 0.
  void Add(AuditEntry entry);
  // One a minute of each who and call; the next one tells how many were left out. So who is refused
  // again and again does not push out what others did. `now` is steady.
  void AddRefused(AuditEntry entry, absl::Time now);
  // The last ones, at most kMaxAuditEntries; the oldest of them first.
  absl::StatusOr<AuditReply> Last(int count) const;

 private:
  struct Refused {
    absl::Time told;
    int64_t left_out = 0;
  };
  const std::string file_;
  mutable Mutex mutex_;
  std::map<std::string, Refused> refused_ ABSL_GUARDED_BY(mutex_);  // by who and call
};

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_SERVICE_AUDIT_H_
