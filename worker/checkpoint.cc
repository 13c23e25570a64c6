#include "worker/checkpoint.h"

#include <chrono>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/status.h"
#include "nlohmann/json.hpp"

namespace isthmus::worker {
namespace {

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

std::string CheckpointStateJson(const SessionPlan& plan, int64_t step, int64_t skipped) {
  const RecipeSpec& r = plan.job().recipe();
  nlohmann::ordered_json json;
  json["step"] = step;
  json["skipped_steps"] = skipped;
  json["seed"] = plan.job().seed();
  json["stage"] = plan.stage();
  json["stages"] = plan.stages();
  json["tokens"] = step * plan.tokens_per_step();
  json["sample_order"] = {{"seed", plan.job().seed()}, {"next_step", step}};
  json["schedule"] = {{"kind", r.schedule()},
                      {"steps", r.steps()},
                      {"warmup_steps", r.warmup_steps()},
                      {"learning_rate", r.learning_rate()},
                      {"min_learning_rate", r.min_learning_rate()}};
  json["generation"] = plan.plan().generation();
  return json.dump(2) + "\n";
}

absl::StatusOr<int64_t> SkippedFromStateJson(absl::string_view text, int64_t step) {
  const nlohmann::json json = nlohmann::json::parse(text.begin(), text.end(), nullptr, false);
  if (!json.is_object() || !json.contains("step") || !json["step"].is_number_integer()) {
    return absl::InvalidArgumentError(
        absl::StrCat("state.json of checkpoint ", step, " is not a state file"));
  }
  if (json["step"].get<int64_t>() != step) {
    return absl::InvalidArgumentError(absl::StrCat("state.json of checkpoint ", step,
                                                   " is of step ", json["step"].get<int64_t>()));
  }
  const auto skipped = json.find("skipped_steps");
  if (skipped == json.end() || !skipped->is_number_integer()) return 0;
  const int64_t value = skipped->get<int64_t>();
  if (value < 0 || value > step)
    return absl::InvalidArgumentError(
        absl::StrCat("state.json of checkpoint ", step, " has skipped_steps ", value));
  return value;
}

absl::StatusOr<CheckpointParts> ExportCheckpoint(const SessionPlan& plan, Stage* stage,
                                                 int64_t step, int64_t skipped) {
  CheckpointParts parts;
  parts.step = step;
  ASSIGN_OR_RETURN(parts.weights, stage->ExportWeights());
  ASSIGN_OR_RETURN(parts.optimizer, stage->ExportOptimizer());
  parts.state = CheckpointStateJson(plan, step, skipped);
  return parts;
}

absl::StatusOr<int64_t> LoadCheckpoint(const SessionPlan& plan, CheckpointStore* store,
                                       Stage* stage) {
  if (!plan.plan().from_checkpoint()) return 0;
  const std::vector<std::string> names = stage->TensorNames();
  {
    ASSIGN_OR_RETURN(const std::string weights, Fetch(plan, store, "weights", names));
    RETURN_IF_ERROR(stage->ImportWeights(weights));
  }
  const int64_t step = plan.plan().start_step();
  if (step == 0) return 0;
  std::vector<std::string> moments;
  for (const std::string& name : names) {
    moments.push_back(name + ".exp_avg");
    moments.push_back(name + ".exp_avg_sq");
  }
  ASSIGN_OR_RETURN(const std::string optimizer, Fetch(plan, store, "optimizer", moments));
  RETURN_IF_ERROR(stage->ImportOptimizer(optimizer));
  ASSIGN_OR_RETURN(const std::string state, Fetch(plan, store, "state", {}));
  return SkippedFromStateJson(state, step);
}

CheckpointWriter::CheckpointWriter(const SessionPlan& plan, CheckpointStore* store,
                                   SessionObserver* observer)
    : plan_(plan), store_(store), observer_(observer), thread_([this] { Run(); }) {}

CheckpointWriter::~CheckpointWriter() {
  queue_.Abort(absl::CancelledError("done"));
  thread_.join();
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
  const auto deadline = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(timeout);
  MutexLock lock(&mutex_);
  while (busy_) {
    if (!idle_changed_.WaitUntil(&mutex_, deadline)) return !busy_;
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
    const absl::Status status = Put(*parts);
    if (!status.ok()) {
      LogWarning("checkpoint ", parts->step, " of stage ", plan_.stage(),
                 " was not stored: ", status.message());
    }
    MutexLock lock(&mutex_);
    last_ = status;
    busy_ = false;
    idle_changed_.SignalAll();
  }
}

absl::Status CheckpointWriter::Put(const CheckpointParts& parts) {
  PutCheckpointHeader header;
  header.set_job_id(plan_.plan().job_id());
  header.set_generation(plan_.plan().generation());
  header.set_step(parts.step);
  header.set_stage(plan_.stage());
  header.set_stages(plan_.stages());
  const auto put = [&](const char* file, const std::string& bytes) {
    header.set_file(file);
    header.set_file_bytes(bytes.size());
    header.set_checksum(Hash64(bytes));
    return Annotate(store_->Put(header, bytes),
                    absl::StrCat("putting ", file, " of checkpoint ", parts.step));
  };
  RETURN_IF_ERROR(put("weights.safetensors", parts.weights));
  RETURN_IF_ERROR(put("optimizer.safetensors", parts.optimizer));
  RETURN_IF_ERROR(put("state.json", parts.state));
  SessionEvent event;
  event.set_job_id(plan_.plan().job_id());
  event.set_generation(plan_.plan().generation());
  event.set_stage(plan_.stage());
  event.set_state(SessionEvent::CHECKPOINTED);
  event.set_step(parts.step);
  observer_->OnEvent(event);
  return absl::OkStatus();
}

}  // namespace isthmus::worker
