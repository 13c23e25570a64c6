// What became of each job. A core of values: `now` (monotonic) and `unix_ms` are parameters; what
// is to be said to daemons comes back as Commands, what is to be stored as TakeDirty and
// TakeRecords. Each change of state carries a reason in words and, where something went wrong, its
// FailureCause: the words are for people, nothing here reads them.
//
//   PENDING -> STARTING -> RUNNING -> FINISHED
//                 |           |-----> STOPPING -> STOPPED
//                 '-----------'-----> PAUSED (with a checkpoint, or because a daemon left) or
//                 FAILED (without); both can be resumed under a new generation, or, with
//                 recovery.automatic, PENDING (Job.recovering): it goes on by itself
//
// Words of a daemon about a generation that is not the job's current one change nothing (the
// fence). A daemon whose connection is lost may train on: its job goes on while other daemons of it
// make progress; nobody plans with it before it is back. A job of which nobody is heard is paused
// after JobOptions.unheard, and goes on as if nothing had happened if its sessions come back.
// Thread: one owner. Bounds: kMaxJobs, kRecentRecords, kMaxUnsavedRecords, and those of
// RecordMerger.
#ifndef ISTHMUS_COORDINATOR_CORE_JOBS_H_
#define ISTHMUS_COORDINATOR_CORE_JOBS_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/core/kept_table.h"
#include "coordinator/core/link_watch.h"
#include "coordinator/core/measured_links.h"
#include "coordinator/core/membership.h"
#include "coordinator/core/records.h"
#include "proto/control.pb.h"
#include "proto/failure_cause.h"
#include "proto/plan.pb.h"

namespace isthmus::coordinator {

constexpr int kMaxJobs = 1000;              // listed; the oldest ended ones make room
constexpr int kRecentRecords = 512;         // of a job in memory
constexpr int kMaxUnsavedRecords = 100000;  // of all jobs, should the disk refuse them
constexpr int kMaxRemoved = 10000;          // ids that are remembered; those of the oldest go first
constexpr size_t kMaxReasonBytes = 2000;
constexpr int kRateWindow = 20;  // records that tokens/s and ETA look at

struct JobOptions {
  absl::Duration confirm = absl::Seconds(
      60);  // after a restart of the coordinator: daemons of a running job come back within
  absl::Duration settle =
      absl::Seconds(10);  // a daemon that came back without its session may still tell how it ended
  absl::Duration lease = absl::Seconds(15);         // a daemon without a word for so long is missed
  absl::Duration unheard = absl::Seconds(60);       // no daemon of a job is heard: paused after
  absl::Duration start_margin = absl::Seconds(30);  // on top of Deadlines.open_ms
  absl::Duration blame =
      absl::Seconds(15);  // a stream that ends so soon after a failure is named in its reason
  absl::Duration attention =
      absl::Hours(24);  // a paused or failed job is held up to people for so long
  absl::Duration ask_kept =
      absl::Minutes(1);  // daemons are asked again for the parts of a checkpoint that they keep
  // The same of a job that goes on by itself, where the coordinator could not store one (its disk
  // is full), and how long such a job waits before it goes on from an older checkpoint.
  absl::Duration ask_refused = absl::Seconds(5), refused_patience = absl::Minutes(10);
  // A job that goes on by itself: at once, then after this times 1, 4, 9, ...
  absl::Duration recovery_pause = absl::Seconds(1);
  absl::Duration recovery_ends = absl::Seconds(20);  // daemons of it end their sessions within
  absl::Duration recovery_kept =
      absl::Seconds(30);  // a daemon that keeps a part of a newer checkpoint comes back within
  absl::Duration recovery_attention =
      absl::Minutes(5);  // one that waits is held up to people after
  // recovery.follow: between two moves so many times what the last one took, and this at least.
  double follow_rest = 10;
  absl::Duration follow_pause = absl::Seconds(30);
  // Nobody of a job was heard: its daemons may train on. It goes on without them after.
  absl::Duration abandon = absl::Minutes(10);
};

// False before the first step.
inline bool HasLoss(const JobStatus& status) { return status.first_loss() != 0; }

struct Command {  // to one daemon
  std::string node_id;
  CoordinatorMessage message;
};
using Commands = std::vector<Command>;
Command StopCommand(const std::string& node_id, const std::string& job_id, uint64_t generation,
                    bool graceful, const std::string& reason);

struct NumberedRecord {
  uint64_t number = 0;  // 1, 2, ... of a job over the life of this process
  JobRecord record;
};

struct BrokenLink {
  absl::Time since;
  std::string words;
};

struct StageState {
  bool prepared = false;
  bool ended = false;  // FINISHED or FAILED
  bool idle = false;   // its daemon came back without the session
  uint64_t fingerprint = 0;
  std::optional<absl::Time> gone_since;  // its daemon has no stream, or was last heard then
  std::optional<absl::Time> confirm_by;  // its daemon has to show the session until then
  bool stall_reported = false;
  // Its links that broke and have not gone on, by the other rank; -1: an older daemon told of it.
  std::map<int, BrokenLink> broken_links;
};

struct PartTrouble {
  int stage = 0, replica = 0;  // whose part it is
  std::string part;            // in words: "weights.safetensors of stage 0 (12.0 MiB)"
  std::string why;             // in words; of several parts the same
};

struct Job {
  std::string id;
  uint64_t number = 0;  // order of submission
  JobSpec spec;         // defaults filled in
  bool wait_for_nodes = false;
  // PENDING, a resume: from status.checkpoint_step as the user asked, whatever is newer; and they
  // said that another training than the one begun is wanted.
  bool step_asked = false;
  bool accepts_changes = false;
  // PENDING since something ended its generation (`because`): it goes on by itself, not before ...
  bool recovering = false;
  absl::Time not_before = absl::InfinitePast();
  std::string recovery_waits;  // ... and waits for that, in words
  bool accepted = false;       // of its generation: its user accepted changes; not stored
  bool restored = false;       // the coordinator restarted since its generation began
  int interruptions = 0;       // in a row, without a new checkpoint between them; not stored
  bool removing = false;       // see JobTable::BeginRemove; not stored
  JobStatus status;            // without plan and boundaries; elapsed_s as of running_since
  Plan plan;                   // of status.generation
  std::vector<BoundaryTotals> boundaries;
  std::string
      because;  // ended, not FINISHED: `status.reason` without its last part, what is stored
  // A warning, without FallBack: why the newest one could not be stored; or empty.
  std::string checkpoint_trouble;

