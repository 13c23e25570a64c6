#include "worker/checkpoint.h"

#include <array>
#include <chrono>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/status.h"
#include "proto/model/tensor_names.h"
#include "proto/plan/groups.h"

namespace isthmus::worker {
namespace {

using Clock = std::chrono::steady_clock;

// Of a checkpoint at the coordinator, in the order in which they are put.
std::array<std::pair<const char*, const std::string*>, 3> Files(const CheckpointParts& parts) {
  return {{{"weights.safetensors", &parts.weights},
           {"optimizer.safetensors", &parts.optimizer},
           {"state.json", &parts.state}}};
}

// The coordinator is away, or its disk is full: it may take the same file later.
bool WorthHolding(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsResourceExhausted(status) ||
         absl::IsDeadlineExceeded(status) || absl::IsAborted(status);
}

absl::StatusOr<std::string> Fetch(const SessionPlan& plan, CheckpointStore* store,
                                  const std::string& what,
                                  const std::vector<std::string>& tensors) {
  FetchCheckpointRequest request;
  request.set_job_id(plan.plan().job_id());
  request.set_step(plan.plan().start_step());
  request.set_what(what);
  for (const std::string& name : tensors) request.add_tensors(name);
  absl::StatusOr<std::string> bytes = store->Fetch(request);
  if (bytes.ok()) return bytes;
  return Annotate(bytes.status(), absl::StrCat("fetching the ", what, " of checkpoint ",
                                               plan.plan().start_step(), " from the coordinator"));
}

}  // namespace

CheckpointState StateOf(const SessionPlan& plan, int64_t step, int64_t skipped,
                        const CorpusPosition& corpus) {
  CheckpointState state;
  state.step = step;
  state.skipped_steps = skipped;
  state.generation = plan.plan().generation();
  state.stage = plan.mine().stage();
  state.stages = plan.stages();
  state.job = plan.job();
  state.position = corpus.position;
  state.corpus_fingerprint = corpus.fingerprint;
  state.corpus_contents = corpus.contents;
  return state;
}

absl::StatusOr<CheckpointParts> ExportCheckpoint(const SessionPlan& plan, Stage* stage,
                                                 int64_t step, int64_t skipped,
                                                 const CorpusPosition& corpus) {
  CheckpointParts parts;
  parts.step = step;
  ASSIGN_OR_RETURN(parts.weights, stage->ExportWeights());
  ASSIGN_OR_RETURN(parts.optimizer, stage->ExportOptimizer());
  ASSIGN_OR_RETURN(parts.tied, stage->ExportTied());
  parts.state = CheckpointStateJson(StateOf(plan, step, skipped, corpus));
  return parts;
}

absl::StatusOr<CheckpointState> LoadCheckpoint(const SessionPlan& plan, CheckpointStore* store,
                                               Stage* stage) {
  if (!plan.plan().from_checkpoint()) return CheckpointState();
  const std::vector<std::string> names = stage->TensorNames();
  {
    ASSIGN_OR_RETURN(const std::string weights, Fetch(plan, store, "weights", names));
    RETURN_IF_ERROR(stage->ImportWeights(weights));
  }
  const int64_t step = plan.plan().start_step();
  if (step == 0) return CheckpointState();
  std::vector<std::string> moments;
  for (const std::string& name : names) {
    moments.push_back(name + ".exp_avg");
    moments.push_back(name + ".exp_avg_sq");
    if (plan.local()) moments.push_back(OuterMomentumName(name));
  }
  ASSIGN_OR_RETURN(const std::string optimizer, Fetch(plan, store, "optimizer", moments));
  RETURN_IF_ERROR(stage->ImportOptimizer(optimizer));
  ASSIGN_OR_RETURN(const std::string state, Fetch(plan, store, "state", {}));
  return ParseCheckpointState(state, step);
}

absl::Status CheckSameText(const SessionPlan& plan, const CheckpointState& state,
                           uint64_t fingerprint) {
  if (state.corpus_fingerprint == 0 || state.corpus_fingerprint == fingerprint)
    return absl::OkStatus();
  const DataPosition& at = plan.plan().data();
  if (!plan.plan().has_data() || !state.position.has_value() ||
      at.epoch() != state.position->epoch())
    return absl::OkStatus();  // a new pass: the coordinator knows that the data are others
  return absl::FailedPreconditionError(absl::StrCat(
      "the text ", plan.job().data().path(), " on this host (fingerprint ",
      FingerprintText(fingerprint), ") is not the one that checkpoint ", state.step,
      " was trained on (", FingerprintText(state.corpus_fingerprint),
      "): put that one back; or give this one a name of its own in data.path and submit it with ",
      "--resume --accept-changes, which begins a new pass over it"));
}

CheckpointWriter::CheckpointWriter(const SessionPlan& plan, CheckpointStore* store,
                                   SessionObserver* observer, CheckpointWriterOptions options)
    : plan_(plan), store_(store), observer_(observer), options_(options), thread_([this] {
        Run();
      }) {}

CheckpointWriter::~CheckpointWriter() {
  Abort();
  queue_.Abort(absl::CancelledError("done"));
  thread_.join();
}

void CheckpointWriter::Abort() {
  MutexLock lock(&mutex_);
  aborted_ = true;
  changed_.SignalAll();
}

void CheckpointWriter::Save(CheckpointParts parts) {
  {
    MutexLock lock(&mutex_);
    ISTHMUS_CHECK(!busy_);
    busy_ = true;
  }
  queue_.Push(std::move(parts), absl::ZeroDuration())
      .IgnoreError();  // empty while idle, open while the writer lives
}

bool CheckpointWriter::WaitIdle(absl::Duration timeout) {
  const auto deadline = SteadyAfter(timeout);
  MutexLock lock(&mutex_);
  while (busy_) {
    if (timeout == absl::InfiniteDuration()) {
      changed_.Wait(&mutex_);
    } else if (!changed_.WaitUntil(&mutex_, deadline)) {
      return !busy_;
    }
  }
  return true;
}

absl::Status CheckpointWriter::last_status() const {
  MutexLock lock(&mutex_);
  return last_;
}

void CheckpointWriter::Run() {
  for (;;) {
    absl::StatusOr<CheckpointParts> parts = queue_.Pop(absl::InfiniteDuration());
    if (absl::IsDeadlineExceeded(parts.status())) continue;
    if (!parts.ok()) return;
    const absl::Status status = Store(*parts);
    if (!status.ok()) {
      LogWarning("checkpoint ", parts->step, " of ", StageWords(plan_.plan(), plan_.rank()),
                 " was not stored: ", status.message());
    }
    *parts = CheckpointParts();
    MutexLock lock(&mutex_);
    last_ = status;
    busy_ = false;
    changed_.SignalAll();
  }
}

PutCheckpointHeader CheckpointWriter::Header(const CheckpointParts& parts, const std::string& file,
                                             const std::string& bytes) const {
  PutCheckpointHeader header;
  header.set_job_id(plan_.plan().job_id());
  header.set_generation(plan_.plan().generation());
  header.set_step(parts.step);
  header.set_stage(plan_.mine().stage());
  header.set_stages(plan_.stages());
  header.set_file(file);
  header.set_file_bytes(static_cast<int64_t>(bytes.size()));
  header.set_checksum(Hash64(bytes));
  return header;
}

absl::Status CheckpointWriter::Store(const CheckpointParts& parts) {
  std::vector<PutCheckpointHeader> headers;
  for (const auto& [file, bytes] : Files(parts)) {
    headers.push_back(Header(parts, file, *bytes));
    store_->Keep(headers.back(), *bytes);
  }
  if (!parts.tied.empty())
    store_->Keep(Header(parts, TiedFile(headers[0].checksum()), parts.tied), parts.tied);
  size_t done = 0;
  absl::Status status = PutRest(parts, headers, &done);
  if (!parts.last || !WorthHolding(status)) return status;
  LogWarning("the last checkpoint (", parts.step, ") of ", StageWords(plan_.plan(), plan_.rank()),
             " is not stored yet: ", status.message(),
             ". It is held in memory and tried again for ", absl::FormatDuration(options_.hold));
  const auto give_up = SteadyAfter(options_.hold);
  while (WorthHolding(status) && Pause(give_up)) status = PutRest(parts, headers, &done);
  return status;
}

// False: it is too late to try again.
bool CheckpointWriter::Pause(Clock::time_point give_up) {
  const auto until = SteadyAfter(options_.again);
  MutexLock lock(&mutex_);
  while (!aborted_ && changed_.WaitUntil(&mutex_, until)) {
  }
  return !aborted_ && Clock::now() < give_up;
}

// From file `*done` on: those before are there.
absl::Status CheckpointWriter::PutRest(const CheckpointParts& parts,
                                       const std::vector<PutCheckpointHeader>& headers,
                                       size_t* done) {
  const auto files = Files(parts);
  for (; *done < files.size(); ++*done) {
    const auto& [file, bytes] = files[*done];
    const absl::Status status = store_->Put(headers[*done], *bytes);
    if (options_.progress != nullptr) ++*options_.progress;
    if (!status.ok())
      return Annotate(status, absl::StrCat("putting ", file, " of checkpoint ", parts.step));
  }
  SessionEvent event;
  event.set_job_id(plan_.plan().job_id());
  event.set_generation(plan_.plan().generation());
  event.set_rank(plan_.rank());
  event.set_state(SessionEvent::CHECKPOINTED);
  event.set_step(parts.step);
  observer_->OnEvent(event);
  return absl::OkStatus();
}

}  // namespace isthmus::worker
