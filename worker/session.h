// Session: everything that lives for one generation on one worker. Built, run, discarded; never
// reconfigured in place.
//
//   link -> inlet thread (check, decode) -> bounded queue -> compute thread (action list) ->
//   bounded queue -> outlet thread (encode) -> link
//
// Run() is the compute thread. Every wait ends by a deadline of the plan. A step commits on every
// rank or on none: the exchange of the gradient norm (votes to the one that decides, its decision
// back) is what the optimisers wait for. Thread: Run on one thread; RequestStop,
// RequestCheckpoint, Cancel and progress from any.
#ifndef ISTHMUS_WORKER_SESSION_H_
#define ISTHMUS_WORKER_SESSION_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/control.pb.h"
#include "proto/plan.pb.h"
#include "worker/checkpoint/part_store.h"
#include "worker/data/corpus.h"
#include "worker/device_lane.h"
#include "worker/link/codec_state_store.h"
#include "worker/link/link.h"
#include "worker/session_observer.h"
#include "worker/stage.h"

namespace isthmus::worker {

using StageFactory =
    std::function<absl::StatusOr<std::unique_ptr<Stage>>(const Plan& plan, int rank)>;

struct SessionOptions {
  Plan plan;
  int rank = 0;                 // index into plan.ranks
  std::string spill_directory;  // it exists; for the delta buffers' spill files; empty: none
  LinkOpener* links = nullptr;  // the pointers outlive the session
  PartStore* checkpoints = nullptr;
  PartSink* buddy = nullptr;  // that keeps copies of what this rank keeps; null: nobody does
  std::function<void()> cancel_copies;           // ends what is being put to `buddy`, now and later
  absl::Duration hold_last = absl::Minutes(30);  // the last checkpoint is tried again for so long
  CodecStateStore* codec_states = nullptr;       // null: none are kept
  SessionObserver* observer = nullptr;
  const Corpus* corpus = nullptr;  // needed on ranks that read data
  uint64_t data_contents = 0;      // DataContents of its files, for the checkpoints; 0: not known
  StageFactory make_stage;
  LaneFactory make_lane;  // of the stage's device; null: the CPU
};

class Session {
 public:
  virtual ~Session() = default;

  // Opens links, builds the stage, loads the checkpoint, runs the steps, writes checkpoints. OK:
  // all steps done, or stopped as asked. An error names who (node), where (link, step) and what to
  // do, and is reported as SessionEvent FAILED as well.
  virtual absl::Status Run() = 0;

  // Finish a step, checkpoint, end: all stages together (by the vote). A validation pass is left
  // first, on all stages, where the first stage was asked.
  virtual void RequestStop() = 0;
  virtual void
  RequestCheckpoint() = 0;  // write one after this step or the next, on all stages (by the vote)
  virtual void RequestTrace(int steps) = 0;   // tell the observer of so many, from the next one on
  virtual void Cancel(absl::Status why) = 0;  // end now
  virtual int64_t progress() const = 0;       // grows with every finished action
  virtual int64_t step() const = 0;           // committed steps
};

absl::StatusOr<std::unique_ptr<Session>> MakeSession(SessionOptions options);

}  // namespace isthmus::worker

#endif  // ISTHMUS_WORKER_SESSION_H_
