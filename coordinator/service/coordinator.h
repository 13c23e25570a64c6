// The coordinator: the cores (membership, jobs, links) behind one mutex, the store, and the two
// threads that keep time. What the gRPC services and the pages call. It never holds the mutex while
// it waits for the disk, a daemon or the planner.
//
// Time thread: leases, deadlines, probes, what changed goes to the store (every flush_every).
// Pending thread: jobs that wait for daemons. A job's plan goes out only after its generation and
// state are on disk. Thread: any, except where said. Bounds: kMaxSessions, kSessionQueue,
// kMaxWatches, kMaxPuts, those of FetchLine.
#ifndef ISTHMUS_COORDINATOR_SERVICE_COORDINATOR_H_
#define ISTHMUS_COORDINATOR_SERVICE_COORDINATOR_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/metrics.h"
#include "base/mutex.h"
#include "base/queue.h"
#include "coordinator/core/fetch_line.h"
#include "coordinator/core/jobs.h"
#include "coordinator/core/link_table.h"
#include "coordinator/core/membership.h"
#include "coordinator/core/run_changes.h"
#include "coordinator/planner/compute_table.h"
#include "coordinator/planner/planner.h"
#include "coordinator/service/pause_watch.h"
#include "coordinator/store/checkpoint_store.h"
#include "coordinator/store/state_lock.h"
#include "coordinator/store/store.h"
#include "proto/control.pb.h"

namespace isthmus::coordinator {

constexpr int kMaxSessions = 400;
constexpr size_t kSessionQueue =
    64;  // messages to a daemon that does not read; one more ends its stream
constexpr int kMaxWatches = 100;
constexpr int kMaxPuts = 64;
constexpr absl::Duration kFetchStall = absl::Minutes(2);  // 8 MiB in flight at 0.6 Mbit/s
constexpr int64_t kMaxJobBytes = 64 << 10;
constexpr int kWatchPage = 500;  // records in one reply

// With defaults, checked.
absl::StatusOr<JobSpec> CompleteJob(const JobSpec& job);

struct CoordinatorOptions {
  std::string state_dir;
  MembershipOptions membership;
  JobOptions jobs;
  LinkTableOptions links;
  ComputeTableOptions compute;
  absl::Duration tick = absl::Milliseconds(100);
  absl::Duration flush_every = absl::Milliseconds(500);
  absl::Duration wait_for_links =
      absl::Seconds(60);  // of Submit and MakePlan, until the daemons' links are measured
  absl::Duration wait_for_data =
      absl::Seconds(6);  // of Submit and MakePlan, for what daemons tell of files that just came
  absl::Duration wait_for_daemons =
      absl::Seconds(15);  // of Submit, until daemons have ended their last session, or have put
                          // what they keep of the checkpoint to go on from
  absl::Duration first_message =
      absl::Seconds(10);  // a stream that has not registered by then is ended
  absl::Duration try_pending = absl::Seconds(2);
  // A job that has ended may still get the last parts of a checkpoint for so long after the one
  // before; then what is not whole goes.
  absl::Duration parts_patience = absl::Minutes(1);
};

// A daemon's stream, as its two threads see it. Owned by the handler; between OpenSession and
// CloseSession the coordinator knows it.
struct Session {
  explicit Session(std::function<void()> cancel_stream)
      : cancel(std::move(cancel_stream)), outgoing(kSessionQueue) {}
  const std::function<void()> cancel;         // ends the stream; any thread, any number of times
  BoundedQueue<CoordinatorMessage> outgoing;  // the handler's writer drains it
  std::string peer;  // where it comes from, as gRPC has it: "ipv4:10.0.0.1:53412"; set before use
  uint64_t stream = 0;
  std::string node_id;  // empty until registered; the coordinator's mutex
  absl::Time opened;
};

class Coordinator {
 public:
  // AlreadyExists: another process has the state directory.
  static absl::StatusOr<std::unique_ptr<Coordinator>> Open(CoordinatorOptions options);
  ~Coordinator();
  void Stop();  // ends every stream and wait; calls after it are refused with Unavailable

  // ---- daemons (coordinator.cc) ----
  absl::Status OpenSession(Session* session);
  // May wait while an earlier stream of the same identity falls silent. FailedPrecondition:
  // refused, the reason is for the daemon.
  absl::StatusOr<Registered> Register(Session* session, const isthmus::Register& request);
  absl::Status OnMessage(Session* session,
                         const DaemonMessage& message);  // an error ends the stream
  void CloseSession(Session* session);