  int64_t failed_checkpoint = -1;  // of this generation, the largest step that could not be stored

  // Of the current generation, not stored.
  std::vector<StageState> stages;
  RecordMerger merger;
  std::optional<absl::Time> running_since;
  std::optional<absl::Time> deadline;  // STARTING: ready by; STOPPING: ended by
  std::optional<absl::Time> failed_at;
  std::optional<absl::Time> ended_at;  // after a restart of the coordinator: that
  absl::Time progressed;               // the last sign that a daemon of this generation gets on
  int64_t validates = -1;  // RUNNING: committed steps after which its daemons make the validation
                           // pass that is under way; -1: none is
  std::optional<absl::Time> rejoined;  // when a daemon was last heard again after it was not
  // Why failed_checkpoint could not be stored, by stage and replica.
  std::map<std::pair<int, int>, PartTrouble> failed_parts;
  // TakesKept: the step of a checkpoint beyond the stored ones all of whose parts daemons keep; -1:
  // none. `kept_waits`: for what, in words; empty: the daemons are asked for it. `untold`: names of
  // those that may keep such a part for all that they have told since the end.
  int64_t kept_step = -1;
  std::vector<std::string> kept_on;  // names of the daemons that keep them
  std::string kept_waits;
  std::optional<absl::Time> kept_away;  // kept_waits for so long
  std::vector<std::string> untold;
  std::optional<absl::Time> kept_asked;
  std::optional<absl::Time> kept_begun;  // when its parts were first asked for
  std::string kept_refused;              // why one that came could not be stored here
  bool kept_wanted = false;              // a resume waits for it (StaysKept)
  std::string stop_reason;               // STOPPING: as its daemons are told
  std::string leaving;                   // STOPPING because of a daemon that ends: in words ...
  std::string leaving_node;              // ... and its id
  // recovery.follow, not stored: see job_follow.cc.
  LinkWatch watch;             // of its generation
  std::vector<LinkNews> news;  // of its links, since its plan was last looked at
  // Those that it moved away from: its plan may have them no more, and wants them back.
  std::map<MeasuredLinks::Pair, LinkNews> left_links;
  bool moving = false;  // it ends its generation, or has ended it, to take a new plan
  std::optional<absl::Time>
      left_at;  // it moves since then, until its first step under the new plan
  absl::Time follow_after = absl::InfinitePast();  // its plan is looked at again, at the earliest
  absl::Time started_at;
  absl::Duration start_took, move_took;  // of the last one, without steps; zero: not known
  std::deque<NumberedRecord> recent;
  uint64_t last_record = 0;  // number of the last one in `recent`
  uint64_t version = 0;      // grows with every change

