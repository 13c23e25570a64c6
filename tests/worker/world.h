// A world of ranks as threads: a plan, links in memory, a checkpoint store, observers, and the
// sessions of all stages.
#ifndef ISTHMUS_TESTS_WORKER_WORLD_H_
#define ISTHMUS_TESTS_WORKER_WORLD_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "proto/plan.pb.h"
#include "tests/worker/fake_stage.h"
#include "worker/link/memory_link.h"
#include "worker/session.h"

namespace isthmus::worker {

struct WorldShape {
  int stages = 2;
  std::vector<int> replicas;  // samples of each batch that each takes; empty: one takes all
  int layers = 8;
  int hidden = 4;
  int heads = 1;
  int context = 3;
  int inputs = 0, classes = 0;  // not 0: an MLP, of real stages alone
  bool real_stages = false;     // not fakes, which have other parameters
  int vocabulary = 11;
  int steps = 6;
  int global_batch = 7;
  int micro_batch = 2;  // the last one of a step is smaller
  std::string schedule = "1f1b";
  int queue_limit = 4;
  std::string forward = "none";
  std::string backward = "none";
  bool epilogue = false;  // backward codes that part of a step alone
  bool tied_head = true;  // false: of real stages alone
  std::string tied = "none";
  std::string gradients = "none";  // of replicas
  int gradient_stages = -1;        // -1: all
  int buckets = 1;                 // of the gradients of replicas
  int local_steps = 1;
  int fragments = 1;
  int fragment_delay = 0;
  double fragment_mix = -1;  // the job's default
  bool subnetworks = false;  // a slice for each replica, in proportion to its samples
  int whole_layers = 0;
  bool look_ahead = false;  // with schedule "overlap"
  std::string optimizer = "adamw";
  int64_t optimizer_warmup = 0;  // of quantized_adam
  double outer_learning_rate = 0.7, outer_momentum = 0.9;
  bool check_buffers = false;
  int64_t buffer_memory_bytes = 1 << 20;
  int64_t buffer_disk_bytes = 0;
  int64_t checkpoint_every = 0;
  int64_t local_every = 0;
  int64_t eval_every = 0;
  int eval_samples = 5;
  uint64_t seed = 1;
  double learning_rate = 1e-3;
  bool constant_rate = false;  // neither warm-up nor decay
  int64_t step_ms = 60000;     // deadline of every wait
};

Plan MakePlan(const WorldShape& shape, uint64_t generation = 1, int64_t start_step = 0);

// What each replica reads, from step 0 on.
std::vector<SampleOrder> ReplicaOrders(const WorldShape& shape, const Corpus& corpus);
// The passes over these samples on one stage that is the whole model, without links: what a session
// is compared with. The sum of the losses of their tokens.
double RunPasses(Stage* stage, const Corpus& corpus, const std::vector<uint32_t>& ids,
                 const WorldShape& shape, double loss_scale);
// The optimiser's step after them.
void ApplyStep(Stage* stage, const RecipeSpec& recipe, int64_t step);

// Keeps checkpoints in memory as the coordinator does on disk; tensors of all stages are merged by
// line, or by `merge`.
class MemoryStore : public PartStore {
 public:
  MemoryStore() = default;
  MemoryStore(const MemoryStore& other);  // its checkpoints

  absl::StatusOr<KeptFile> Keep(const PutCheckpointHeader& header, const ByteSource& part) override;
  absl::Status Put(const PutCheckpointHeader& header, const ByteSource& part) override;
  absl::StatusOr<FetchedFiles> Fetch(const FetchCheckpointRequest& request) override;

  absl::StatusOr<std::string> FetchBytes(const FetchCheckpointRequest& request);  // one file

  std::vector<int64_t> complete_steps() const;
  std::map<std::string, std::string> kept() const;  // "step/stage/file" -> bytes
  void LoseReplica(int64_t step, int replica);      // as if a coordinator had known of none
  void set_put_error(absl::Status error);
  void set_keep_error(absl::Status error);
  // The next `times` Puts end with `error`.
  void FailPuts(int times, absl::Status error);
  // Put waits until it is open.
  void CloseGate();
  void OpenGate();