  // ---- jobs (submission.cc) ----
  using Cancelled = std::function<bool()>;  // the caller has gone: waits end
  absl::StatusOr<PlanReply> MakePlan(const PlanRequest& request, const Cancelled& cancelled);
  absl::StatusOr<SubmitReply> Submit(const SubmitRequest& request, const Cancelled& cancelled);
  absl::StatusOr<std::string> NewJobId(const std::string& name);

  // ---- questions (queries.cc) ----
  absl::StatusOr<JobStatus> Status(const std::string& job, bool with_plan);
  absl::StatusOr<JobStatus> StopJob(const std::string& job, bool at_once);
  ListJobsReply List();
  ListNodesReply Nodes();
  void UpdateMetrics();
  std::string ServiceDiscovery(
      const std::string& own_address);  // Prometheus' HTTP service discovery

  // ---- watch.cc ----
  // Calls `send` until it says false, the job has ended and all is said, or (not `follow`) what
  // there is is said.
  absl::Status Watch(const WatchRequest& request,
                     const std::function<bool(const WatchReply&)>& send,
                     const Cancelled& cancelled);

  // ---- checkpoints (transfers.cc) ----
  absl::StatusOr<std::unique_ptr<CheckpointStore::Part>> BeginPart(
      const PutCheckpointHeader& header);
  // `taken`: how taking its data ended; not OK: `part` is given up.
  absl::StatusOr<bool> FinishPart(const PutCheckpointHeader& header, CheckpointStore::Part* part,
                                  const absl::Status& taken);
  // Of a job, or of the directory of one that is forgotten.
  absl::StatusOr<ListCheckpointsReply> Checkpoints(const ListCheckpointsRequest& request,
                                                   const Cancelled& cancelled);
  absl::StatusOr<RemoveJobReply> RemoveJob(const RemoveJobRequest& request);

  // Whether the asker has on its own disk what it asks for: a part that is this checkpoint's.
  bool HasParts(const FetchCheckpointRequest& request);
  // An answer under way: a place in the line and a reader. Ends before the coordinator.
  class Fetch {
   public:
    ~Fetch();
    int64_t step() const { return step_; }
    CheckpointReader* reader() { return reader_.get(); }
    void Progress();  // something went out

   private:
    friend class Coordinator;
    Fetch(Coordinator* coordinator, uint64_t ticket) : coordinator_(coordinator), ticket_(ticket) {}
    Coordinator* const coordinator_;
    const uint64_t ticket_;
    int64_t step_ = 0;
    std::unique_ptr<CheckpointReader> reader_;
  };
  // Waits for its turn; `waits` is called once, with their number, if others are before it.
  // `cancel` ends the call: it is called where nothing goes out for kFetchStall.
  absl::StatusOr<std::unique_ptr<Fetch>> OpenFetch(const FetchCheckpointRequest& request,
                                                   const Cancelled& cancelled,
                                                   const std::function<void(int before)>& waits,
                                                   std::function<void()> cancel);

 private:
  struct StartRequest {  // what Submit and the pending thread want to start
    enum Kind { kNew, kResume, kPending };
    Kind kind = kNew;
    bool wait_for_nodes = false;
    JobSpec spec;
    std::string job_id;
    int64_t start_step = 0;
    bool from_checkpoint = false;
    std::optional<DataPosition> data;  // before start_step; none: see Resume
    std::vector<FieldChange> changes;  // kResume: since the checkpoint was written
    std::string given_up;  // kResume: a newer checkpoint that daemons keep, in words; empty: none
  };

  explicit Coordinator(CoordinatorOptions options);
  absl::Status LoadStore();
  absl::Time Now() const;  // monotonic

