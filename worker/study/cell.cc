#include "worker/study/cell.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/mutex.h"
#include "base/safetensors.h"
#include "base/status.h"
#include "proto/codec/codec_pair.h"
#include "proto/codec/codec_text.h"
#include "proto/job/job_defaults.h"
#include "proto/model/family.h"
#include "proto/plan/actions.h"
#include "proto/plan/groups.h"
#include "worker/link/memory_link.h"

namespace isthmus::study {
namespace {

constexpr int64_t kWaitMs = 600000;  // stages share the machine: only a dead thread waits so long
constexpr int64_t kWindowBytes = int64_t{64} << 20;
constexpr int64_t kChunkBytes = 256 << 10;

// Keeps the weights of the last checkpoint.
class WeightStore : public worker::PartStore {
 public:
  // Nothing is kept but what is put: a study's models are small.
  absl::StatusOr<worker::KeptFile> Keep(const PutCheckpointHeader& header,
                                        const ByteSource& part) override {
    ASSIGN_OR_RETURN(std::string bytes, ReadAll(part, header.file_bytes()));
    const uint64_t checksum = Hash64(bytes);
    return worker::KeptFile{checksum, std::make_unique<MemorySource>(std::move(bytes))};
  }
  absl::Status Put(const PutCheckpointHeader& header, const ByteSource& part) override {
    if (header.file() != "weights.safetensors") return absl::OkStatus();
    ASSIGN_OR_RETURN(std::string bytes, ReadAll(part, header.file_bytes()));
    MutexLock lock(&mutex_);
    files_[header.stage()] = std::move(bytes);
    return absl::OkStatus();
  }
  absl::StatusOr<worker::FetchedFiles> Fetch(const FetchCheckpointRequest& request) override {
    return absl::NotFoundError("a study starts from the initial weights");
  }
  std::vector<std::string> files() const {
    MutexLock lock(&mutex_);
    std::vector<std::string> files;
    for (const auto& [stage, file] : files_) files.push_back(file);
    return files;
  }

 private:
  mutable Mutex mutex_;
  std::map<int, std::string> files_ ABSL_GUARDED_BY(mutex_);
};

// The figures of one stage. Its session calls it, and the cell reads it after the end.
class StageObserver : public worker::SessionObserver {
 public:
  explicit StageObserver(const StepWatcher& watch) : watch_(watch) {}

  void OnStep(const StepRecord& r) override {
    ++steps;
    encode_s += r.encode_s();
    decode_s += r.decode_s();
    for (const DirectionBytes& d : r.directions()) {
      DirectionBytes& sum = directions[{d.link_id(), d.forward()}];
      sum.set_raw_bytes(sum.raw_bytes() + d.raw_bytes());
      sum.set_wire_bytes(sum.wire_bytes() + d.wire_bytes());
    }
    if (!r.has_loss()) return;
    losses.push_back(r.loss());
    if (watch_) watch_(r.step() + 1, r.loss());
  }
  void OnEvent(const SessionEvent& event) override {}
  void OnTrace(const StepTrace& trace) override {}

  int64_t steps = 0;
  double encode_s = 0, decode_s = 0;
  std::map<std::pair<std::string, bool>, DirectionBytes> directions;  // by link and forward
  std::vector<double> losses;