  bool active() const {
    return status.state() == JOB_STARTING || status.state() == JOB_RUNNING ||
           status.state() == JOB_STOPPING;
  }
  bool ended() const { return !active() && status.state() != JOB_PENDING; }
  // Whether a checkpoint that its daemons keep is of use to it.
  bool TakesKept() const {
    const bool waits = status.state() == JOB_PENDING && !step_asked;
    return (ended() || waits) && status.generation() != 0 &&
           plan.generation() == status.generation();
  }
};

// The step that its generation ends at: that of the job, or of a phase of it.
int64_t EndOf(const Job& job);

// When a job that is told to end in good order does: "the step is finished and a checkpoint
// written".
// With local steps that is no sooner than a round's end.
std::string StopWords(const Plan& plan);

// "phase 2 of 3".
std::string PhaseWords(int phase, int phases);

// What a resume goes on from and what is lost, in words.
std::string CheckpointWords(const Job& job);

// "a, b and c"; of many the first ones.
std::string NamesOf(const std::vector<std::string>& names);

// "daemon NAME is lost (its connection ended 3 s after); "; `apart` from what `when` names, where
// the sentence goes on.
std::string LostWords(const std::string& name, absl::Duration apart, absl::string_view when);

// The names of the daemons that keep the parts of checkpoints of their own stages.
std::vector<std::string> KeptBy(const Job& job);

// Of one that was stopped at once: its kept_step is a local checkpoint, which stays with its
// daemons until a resume wants it.
bool StaysKept(const Job& job);

// Of a job with a kept_step: which checkpoint daemons keep and how it gets here, in words.
std::string KeptWords(const Job& job);

// As Job::validates, by what its daemons last told.
int64_t ValidatesAfter(const Job& job, const Membership& members);

// A reason without how long ago a daemon was heard or left, which alone makes no news.
std::string WithoutAges(absl::string_view reason);

// Whether it goes on by itself after another interruption.
bool MayRecover(const Job& job);

// The median of its last steps under this plan; 0: there is none.
double RecentStepSeconds(const Job& job);

// Of an active job: a line for each daemon that has not been heard for longer than `patience`.
std::vector<std::string> GoneWarnings(const Job& job, absl::Duration patience, absl::Time now);

struct StoredRecord {
  std::string job_id;
  JobRecord record;
};

bool CalledLost(const FailureCause& cause, const std::string& node_id);

class JobTable {
 public:
  explicit JobTable(JobOptions options = {}) : options_(options) {}

  // A new job in JOB_PENDING. AlreadyExists: the id is taken, or a job of that name has not ended.
  // ResourceExhausted: kMaxJobs active ones.
  absl::Status Add(const std::string& id, uint64_t number, const JobSpec& spec, bool wait_for_nodes,
                   int64_t unix_ms);

  absl::Status NameIsFree(const std::string& name) const;  // AlreadyExists: see Add

  // Sends `plan` (a new generation, complete) to its daemons: STARTING. The job is PENDING or has
  // ended; its records from plan.start_step on are dropped (Dirty.truncated).
  // `whole`: the job with all its phases, where `plan` is of one of them.
  absl::StatusOr<Commands> Start(const std::string& id, const Plan& plan, absl::Time now,
                                 const JobSpec* whole = nullptr);

  // Why a PENDING job has not started, for its status.
  void SetPendingReason(const std::string& id, const std::string& reason);
  // An ended job waits for daemons, to be resumed from checkpoint `step_asked`, else from the
  // newest that there is then.
  // FailedPrecondition: it has not ended, or is being removed.
  absl::Status SetWaiting(const std::string& id, const JobSpec& spec,
                          std::optional<int64_t> step_asked, bool accepts_changes);

  // The changes of the generation that was just started were accepted by its user.
  void SetAccepted(const std::string& id);
  // A plan that was just started can't be stored, and was not sent. `asked`: a user is told.
  void NotStored(const std::string& id, const std::string& why, bool asked, absl::Time now);
  // Job.recovering: time does not cure why it can't go on. It pauses.
  void GiveUpRecovery(const std::string& id, const std::string& why, absl::Time now);
  // Job.recovering: whether it is worth a wait until those of its daemons that are there have ended
  // their sessions, or until one that keeps a part of a newer checkpoint is back.
  bool WaitsForEnds(const Job& job, const Membership& members, absl::Time now) const;
  bool WaitsForKept(const Job& job, absl::Time now) const;

