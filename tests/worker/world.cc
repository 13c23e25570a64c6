#include "tests/worker/world.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/safetensors.h"
#include "base/status.h"
#include "proto/codec/codec_pair.h"
#include "proto/codec/codec_text.h"
#include "proto/job/job_defaults.h"
#include "proto/model/family.h"
#include "proto/model/recipe.h"
#include "proto/plan/actions.h"
#include "proto/plan/deal.h"
#include "proto/plan/groups.h"

namespace isthmus::worker {
namespace {

JobSpec MakeJob(const WorldShape& s) {
  JobSpec job;
  job.set_name("world");
  job.set_seed(s.seed);
  ModelSpec* m = job.mutable_model();
  m->set_layers(s.layers);
  m->set_hidden(s.hidden);
  if (s.inputs > 0) {
    m->set_family(kMlp);
    m->set_inputs(s.inputs);
    m->set_classes(s.classes);
  } else {
    m->set_heads(s.heads);
    m->set_context(s.context);
    m->set_vocabulary(s.vocabulary);
    m->set_tied(s.tied_head);
  }
  job.mutable_data()->set_path("text");
  RecipeSpec* r = job.mutable_recipe();
  r->set_steps(s.steps);
  r->set_global_batch(s.global_batch);
  r->set_micro_batch(s.micro_batch);
  r->set_learning_rate(s.learning_rate);
  if (s.constant_rate) {
    r->set_schedule("constant");
    r->set_warmup_steps(0);
  }
  r->set_optimizer(s.optimizer);
  if (s.optimizer_warmup > 0) r->set_optimizer_warmup(s.optimizer_warmup);
  r->set_eval_every(s.eval_every);
  r->set_eval_samples(s.eval_samples);
  job.mutable_strategy()->set_stages(s.stages);
  job.mutable_strategy()->set_schedule(s.schedule);
  job.mutable_strategy()->set_queue_limit(s.queue_limit);
  job.mutable_strategy()->set_look_ahead(s.look_ahead);
  job.mutable_strategy()->set_local_steps(s.local_steps);
  job.mutable_strategy()->set_outer_learning_rate(s.outer_learning_rate);
  job.mutable_strategy()->set_outer_momentum(s.outer_momentum);
  job.mutable_strategy()->set_fragments(s.fragments);
  job.mutable_strategy()->set_fragment_delay(s.fragment_delay);
  if (s.fragment_mix >= 0) job.mutable_strategy()->set_fragment_mix(s.fragment_mix);
  CompressionSpec* c = job.mutable_compression();
  c->set_forward(s.forward);
  c->set_backward(s.backward);
  c->set_backward_when(s.epilogue ? "epilogue" : "all");
  c->set_tied(s.tied);
  if (s.gradient_stages >= 0) c->set_gradient_stages(s.gradient_stages);
  c->set_check_buffers(s.check_buffers);
  c->set_buffer_memory_bytes(s.buffer_memory_bytes);
  c->set_buffer_disk_bytes(s.buffer_disk_bytes);
  job.mutable_checkpoint()->set_every(s.checkpoint_every);
  job.mutable_checkpoint()->set_local(s.local_every);
  FillDefaults(&job);
  return job;
}

LinkPlan MakeLink(const WorldShape& s, const JobSpec& job, const std::string& id, int lower,
                  int upper) {
  LinkPlan link;
  link.set_id(id);
  link.set_kind(id[0] == 'b' ? LinkPlan::BOUNDARY : LinkPlan::GROUP);
  link.set_lower(lower);
  link.set_upper(upper);
  link.set_window_bytes(1 << 20);
  link.set_chunk_bytes(64 << 10);
  link.set_queue_limit(link.kind() == LinkPlan::GROUP
                           ? std::max(4 + std::max(s.buckets, s.fragments), s.queue_limit)
                           : s.queue_limit);
  if (link.kind() == LinkPlan::GROUP) return link;
  *link.mutable_forward() = ParseCodec(job.compression().forward()).value();
  *link.mutable_backward() =
      BindBackward(link.forward(), ParseCodec(job.compression().backward()).value()).value();
  link.set_epilogue(s.epilogue);
  *link.mutable_evaluation() = ParseCodec(job.compression().evaluation()).value();
  return link;
}

void DealSlices(const WorldShape& s, Plan* plan) {
  DealPlan* deal = plan->mutable_deal();
  deal->set_seed(s.seed);
  deal->set_whole_layers(s.whole_layers);
  for (int r = 0; r < plan->replicas_size(); ++r) {
    plan->mutable_replicas(r)->set_slice(r);
    deal->add_shares(static_cast<double>(s.replicas[r]) / s.global_batch);
  }
}

}  // namespace

Plan MakePlan(const WorldShape& s, uint64_t generation, int64_t start_step) {
  Plan plan;
  plan.set_job_id("job-world");
  plan.set_generation(generation);
  *plan.mutable_job() = MakeJob(s);
  plan.set_start_step(start_step);
  plan.set_from_checkpoint(start_step > 0);
  Deadlines* d = plan.mutable_deadlines();
  d->set_open_ms(std::min<int64_t>(s.step_ms, 20000));
  d->set_first_step_ms(s.step_ms);
  d->set_step_ms(s.step_ms);
  d->set_drain_ms(s.step_ms);
  const int replicas = std::max<int>(1, s.replicas.size());
  for (int samples : s.replicas) plan.add_replicas()->set_samples(samples);
  if (s.subnetworks) DealSlices(s, &plan);
  for (int d = 0; d < replicas; ++d) {
    for (int i = 0; i < s.stages; ++i) {
      const int r = plan.ranks_size();
      RankPlan* rank = plan.add_ranks();
      rank->set_stage(i);
      rank->set_replica(d);
      rank->set_node_id(absl::StrCat("id-", r));
      rank->set_node_name(absl::StrCat("node-", r));
      rank->set_address(absl::StrCat("10.0.0.", r + 1, ":7071"));
      rank->set_first_layer(s.layers * i / s.stages);
      rank->set_end_layer(s.layers * (i + 1) / s.stages);
      const std::string of = replicas > 1 ? absl::StrCat(".", d) : "";
      if (i > 0)
        *plan.add_links() = MakeLink(s, plan.job(), absl::StrCat("b", i - 1, of), r - 1, r);
    }
  }
  for (int a = 0; replicas > 1 && a < plan.ranks_size(); ++a) {
    for (int b = a + 1; b < plan.ranks_size(); ++b)
      *plan.add_links() = MakeLink(s, plan.job(), absl::StrCat("g", a, "-", b), a, b);
  }
  if (s.stages > 1 && replicas == 1 && s.tied_head)
    *plan.add_links() = MakeLink(s, plan.job(), "tied", 0, s.stages - 1);
  AddTiedGroup(ParseCodec(plan.job().compression().tied()).value(), &plan);
  std::vector<LayerTensors> layers;
  for (int i = 0; i < s.stages; ++i)
    layers.push_back(s.real_stages ? OwnShapes(plan, i) : FakeLayers(plan, i));
  const CodecSpec gradients = ParseCodec(s.gradients).value();
  AddGradientGroups(gradients, gradients, layers, std::vector<int>(s.stages, s.buckets), &plan);
  if (s.subnetworks) AddSliceGroups(gradients, &plan);
  const absl::Status written = WriteActions({}, &plan);
  if (!written.ok()) Fatal(__FILE__, __LINE__, written.message());
  return plan;
}

std::vector<SampleOrder> ReplicaOrders(const WorldShape& shape, const Corpus& corpus) {
  std::vector<SampleOrder> orders;
  int64_t begin = 0;
  for (int samples : shape.replicas) {
    orders.emplace_back(shape.seed, corpus.train_samples(), shape.global_batch, 0, DataPosition(),
                        SampleOrder::kMostShuffled, Share{begin, begin + samples});
    begin += samples;
  }
  return orders;
}

double RunPasses(Stage* stage, const Corpus& corpus, const std::vector<uint32_t>& ids,
                 const WorldShape& shape, double loss_scale) {
  double loss = 0;
  for (size_t at = 0; at < ids.size(); at += shape.micro_batch) {
    MicroBatch batch;
    batch.samples = std::min<size_t>(shape.micro_batch, ids.size() - at);
    batch.positions = shape.context;
    batch.loss_scale = loss_scale;
    const int64_t inputs = shape.inputs > 0 ? shape.inputs : batch.positions;
    std::vector<uint32_t> in(batch.samples * inputs), out(batch.samples * batch.positions);
    for (int64_t i = 0; i < batch.samples; ++i) {
      const absl::Status read =
          corpus.Read(ids[at + i], &in[i * inputs], &out[i * batch.positions]);
      if (!read.ok()) Fatal(__FILE__, __LINE__, read.message());
    }
    batch.tokens = in;
    batch.targets = out;
    loss += stage->Forward(batch, {})->loss_sum;
    if (const absl::Status back = stage->Backward(0, {}).status(); !back.ok())
      Fatal(__FILE__, __LINE__, back.message());
  }
  return loss;
}

void ApplyStep(Stage* stage, const RecipeSpec& recipe, int64_t step) {
  OptimizerStep update;
  update.step = step + 1;
  update.learning_rate = LearningRate(recipe, step);
  update.gradient_scale = ClipScale(recipe.clip_norm(), std::sqrt(stage->Norm().sum_squares));
  if (const absl::Status applied = stage->Apply(update); !applied.ok())
    Fatal(__FILE__, __LINE__, applied.message());
}

namespace {

// As the coordinator merges: by name, only what is asked for.
absl::StatusOr<std::string> MergeSafetensors(const std::vector<std::string>& files,
                                             const std::vector<std::string>& names) {
  const std::set<std::string> wanted(names.begin(), names.end());
  std::map<std::string, SafetensorsItem> items;
  for (const std::string& file : files) {
    ASSIGN_OR_RETURN(const auto entries, ParseSafetensors(file));
    for (const auto& [name, entry] : entries) {
      if (wanted.empty() || wanted.count(name) > 0)
        items.emplace(name, SafetensorsItem{name, entry.dtype, entry.shape, entry.data});
    }
  }
  std::vector<SafetensorsItem> list;
  for (auto& [name, item] : items) list.push_back(item);
  return WriteSafetensors(std::move(list), {{"format", "pt"}});
}

}  // namespace

MemoryStore::MemoryStore(const MemoryStore& other) {
  MutexLock theirs(&other.mutex_);
  MutexLock mine(&mutex_);
  checkpoints_ = other.checkpoints_;
}

absl::Status MemoryStore::Put(const PutCheckpointHeader& header, const ByteSource& part) {
  {
    MutexLock lock(&mutex_);
    while (gate_closed_) gate_changed_.Wait(&mutex_);
    if (failures_left_ > 0) {
      --failures_left_;
      return failure_;
    }
    RETURN_IF_ERROR(put_error_);
  }
  ASSIGN_OR_RETURN(const std::string bytes, ReadAll(part, header.file_bytes()));
  if (Hash64(bytes) != header.checksum()) return absl::DataLossError("its checksum is another");
  MutexLock lock(&mutex_);
  Checkpoint& checkpoint = checkpoints_[header.step()];
  if (checkpoint.generation != header.generation())
    checkpoint = Checkpoint();  // another cut of the layers
  checkpoint.generation = header.generation();
  checkpoint.stages = header.stages();
  checkpoint.replicas = std::max(1, header.replicas());
  checkpoint.files[{header.replica(), header.stage(), header.file()}] = bytes;
  return absl::OkStatus();
}

absl::StatusOr<KeptFile> MemoryStore::Keep(const PutCheckpointHeader& header,
                                           const ByteSource& part) {
  ASSIGN_OR_RETURN(std::string bytes, ReadAll(part, header.file_bytes()));
  MutexLock lock(&mutex_);
  RETURN_IF_ERROR(keep_error_);
  kept_[absl::StrCat(header.step(), "/", header.stage(), "/", header.file())] = bytes;
  const uint64_t checksum = Hash64(bytes);
  return KeptFile{checksum, std::make_unique<MemorySource>(std::move(bytes))};
}

std::map<std::string, std::string> MemoryStore::kept() const {
  MutexLock lock(&mutex_);
  return kept_;
}

void MemoryStore::FailPuts(int times, absl::Status error) {
  MutexLock lock(&mutex_);
  failures_left_ = times;
  failure_ = std::move(error);
}

absl::StatusOr<FetchedFiles> MemoryStore::Fetch(const FetchCheckpointRequest& request) {
  MutexLock lock(&mutex_);
  const auto found = checkpoints_.find(request.step());
  if (found == checkpoints_.end() || !found->second.complete())
    return absl::NotFoundError("no such checkpoint");
  const std::string file =
      request.what() == "state" ? "state.json" : request.what() + ".safetensors";
  std::vector<std::string> files;
  const auto take = [&](int replica) {
    for (const auto& [key, bytes] : found->second.files) {
      if (std::get<0>(key) == replica && std::get<2>(key) == file) files.push_back(bytes);
    }
  };
  if (request.what() != "weights" && request.replica() > 0) take(request.replica());
  take(0);
  std::string answer = files.front();
  if (request.what() != "state") {
    ASSIGN_OR_RETURN(answer,
                     MergeSafetensors(files, {request.tensors().begin(), request.tensors().end()}));
  }
  FetchedFiles fetched;
  fetched.push_back(std::make_unique<MemorySource>(std::move(answer)));
  return fetched;
}

absl::StatusOr<std::string> MemoryStore::FetchBytes(const FetchCheckpointRequest& request) {
  ASSIGN_OR_RETURN(const FetchedFiles files, Fetch(request));
  return ReadAll(*files.front(), int64_t{1} << 40);
}

std::vector<int64_t> MemoryStore::complete_steps() const {
  MutexLock lock(&mutex_);
  std::vector<int64_t> steps;
  for (const auto& [step, checkpoint] : checkpoints_) {
    if (checkpoint.complete()) steps.push_back(step);
  }
  return steps;
}

void MemoryStore::set_put_error(absl::Status error) {
  MutexLock lock(&mutex_);
  put_error_ = std::move(error);
}

void MemoryStore::LoseReplica(int64_t step, int replica) {
  MutexLock lock(&mutex_);
  Checkpoint& checkpoint = checkpoints_[step];
  for (auto it = checkpoint.files.begin(); it != checkpoint.files.end();)
    it = std::get<0>(it->first) == replica ? checkpoint.files.erase(it) : std::next(it);
  --checkpoint.replicas;
}

void MemoryStore::set_keep_error(absl::Status error) {
  MutexLock lock(&mutex_);
  keep_error_ = std::move(error);
}

void MemoryStore::CloseGate() {
  MutexLock lock(&mutex_);
  gate_closed_ = true;
}

void MemoryStore::OpenGate() {
  MutexLock lock(&mutex_);
  gate_closed_ = false;
  gate_changed_.SignalAll();
}

void RecordingObserver::OnStep(const StepRecord& record) {
  MutexLock lock(&mutex_);
  records_.push_back(record);
}

void RecordingObserver::OnEvent(const SessionEvent& event) {
  MutexLock lock(&mutex_);
  events_.push_back(event);
}

void RecordingObserver::OnTrace(const StepTrace& trace) {
  MutexLock lock(&mutex_);
  traces_.push_back(trace);
}

std::vector<StepTrace> RecordingObserver::traces() const {
  MutexLock lock(&mutex_);
  return traces_;
}

std::vector<StepRecord> RecordingObserver::records() const {
  MutexLock lock(&mutex_);
  return records_;
}

std::vector<SessionEvent> RecordingObserver::events() const {
  MutexLock lock(&mutex_);
  return events_;
}

std::vector<double> RecordingObserver::losses() const {
  std::vector<double> losses;
  for (const StepRecord& r : records()) {
    if (r.has_loss()) losses.push_back(r.loss());
  }
  return losses;
}

World::World(Plan plan) : World(std::move(plan), Options()) {}

World::World(Plan plan, Options options) : plan_(std::move(plan)), o_(std::move(options)) {
  const ModelSpec& m = plan_.job().model();
  own_corpus_ = std::make_unique<FakeCorpus>(23, 9, m.context(), m.vocabulary());
  if (o_.links == nullptr) o_.links = &hub_;
  if (o_.store == nullptr) o_.store = &own_store_;
  if (o_.corpus == nullptr) o_.corpus = own_corpus_.get();
  if (o_.make_stage == nullptr) o_.make_stage = FakeStages();
  const int ranks = plan_.ranks_size();
  for (int i = 0; i < ranks; ++i) {
    observers_.push_back(std::make_unique<RecordingObserver>());
    SessionOptions session;
    session.plan = plan_;
    session.rank = i;
    session.spill_directory = o_.spill_directory;
    session.links = o_.links;
    session.checkpoints = o_.store;
    session.hold_last = o_.hold_last;
    session.buddy = o_.buddy;
    session.cancel_copies = o_.cancel_copies;
    session.codec_states = o_.codec_states;
    session.observer = observers_.back().get();
    session.corpus = ReadsData(plan_, i) ? o_.corpus : nullptr;
    session.make_stage = o_.make_stage;
    if (o_.make_lanes != nullptr) session.make_lane = o_.make_lanes(i);
    absl::StatusOr<std::unique_ptr<Session>> made = MakeSession(std::move(session));
    if (!made.ok()) Fatal(__FILE__, __LINE__, made.status().message());
    sessions_.push_back(*std::move(made));
  }
  results_.resize(ranks);
}

World::~World() { Join(); }

void World::Start() {
  for (size_t i = 0; i < sessions_.size(); ++i) {
    threads_.emplace_back([this, i] { results_[i] = sessions_[i]->Run(); });
  }
}

std::vector<absl::Status> World::Join() {
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  return results_;
}

std::vector<double> World::Losses() const {
  std::vector<double> losses(plan_.job().recipe().steps());
  for (const auto& observer : observers_) {
    for (const StepRecord& record : observer->records()) {
      if (record.has_loss()) losses[record.step()] += record.loss();
    }
  }
  return losses;
}

std::string World::Weights(int64_t step) {
  FetchCheckpointRequest request;
  request.set_step(step);
  request.set_what("weights");
  const absl::StatusOr<std::string> weights = store().FetchBytes(request);
  return weights.ok() ? *weights : std::string(weights.status().message());
}

Outcome RunToTheEnd(const WorldShape& shape) {
  World world(MakePlan(shape));
  for (const absl::Status& status : world.Run()) {
    if (!status.ok()) Fatal(__FILE__, __LINE__, status.message());
  }
  Outcome outcome;
  outcome.losses = world.Losses();
  for (const StepRecord& r : world.observer(0).records())
    outcome.norms.push_back(r.gradient_norm());
  outcome.weights = world.Weights(shape.steps);
  return outcome;
}

}  // namespace isthmus::worker
