// Checkpoints on their way out: who reads now and who waits (FetchLine), and an end for a reader
// that takes nothing. Owns the line and how each call is ended. Thread: any; Tick by the time
// thread. Its mutex is never held together with that of Cores. Bounds: those of FetchLine,
// kFetchStall.
#ifndef ISTHMUS_COORDINATOR_SERVICE_FETCHES_H_
#define ISTHMUS_COORDINATOR_SERVICE_FETCHES_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "coordinator/core/fetch_line.h"
#include "coordinator/service/cores.h"
#include "coordinator/store/checkpoint_store.h"

namespace isthmus::coordinator {

constexpr absl::Duration kFetchStall = absl::Minutes(2);  // 8 MiB in flight at 0.6 Mbit/s

class Fetches {
 public:
  Fetches(Cores* cores, CheckpointStore* store) : cores_(cores), store_(store) {}
  void Stop();  // who waits is sent away

  // Whether the asker has on its own disk what it asks for: a part that is this checkpoint's.
  bool HasParts(const FetchCheckpointRequest& request) const;

  // An answer under way: a place in the line and a reader. Ends before Fetches.
  class Fetch {
   public:
    ~Fetch();
    int64_t step() const { return step_; }
    CheckpointReader* reader() { return reader_.get(); }
    void Progress();  // something went out

   private:
    friend class Fetches;
    Fetch(Fetches* owner, uint64_t ticket) : owner_(owner), ticket_(ticket) {}
    Fetches* const owner_;
    const uint64_t ticket_;
    int64_t step_ = 0;
    std::unique_ptr<CheckpointReader> reader_;
  };
  // Waits for its turn; `waits` is called once, with their number, if others are before it.
  // `cancel` ends the call: it is called where nothing goes out for kFetchStall.
  absl::StatusOr<std::unique_ptr<Fetch>> Open(const FetchCheckpointRequest& request,
                                              const Cancelled& cancelled,
                                              const std::function<void(int before)>& waits,
                                              std::function<void()> cancel);

  void Tick(absl::Time now);

 private:
  Cores* const cores_;
  CheckpointStore* const store_;
  Mutex mutex_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  FetchLine line_ ABSL_GUARDED_BY(mutex_){kFetchStall};
  std::map<uint64_t, std::function<void()>> cancels_ ABSL_GUARDED_BY(mutex_);  // by ticket
};

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_SERVICE_FETCHES_H_