 private:
  const StepWatcher& watch_;
};

LinkPlan MakeLink(const JobSpec& job, const std::string& id, int lower, int upper) {
  LinkPlan link;
  link.set_id(id);
  link.set_kind(id == kTiedGroup ? LinkPlan::GROUP : LinkPlan::BOUNDARY);
  link.set_lower(lower);
  link.set_upper(upper);
  link.set_window_bytes(kWindowBytes);
  link.set_chunk_bytes(kChunkBytes);
  link.set_queue_limit(job.strategy().queue_limit());
  return link;
}

absl::Status CheckJob(const JobSpec& job) {
  if (job.strategy().stages() < 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("strategy.stages: ", job.strategy().stages(),
                     ": a study compares codecs on boundaries, so the job needs 2 stages or more; "
                     "set it or pass --stages"));
  }
  if (IsMlp(job.model())) {
    return absl::InvalidArgumentError(
        "model.family: 'mlp': a study is of token ids and their codecs; it must be gpt2");
  }
  if (!job.model().init_from().empty()) {
    return absl::InvalidArgumentError(
        "model.init_from: a study starts from random weights; leave it out");
  }
  if (!job.phases().empty()) {
    return absl::InvalidArgumentError(
        "phases: a study compares codecs on one model; leave them out and set recipe.steps");
  }
  return absl::OkStatus();
}

absl::Status SetCell(const Cell& cell, const std::string& why, JobSpec* job) {
  if (!why.empty()) return absl::InvalidArgumentError(why);
  job->set_seed(cell.seed);
  job->mutable_checkpoint()->set_every(0);
  job->mutable_recipe()->set_eval_every(0);
  job->mutable_recipe()->set_eval_samples(0);
  CompressionSpec* c = job->mutable_compression();
  c->clear_boundaries();
  c->set_forward(FormatCodec(cell.setting.forward));
  c->set_backward(FormatCodec(cell.setting.backward));
  c->set_evaluation("none");
  if (c->tied() == "auto") c->set_tied("none");  // boundaries are what is compared
  return absl::OkStatus();
}

std::vector<int> LayersOf(const JobSpec& job) {
  const auto& given = job.strategy().layers_per_stage();
  if (!given.empty()) return {given.begin(), given.end()};
  const int stages = job.strategy().stages(), layers = job.model().layers();
  std::vector<int> counts;
  for (int i = 0; i < stages; ++i)
    counts.push_back(layers * (i + 1) / stages - layers * i / stages);
  return counts;
}

void AddLinks(const Cell& cell, int stages, Plan* plan) {
  for (int b = 0; b + 1 < stages; ++b) {
    LinkPlan* link = plan->add_links();
    *link = MakeLink(plan->job(), absl::StrCat("b", b), b, b + 1);
    if (!HasCodec(cell, b, stages - 1)) continue;
    *link->mutable_forward() = cell.setting.forward;
    *link->mutable_backward() =
        BindBackward(cell.setting.forward, cell.setting.backward).value();  // no Obstacle
  }
  if (IsTied(plan->job().model()))
    *plan->add_links() = MakeLink(plan->job(), kTiedGroup, 0, stages - 1);
}

using Observers = std::vector<std::unique_ptr<StageObserver>>;

// A stage's encoders are its directions out, its decoders those in; their seconds are shared evenly
// among them.
FrameCost CostOf(const StageObserver& from, const StageObserver& to, const std::string& id,
                 bool forward, int out_of, int into, double micros) {
  FrameCost cost;
  const auto found = from.directions.find({id, forward});
  if (found != from.directions.end())
    cost.wire_bytes = static_cast<double>(found->second.wire_bytes()) / micros;
  cost.encode_s = from.encode_s / out_of / micros;
  cost.decode_s = to.decode_s / into / micros;
  return cost;
}

void FillWire(const Observers& observers, int64_t micros_of_step, CellResult* result) {
  const int stages = static_cast<int>(observers.size());
  const double steps = static_cast<double>(std::max<int64_t>(1, result->steps));
  const double micros = steps * static_cast<double>(micros_of_step);
  const auto links = [&](int stage) { return stage == 0 || stage + 1 == stages ? 1 : 2; };
  for (int b = 0; b + 1 < stages; ++b) {
    const std::string id = absl::StrCat("b", b);
    const StageObserver &lower = *observers[b], &upper = *observers[b + 1];
    result->wire.up.push_back(CostOf(lower, upper, id, true, links(b), links(b + 1), micros));
    result->wire.down.push_back(CostOf(upper, lower, id, false, links(b + 1), links(b), micros));
  }
  for (const auto& observer : observers) {
    result->encode_s += observer->encode_s / steps;
    result->decode_s += observer->decode_s / steps;
    for (const auto& [key, bytes] : observer->directions) {
      if (key.first == kTiedGroup) {
        result->wire.tied_bytes =
            std::max(result->wire.tied_bytes, static_cast<double>(bytes.wire_bytes()) / steps);
        continue;
      }
      result->raw_bytes += bytes.raw_bytes();
      result->wire_bytes += bytes.wire_bytes();
    }
  }
}

double MeanOfLastTenth(const std::vector<double>& losses) {
  const size_t count = std::max<size_t>(1, losses.size() / 10);
  double sum = 0;
  for (size_t i = losses.size() - std::min(count, losses.size()); i < losses.size(); ++i)
    sum += losses[i];
  return sum / static_cast<double>(count);
}

absl::Status RunSessions(const std::vector<std::unique_ptr<worker::Session>>& sessions) {
  std::vector<absl::Status> results(sessions.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < sessions.size(); ++i)
    threads.emplace_back([&, i] { results[i] = sessions[i]->Run(); });
  for (std::thread& thread : threads) thread.join();
  // The others report the stage that failed, but not always with its code.
  for (const absl::Status& status : results) {
    if (absl::IsResourceExhausted(status)) return status;
  }
  for (const absl::Status& status : results) RETURN_IF_ERROR(status);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Plan> MakeCellPlan(const JobSpec& base, const Cell& cell, int64_t train_samples) {
  JobSpec job = base;
  const int stages = job.strategy().stages();
  RETURN_IF_ERROR(CheckJob(job));
  RETURN_IF_ERROR(SetCell(cell, Obstacle(cell, stages - 1), &job));
  RETURN_IF_ERROR(ValidateJob(job));
  Plan plan;
  plan.set_job_id(absl::StrCat(job.name(), "-study"));
  plan.set_generation(1);
  *plan.mutable_job() = job;
  plan.set_train_samples(train_samples);
  Deadlines* d = plan.mutable_deadlines();
  d->set_open_ms(kWaitMs);
  d->set_first_step_ms(kWaitMs);
  d->set_step_ms(kWaitMs);
  d->set_drain_ms(kWaitMs);
  const std::vector<int> layers = LayersOf(job);
  int next = 0;
  for (int i = 0; i < stages; ++i) {
    RankPlan* stage = plan.add_ranks();
    stage->set_stage(i);
    stage->set_node_id(absl::StrCat("thread-", i));
    stage->set_first_layer(next);
    stage->set_end_layer(next += layers[i]);
  }
  AddLinks(cell, stages, &plan);
  ASSIGN_OR_RETURN(const CodecSpec tied, ParseCodec(job.compression().tied()));
  AddTiedGroup(tied, &plan);
  LimitQueues(&plan);
  RETURN_IF_ERROR(WriteActions({}, &plan));
  return plan;
}

absl::StatusOr<std::string> MergeWeights(const std::vector<std::string>& files) {
  std::vector<SafetensorsItem> items;
  for (const std::string& file : files) {
    ASSIGN_OR_RETURN(const auto entries, ParseSafetensors(file));
    for (const auto& [name, entry] : entries)
      items.push_back({name, entry.dtype, entry.shape, entry.data});
  }
  return WriteSafetensors(std::move(items), {});
}

absl::StatusOr<CellResult> RunCell(const Plan& plan, const worker::Corpus& corpus,
                                   const worker::StageFactory& make_stage,
                                   const StepWatcher& watch) {
  worker::MemoryLinkHub hub;
  WeightStore store;
  Observers observers;
  std::vector<std::unique_ptr<worker::Session>> sessions;
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < plan.ranks_size(); ++i) {
    observers.push_back(std::make_unique<StageObserver>(watch));
    worker::SessionOptions options;
    options.plan = plan;
    options.rank = i;
    options.links = &hub;
    options.checkpoints = &store;
    options.observer = observers.back().get();
    options.corpus = &corpus;
    options.make_stage = make_stage;
    ASSIGN_OR_RETURN(std::unique_ptr<worker::Session> session, MakeSession(std::move(options)));
    sessions.push_back(std::move(session));
  }
  RETURN_IF_ERROR(RunSessions(sessions));
  CellResult result;
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const StageObserver& last = *observers.back();
  result.steps = last.steps;
  result.loss = MeanOfLastTenth(last.losses);
  const RecipeSpec& r = plan.job().recipe();
  FillWire(observers, (r.global_batch() + r.micro_batch() - 1) / r.micro_batch(), &result);
  result.weights = store.files();
  return result;
}

}  // namespace isthmus::study
