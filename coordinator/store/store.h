// What the coordinator remembers over a restart: jobs, plans, records, daemons, links, and two
// counters that never repeat. SQLite in WAL mode in state-dir/coordinator.db. A process killed at
// any instant leaves a whole database: a Write is there entirely or not at all. The only door to
// SQLite. Thread: any; writes have one connection, reads another, each behind a mutex. Calls may
// wait for the disk.
#ifndef ISTHMUS_COORDINATOR_STORE_STORE_H_
#define ISTHMUS_COORDINATOR_STORE_STORE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/core/jobs.h"
#include "proto/control.pb.h"
#include "proto/plan.pb.h"

namespace isthmus::coordinator {

constexpr int64_t kMaxStoredRecords = 1000000;       // of a job; the oldest make room
constexpr uint64_t kMaxCounter = uint64_t{1} << 62;  // of generations and of jobs
constexpr int kSchemaVersion = 1;

struct StoredJob {
  std::string id;
  uint64_t number = 0;
  bool wait_for_nodes = false, step_asked = false, accepts_changes = false;  // as of Job
  JobSpec spec;
  JobStatus status;                // with boundaries
  std::optional<Plan> plan;        // Write: only if it is a new one
  int64_t failed_checkpoint = -1;  // as of Job
  std::string because;             // as of Job
  int64_t next_record_step = 0;    // Load: the step after the last stored record
};

struct StoreBatch {
  std::vector<StoredJob> jobs;
  std::vector<std::string> forgotten;  // jobs to drop, with their records; their ids are kept
  std::vector<std::string> made_room;  // of these: jobs whose checkpoints go as well
  std::vector<std::pair<std::string, int64_t>>
      truncated;  // (job, step): drop its records from step on, before `records` are added
  std::vector<StoredRecord> records;
  std::vector<NodeInfo> nodes;
  std::map<std::string, std::string> left;  // of `nodes`: those that said that they end, and why
  std::set<std::string> drained;            // of `nodes`: those that get no job
  std::vector<LinkMeasurement> links;
  bool empty() const {
    return jobs.empty() && forgotten.empty() && truncated.empty() && records.empty() &&
           nodes.empty() && links.empty();
  }
};

struct StoreContents {
  std::vector<StoredJob> jobs;  // in order of submission
  std::vector<NodeInfo> nodes;
  std::map<std::string, std::string> left;
  std::set<std::string> drained;
  std::vector<LinkMeasurement> links;
  std::vector<std::string> removed;  // the last kMaxRemoved jobs that were dropped, in that order
};

class Store {
 public:
  virtual ~Store() = default;

  // FailedPrecondition: the database is of a newer version. DataLoss: it is damaged, and what to
  // do.
  static absl::StatusOr<std::unique_ptr<Store>> Open(const std::string& state_dir);

  virtual absl::StatusOr<uint64_t> NextGeneration() = 0;  // 1, 2, ...; on disk before it returns
  virtual absl::StatusOr<uint64_t> NextJobNumber() = 0;
  // The next ones are larger than these, which someone has seen: a database may be new, or an older
  // copy. InvalidArgument: beyond kMaxCounter.
  virtual absl::Status StartAfter(uint64_t generation, uint64_t job_number) = 0;
  virtual absl::Status Write(const StoreBatch& batch) = 0;
  virtual absl::StatusOr<StoreContents> Load() = 0;
  // Up to `limit` records from `from_step` on, in step order.
  virtual absl::StatusOr<std::vector<JobRecord>> Records(const std::string& job_id,
                                                         int64_t from_step, int limit) = 0;
};

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_STORE_STORE_H_
