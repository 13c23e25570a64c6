// The weights that phases of jobs start with: made of checkpoints in the store by the program
// isthmus-multilevel, in a child process, and put into the store as part of the checkpoint that
// ended the phase before. One job after the other, on a thread of its own. A job whose weights
// can't be made is paused with the words of the program.
//
// Thread: any. Its mutex may be taken under that of Cores, never the other way round. Bounds: an
// entry a job that waits.
#ifndef ISTHMUS_COORDINATOR_SERVICE_PHASE_WEIGHTS_H_
#define ISTHMUS_COORDINATOR_SERVICE_PHASE_WEIGHTS_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "coordinator/service/cores.h"
#include "coordinator/service/resume.h"
#include "coordinator/store/checkpoint_store.h"

namespace isthmus::coordinator {

struct MultilevelCall {
  std::vector<std::string> words;  // behind the program's name
  std::string output_file;         // what it prints goes there
  int64_t bytes = 0;               // of the models that it reads and writes, for its deadline
};

// A program of so many bytes is ended after that: what starts it, and a slow disk and core.
absl::Duration MultilevelPatience(int64_t bytes);

// Runs isthmus-multilevel. Cancelled: it was ended because `cancelled` said so. DeadlineExceeded:
// because it took too long. Else its words, where it fails.
using RunMultilevel = std::function<absl::Status(const MultilevelCall&, const Cancelled&)>;
// The program beside this one, else on PATH.
absl::Status RunMultilevelProgram(const MultilevelCall& call, const Cancelled& cancelled);
// This one.
absl::Status RunOperator(const std::string& program, const MultilevelCall& call,
                         absl::Duration patience, const Cancelled& cancelled);

class PhaseWeights {
 public:
  PhaseWeights(Cores* cores, CheckpointStore* store, RunMultilevel run)
      : cores_(cores), store_(store), run_(std::move(run)) {}
  void Start();
  void Stop();  // ends the program, and the thread

  // Whether what `start`, which begins a phase, starts with is there. If it is not, it is made.
  bool Ready(const StartRequest& start);
  // Some became ready since the last call.
  bool TakeNews();
  // Jobs that no longer wait, or were stopped or removed: what is made for them ends. One that asks
  // again is looked at again.
  void ForgetAllBut(const std::vector<std::string>& pending);

 private:
  struct Wanted {
    JobSpec spec;
    int phase = 0;
    int64_t step = 0;
    uint64_t generation = 0;  // of the checkpoint of `step`
    std::string made;         // how, in words
    bool ready = false;

    bool Is(const Wanted& other) const {
      return step == other.step && generation == other.generation && made == other.made;
    }
  };
  void Loop();
  bool IsWanted(const std::string& job_id, const Wanted& wanted);
  absl::Status Make(const std::string& job_id, const Wanted& wanted);
  absl::Status MakeIn(const std::string& dir, const std::string& job_id, const Wanted& wanted);
  absl::Status WriteModel(const std::string& job_id, int64_t step, const ModelSpec& model,
                          const std::string& dir, const Cancelled& cancelled);

  Cores* const cores_;
  CheckpointStore* const store_;
  const RunMultilevel run_;
  Mutex mutex_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool news_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<std::string, Wanted> wanted_ ABSL_GUARDED_BY(mutex_);  // by job
  std::deque<std::string> queue_ ABSL_GUARDED_BY(mutex_);         // jobs
  std::thread thread_;
};

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_SERVICE_PHASE_WEIGHTS_H_