 private:
  struct Checkpoint {
    uint64_t generation = 0;
    int stages = 0;
    int replicas = 1;
    std::map<std::tuple<int, int, std::string>, std::string> files;  // by replica and stage
    // A further replica has moments and a state of its own.
    bool complete() const {
      return stages > 0 && files.size() == (3u + 2 * (replicas - 1)) * stages;
    }
  };

  mutable Mutex mutex_;
  CondVar gate_changed_;
  bool gate_closed_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status put_error_ ABSL_GUARDED_BY(mutex_);
  absl::Status keep_error_ ABSL_GUARDED_BY(mutex_);
  int failures_left_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::string> kept_ ABSL_GUARDED_BY(mutex_);
  std::map<int64_t, Checkpoint> checkpoints_ ABSL_GUARDED_BY(mutex_);
};

class RecordingObserver : public SessionObserver {
 public:
  void OnStep(const StepRecord& record) override;
  void OnEvent(const SessionEvent& event) override;
  void OnTrace(const StepTrace& trace) override;
  std::vector<StepRecord> records() const;
  std::vector<SessionEvent> events() const;
  std::vector<StepTrace> traces() const;
  std::vector<double> losses() const;  // of the records that have one

 private:
  mutable Mutex mutex_;
  std::vector<StepRecord> records_ ABSL_GUARDED_BY(mutex_);
  std::vector<SessionEvent> events_ ABSL_GUARDED_BY(mutex_);
  std::vector<StepTrace> traces_ ABSL_GUARDED_BY(mutex_);
};

class World {
 public:
  struct Options {
    LinkOpener* links = nullptr;   // the world's own hub if null
    MemoryStore* store = nullptr;  // the world's own if null
    PartSink* buddy = nullptr;     // of all ranks
    std::function<void()> cancel_copies;
    CodecStateStore* codec_states = nullptr;
    const Corpus* corpus = nullptr;                   // a FakeCorpus if null
    StageFactory make_stage;                          // fakes if null
    std::function<LaneFactory(int rank)> make_lanes;  // of each rank; null: none
    std::string spill_directory;
    absl::Duration hold_last;  // zero: the last checkpoint is tried once
  };
  explicit World(Plan plan);
  World(Plan plan, Options options);
  ~World();

  void Start();                      // all ranks, each on its thread
  std::vector<absl::Status> Join();  // of all ranks
  std::vector<absl::Status> Run() {
    Start();
    return Join();
  }

  const Plan& plan() const { return plan_; }
  Session& session(int stage) { return *sessions_[stage]; }
  RecordingObserver& observer(int stage) { return *observers_[stage]; }
  RecordingObserver& last() { return *observers_.back(); }
  MemoryStore& store() { return *o_.store; }
  // Of each step, of all replicas together.
  std::vector<double> Losses() const;
  // The tensors of a complete checkpoint, sorted by name: the same text however the layers were
  // cut.
  std::string Weights(int64_t step);

 private:
  const Plan plan_;
  MemoryLinkHub hub_;
  MemoryStore own_store_;
  std::unique_ptr<Corpus> own_corpus_;
  Options o_;
  std::vector<std::unique_ptr<RecordingObserver>> observers_;
  std::vector<std::unique_ptr<Session>> sessions_;
  std::vector<absl::Status> results_;
  std::vector<std::thread> threads_;
};

// What a world of fakes came to, all of whose ranks must end well.
struct Outcome {
  std::vector<double> losses;  // of each step, of all replicas together
  std::vector<double> norms;   // as rank 0 tells them
  std::string weights;
};
Outcome RunToTheEnd(const WorldShape& shape);

}  // namespace isthmus::worker

#endif  // ISTHMUS_TESTS_WORKER_WORLD_H_