  // A PENDING job's next phase can't begin: the job pauses.
  void PhaseFailed(const std::string& id, const std::string& why, absl::Time now);

  Commands OnEvent(const std::string& node_id, const SessionEvent& event, absl::Time now);
  // `looks`: at the links of the job, of which a window ended with this step; null: nowhere.
  absl::Status OnStep(const std::string& node_id, const StepRecord& record, absl::Time now,
                      int64_t unix_ms, std::vector<LinkLook>* looks = nullptr);
  Commands OnRegistered(const std::string& node_id, const isthmus::Register& request,
                        bool restarted, absl::Time now);
  Commands OnStreamGone(const std::string& node_id, absl::Time now);
  // Its lease ran out; it was last heard then.
  void OnNodeLost(const std::string& node_id, absl::Time heard);
  void Forgive(absl::Duration pause);  // the coordinator stood still: deadlines move
  // A checkpoint is whole. Not for one of an older generation than the job's: it may have gone on
  // from an earlier step since.
  void OnCheckpoint(const std::string& job_id, int64_t step, absl::Time now);
  // A part of one can't be stored here, `why` in words: a warning until the next one is whole.
  // True: it is the first word of this checkpoint.
  bool OnCheckpointFailed(const std::string& job_id, uint64_t generation, int64_t step,
                          const PartTrouble& trouble, absl::Time now);

  // All parts of checkpoints that a daemon keeps on its disk. Once a job has ended and all parts of
  // a newer checkpoint than the stored ones are kept by daemons that are there and idle, Tick asks
  // for them; a daemon that keeps parts of a removed job is told so.
  void OnKept(const std::string& node_id, const KeptParts& all);
  // Job.kept_step becomes what daemons have told until now: before it is decided by it.
  void LookAtKept(const std::string& id);
  void WantKept(const std::string& id);  // a resume waits for its kept_step
  // The steps of all checkpoints beyond the stored ones that its daemons keep whole.
  std::vector<int64_t> KeptSteps(const Job& job) const;
  // The names of the daemons that keep the parts of one of these.
  std::vector<std::string> KeptOn(const Job& job, int64_t step) const;

  // A daemon was told to end: the job on it is stopped in good order, and is PAUSED then, or goes
  // on without it.
  Commands OnLeaving(const std::string& node_id, const Leaving& leaving, absl::Time now);
  Commands OnDrained(const std::string& node_id, absl::Time now);  // the same; it stays there

  // ---- recovery.follow ----
  // The directions of the links that running jobs follow.
  std::set<MeasuredLinks::Pair> FollowedLinks() const;
  void OnLinkNews(const LinkNews& news);  // its jobs' plans are to be looked at
  // Its links have changed, and nothing keeps it from taking a new plan now.
  bool MayMove(const Job& job, absl::Time now) const;
  // What its links were seen to do, in words.
  static std::string NewsWords(const Job& job);
  // Its plan was looked at: `words` say what was decided, why. `moves`: it ends its generation in
  // good order and goes on with a new plan.
  Commands Followed(const std::string& id, const std::string& words, bool moves, absl::Time now);

  // Graceful, or `at_once`. FailedPrecondition: it has ended already.
  absl::StatusOr<Commands> Stop(const std::string& id, bool at_once, absl::Time now);

  // Forgets a job that has ended: between the two nothing can start it. FailedPrecondition: it has
  // not ended, and what to do. Unavailable: it is stopping. `forget` false: it stays what it was.
  absl::Status BeginRemove(const std::string& id);
  void EndRemove(const std::string& id, bool forget);
  void SetRemoved(const std::string& id);  // one that is not known here, or no longer

  // Deadlines, stalls, unconfirmed daemons.
  Commands Tick(const Membership& members, absl::Time now);

  // A job from the store. One that was active waits for its daemons (JobOptions.confirm).
  // `stored_step`: the checkpoint that it would go on from, as the files say.
  void Restore(Job job, int64_t stored_step, int64_t next_record_step, absl::Time now);
  void RestoreRemoved(const std::vector<std::string>& ids);  // the oldest first

  // By id, or the newest of that name.
  const Job* Find(const std::string& id_or_name) const;
  const Job* JobOn(const std::string& node_id) const;  // the active job that uses the daemon
  std::set<std::string> Working() const;  // the daemons of all jobs that are active or move
  // PAUSED or FAILED, the newest of its name, and for no longer than JobOptions.attention: somebody
  // should look at it. A resume, a newer job of the name or its removal settles it.
  bool WantsAttention(const Job& job, absl::Time now) const;
  std::vector<const Job*> All() const;  // newest first
  JobStatus Status(const Job& job,
                   absl::Time now) const;  // with boundaries and running time, without plan

