#include "worker/checkpoint/checkpoint.h"

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "proto/plan/groups.h"
#include "worker/checkpoint/tensor_file.h"

namespace isthmus::worker {
namespace {

constexpr int64_t kMaxStateBytes = int64_t{16} << 20;

// A part by the name of its file, and the tensors in it.
struct PartSpec {
  std::function<std::string(const CheckpointParts& before)> file;
  TakesTensor takes;
  bool put = true;
};

std::function<std::string(const CheckpointParts&)> Named(const char* file) {
  return [file](const CheckpointParts&) { return std::string(file); };
}

// In the order in which they are kept and put; state.json, which says that they are there, follows.
// With local steps replicas differ in their moments, and in which steps they skipped.
std::vector<PartSpec> PartsOf(int replica) {
  if (replica > 0) {
    return {{Named("optimizer.safetensors"),
             [](const StageTensor& t) { return t.kind == StageTensor::kMoment && !t.copy; }}};
  }
  return {
      {Named("weights.safetensors"), [](const StageTensor& t) { return t.weight() && !t.copy; }},
      {Named("optimizer.safetensors"), [](const StageTensor& t) { return !t.weight() && !t.copy; }},
      {[](const CheckpointParts& before) {
         return TiedFile(before.parts.front().header.checksum());
       },
       [](const StageTensor& t) { return t.copy; }, /*put=*/false},
  };
}

// One more part, kept where the disk takes it. Without it this host fetches at a resume; a part
// that was to be put from it is read from the stage instead.
void Add(PartStore* store, CheckpointPart part, bool of_stage, CheckpointParts* parts) {
  part.header.set_file_bytes(part.bytes->bytes());
  absl::Status refused = parts->on_disk;
  if (refused.ok()) {
    absl::StatusOr<KeptFile> kept = store->Keep(part.header, *part.bytes);
    refused = kept.status();
    if (kept.ok()) {
      part.header.set_checksum(kept->checksum);
      part.hashed = true;
      part.bytes = std::move(kept->bytes);
    } else {
      LogWarning(part.header.file(), " of checkpoint ", parts->step,
                 " is not kept on this host: ", refused.message());
    }
  }
  if (!refused.ok() && !part.put) return;
  if (of_stage && !refused.ok()) parts->on_disk = refused;
  parts->parts.push_back(std::move(part));
}

absl::StatusOr<FetchedFiles> Fetch(const SessionPlan& plan, PartStore* store,
                                   const std::string& what, int replica,
                                   const std::vector<std::string>& tensors) {
  FetchCheckpointRequest request;
  request.set_job_id(plan.plan().job_id());
  request.set_step(plan.plan().start_step());
  request.set_what(what);
  request.set_replica(replica);
  for (const std::string& name : tensors) request.add_tensors(name);
  absl::StatusOr<FetchedFiles> files = store->Fetch(request);
  if (files.ok()) return files;
  return Annotate(files.status(),
                  absl::StrCat("fetching the ", what, " of checkpoint ", plan.plan().start_step()));
}

absl::Status Load(const SessionPlan& plan, PartStore* store, const std::string& what, int replica,
                  const TakesTensor& takes, Stage* stage) {
  std::vector<std::string> names;
  for (const StageTensor& tensor : stage->Tensors()) {
    if (takes(tensor)) names.push_back(tensor.name);
  }
  ASSIGN_OR_RETURN(const FetchedFiles fetched, Fetch(plan, store, what, replica, names));
  std::vector<const ByteSource*> files;
  for (const auto& file : fetched) files.push_back(file.get());
  return FillStage(files, takes, what == "optimizer" ? "optimizer state" : what, stage);
}

absl::StatusOr<CheckpointState> LoadState(const SessionPlan& plan, PartStore* store, int replica) {
  ASSIGN_OR_RETURN(const FetchedFiles state, Fetch(plan, store, "state", replica, {}));
  ASSIGN_OR_RETURN(const std::string json, ReadAll(*state.front(), kMaxStateBytes));
  return ParseCheckpointState(json, plan.plan().start_step());
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

absl::StatusOr<CheckpointParts> KeepCheckpoint(const SessionPlan& plan, PartStore* store,
                                               Stage* stage, const CheckpointState& state,
                                               bool local) {
  CheckpointParts parts;
  parts.step = state.step;
  PutCheckpointHeader header;
  header.set_job_id(plan.plan().job_id());
  header.set_generation(plan.plan().generation());
  header.set_step(state.step);
  header.set_stage(plan.mine().stage());
  header.set_stages(plan.stages());
  const int replica = plan.local() ? plan.mine().replica() : 0;
  header.set_replica(replica);
  header.set_replicas(PuttingReplicas(plan.plan()));
  header.set_local(local);
  for (const PartSpec& spec : PartsOf(replica)) {
    ASSIGN_OR_RETURN(std::unique_ptr<ByteSource> bytes, StageFile::Make(stage, spec.takes));
    if (bytes == nullptr) continue;
    header.set_file(spec.file(parts));
    Add(store, {header, std::move(bytes), false, spec.put}, /*of_stage=*/true, &parts);
  }
  header.set_file("state.json");
  Add(store, {header, std::make_unique<MemorySource>(CheckpointStateJson(state))},
      /*of_stage=*/false, &parts);
  return parts;
}

absl::StatusOr<CheckpointState> LoadCheckpoint(const SessionPlan& plan, PartStore* store,
                                               Stage* stage) {
  if (!plan.plan().from_checkpoint()) return CheckpointState();
  const bool begins = plan.begins_phase();
  RETURN_IF_ERROR(Load(
      plan, store, begins ? "start" : "weights", 0, [](const StageTensor& t) { return t.weight(); },
      stage));
  const int64_t step = plan.plan().start_step();
  if (step == 0) return CheckpointState();
  if (begins) {
    // The text is the same; steps that the phase before skipped are none of this one's.
    ASSIGN_OR_RETURN(CheckpointState before, LoadState(plan, store, 0));
    before.skipped_steps = 0;
    return before;
  }
  const int replica = plan.local() ? plan.mine().replica() : 0;
  const auto all = [](const StageTensor& t) { return !t.weight(); };
  const auto own = [](const StageTensor& t) { return t.kind == StageTensor::kMoment; };
  const auto outer = [](const StageTensor& t) { return t.kind == StageTensor::kOuterMomentum; };
  if (replica == 0) {
    RETURN_IF_ERROR(Load(plan, store, "optimizer", 0, all, stage));
  } else {
    RETURN_IF_ERROR(Load(plan, store, "optimizer", replica, own, stage));
    RETURN_IF_ERROR(Load(plan, store, "optimizer", 0, outer, stage));
  }
  return LoadState(plan, store, replica);
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

}  // namespace isthmus::worker