  void Dispatch(Commands commands) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SendTo(const std::string& node_id, CoordinatorMessage message)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndStream(uint64_t stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TimeLoop();
  void Tick() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DoubtLinks(const SessionEvent& failed) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TickProbes() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TickFetches() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Asks a daemon of an idle host to measure its compute. True: links are measured after it.
  bool TickCompute() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeFigure(const std::string& node_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PendingLoop();
  void TryPending(const std::string& job_id);

  StoreBatch Collect() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Flush();                 // the time thread alone
  absl::Status WaitForFlush();  // until what is true now is on disk
  void LogStates() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SweepCheckpoints(const std::vector<std::string>& forgotten);  // the time thread alone
  void LogOrphans() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropUpload(const std::string& job_id);  // of a job that was not added
  void EndPut(const std::string& job_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NotStored(const PutCheckpointHeader& header, const absl::Status& why);
  static absl::Status NoJob(const std::string& job);

  PlannerInput Snapshot(const StartRequest& request, bool with_busy)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WaitForLinks(const JobSpec& job, const Cancelled& cancelled);
  void WaitForData(const JobSpec& job, const Cancelled& cancelled);
  static bool MayUse(const JobSpec& job, const Member& member);
  void WaitForIdleDaemons(const Cancelled& cancelled);
  absl::StatusOr<SubmitReply> StartOrQueue(const SubmitRequest& request,
                                           const Cancelled& cancelled);
  absl::StatusOr<StartRequest> PrepareSubmit(const SubmitRequest& request,
                                             const Cancelled& cancelled);
  // resume.cc. `step`: the checkpoint to go on from; none: the one that its last run would go on
  // from. Every byte of it is read against its checksum, so that a damaged one is refused before
  // anything starts.
  absl::StatusOr<StartRequest> PrepareResume(const JobSpec& job, const std::string& name,
                                             std::optional<int64_t> step,
                                             const Cancelled& cancelled);
  absl::Status WaitForKept(const std::string& name, const Cancelled& cancelled);
  // Where the data stand and what has changed since the checkpoint of `start`. `ran`: the job as it
  // ran last.
  absl::Status TakeUpCheckpoint(const JobSpec& ran, StartRequest* start);
  DataNow DataOf(const JobSpec& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<int64_t> ChooseCheckpoint(const std::string& job_id, int64_t head,
                                           std::optional<int64_t> step);
  absl::Status Admit(const StartRequest& request)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);  // the job may start now; a new one is added
  absl::StatusOr<PlannedJob> PlanAndStart(const StartRequest& request);
  absl::Status SendPlan(const std::string& job_id, uint64_t generation, Commands commands);

  struct WatchCursor;
  // False: a page is full and there is more.
  static bool FromMemory(const Job& job, WatchCursor* cursor, WatchReply* reply);
  absl::Status FromStore(int64_t until_step, WatchCursor* cursor, WatchReply* reply);

  void UpdateNodeMetrics(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void UpdateJobMetrics(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  NodeStatus DescribeNode(const Member& member, absl::Time now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const CoordinatorOptions options_;
  std::unique_ptr<StateLock> lock_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<CheckpointStore> checkpoints_;

  Mutex mutex_;
  CondVar changed_;  // jobs, links or members changed; stopping
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  Membership members_ ABSL_GUARDED_BY(mutex_);
  JobTable jobs_ ABSL_GUARDED_BY(mutex_);
  LinkTable links_ ABSL_GUARDED_BY(mutex_);
  PauseWatch pauses_ ABSL_GUARDED_BY(mutex_);
  ComputeTable compute_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, Session*> sessions_ ABSL_GUARDED_BY(mutex_);  // by stream
  uint64_t last_stream_ ABSL_GUARDED_BY(mutex_) = 0;
  std::set<std::string> new_nodes_ ABSL_GUARDED_BY(mutex_);  // to be stored
  std::vector<std::pair<std::string, int64_t>> truncated_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::string> logged_states_ ABSL_GUARDED_BY(mutex_);
  // Jobs whose parts of checkpoints can't become whole any more, and from when on.
  std::map<std::string, absl::Time> sweep_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> keep_checkpoints_ ABSL_GUARDED_BY(mutex_);  // of jobs that are removed
  uint64_t flush_wanted_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t flush_done_ ABSL_GUARDED_BY(mutex_) = 0;
  int watches_ ABSL_GUARDED_BY(mutex_) = 0;
  int puts_ ABSL_GUARDED_BY(mutex_) = 0;
  std::multiset<std::string> put_jobs_ ABSL_GUARDED_BY(mutex_);  // a job for each
  FetchLine fetches_ ABSL_GUARDED_BY(mutex_){kFetchStall};
  std::map<uint64_t, std::function<void()>> fetch_cancels_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> gauge_nodes_ ABSL_GUARDED_BY(mutex_);  // label values that are out
  std::set<std::pair<std::string, MetricLabels>> job_gauges_ ABSL_GUARDED_BY(mutex_);

  StoreBatch unwritten_;       // the time thread's: what the disk refused
  bool disk_trouble_ = false;  // the time thread's
  std::thread time_thread_;
  std::thread pending_thread_;
};

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_SERVICE_COORDINATOR_H_