  struct Dirty {
    std::set<std::string> changed;
    std::set<std::string> new_plan;      // of these
    std::set<std::string> forgotten;     // made room, or were removed: the store drops them and
                                         // remembers their ids
    std::vector<std::string> made_room;  // of these
    // (job, step): a new generation drops its records from step on.
    std::vector<std::pair<std::string, int64_t>> truncated;
  };
  Dirty TakeDirty();
  std::vector<StoredRecord> TakeRecords();
  void GiveBackRecords(std::vector<StoredRecord> records);  // the store refused them for now

 private:
  Job* Mutable(const std::string& id);
  Job* Current(const std::string& job_id, uint64_t generation);
  static int StageOf(const Job& job, const std::string& node_id);
  void Touch(Job* job);
  void SetState(Job* job, JobState state, const std::string& reason, absl::Time now,
                const FailureCause& cause = {});
  // `out_of_touch`: its sessions may still run.
  Commands Fail(Job* job, FailureCause cause, const std::string& reason,
                const std::string& except_node, absl::Time now, bool out_of_touch = false);
  // It goes on by itself where it may, else `state` it is.
  void Interrupt(Job* job, JobState state, const std::string& because, absl::Time now,
                 const FailureCause& cause = {});
  void Abandon(Job* job, absl::Time now);
  Commands TellAll(const Job& job, bool graceful, const std::string& reason,
                   const std::string& except_node) const;
  Commands Leave(Job* job, int rank, const std::string& reason, const std::string& words,
                 absl::Time now);
  Commands BeginStop(Job* job, const std::string& reason, const std::string& words, absl::Time now);
  void EndInOrder(Job* job, const std::string& but, absl::Time now);
  void AwaitPhase(Job* job, const std::string& note, absl::Time now);
  static void SetStep(Job* job, int64_t step);
  void MaybeRun(Job* job, absl::Time now);
  void MaybeFinish(Job* job, absl::Time now);
  Commands CheckData(Job* job, absl::Time now);
  Commands TickJob(Job* job, const Membership& members, absl::Time now);
  bool Moves(const Job& job, const Membership& members, absl::Time now) const;
  Commands TickStalls(Job* job, const Membership& members, absl::Time now);
  static void HeardAgain(Job* job, int stage, absl::Time now);
  void Confirm(Job* job, int stage, absl::Time now);
  Commands TickGone(Job* job, const Membership& members, absl::Time now);
  Commands TickCutOff(Job* job, absl::Time now);
  void OnLinkEvent(Job* job, const SessionEvent& event, int stage, absl::Time now);
  bool Revive(Job* job, absl::Time now);
  void KeepRecord(Job* job, MergedStep merged, int64_t unix_ms);
  std::string FallBack(const Job& job) const;
  void CheckOverdue(Job* job, double step_s, absl::Time now);
  static void RestoreTrouble(Job* job);
  static void RestoreBecause(Job* job);
  static void RestoreRecovery(Job* job, absl::Time now);
  static void BeginGeneration(Job* job);
  void EndMove(Job* job, absl::Time now) const;
  void SetEnd(Job* job, JobState state, const std::string& because, absl::Time now,
              const FailureCause& cause = {});
  // The user stops one whose generation has ended. What daemons told of their disks stays known.
  void StopEnded(Job* job, const std::string& because, const FailureCause& cause, absl::Time now);
  void Reword(Job* job);
  void CameLate(Job* job, absl::Time now);
  Commands TickKept(Job* job, const Membership& members, absl::Time now);
  std::string KeptWaits(const Job& job, const Membership& members) const;
  bool IsWorthBringing(const Job& job, int64_t step) const;
  const Member* Holder(const Job& job, int rank, const Membership& members, std::string* why) const;
  std::vector<std::string> Untold(const Job& job, const Membership& members) const;
  void Drop(const std::string& id);
  void Forget();

  const JobOptions options_;
  std::map<std::string, Job> jobs_;
  KeptTable kept_;
  std::set<std::string> removed_;             // ids are never used twice
  std::deque<std::string> removed_in_order_;  // the oldest first
  Dirty dirty_;
  std::deque<StoredRecord> unsaved_;
};

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_CORE_JOBS_H_
