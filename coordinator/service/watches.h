// Streams a job's records and status to whoever watches it: old records from the store, then those
// of the memory as they come. Owns how many there are; where each one is stands on its caller's
// stack. Thread: any. Bounds: kMaxWatches, kWatchPage.
#ifndef ISTHMUS_COORDINATOR_SERVICE_WATCHES_H_
#define ISTHMUS_COORDINATOR_SERVICE_WATCHES_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/service/cores.h"
#include "coordinator/service/recorder.h"
#include "coordinator/store/store.h"

namespace isthmus::coordinator {

constexpr int kMaxWatches = 100;
constexpr int kWatchPage = 500;  // records in one reply

// Of `records`, at most `limit` of the store from *next_step on, those before `until_step` into the
// reply. True: there are no more of them. Steps may be missing: a crash lost their records.
bool TakeHistory(const std::vector<JobRecord>& records, int64_t until_step, int limit,
                 int64_t* next_step, WatchReply* reply);

class Watches {
 public:
  Watches(Cores* cores, Store* store, Recorder* recorder)
      : cores_(cores), store_(store), recorder_(recorder) {}

  // Calls `send` until it says false, the job has ended and all is said, or (not `follow`) what
  // there is is said. ResourceExhausted: kMaxWatches are served.
  absl::Status Watch(const WatchRequest& request,
                     const std::function<bool(const WatchReply&)>& send,
                     const Cancelled& cancelled);

 private:
  struct Cursor;
  absl::Status Stream(bool follow, const std::function<bool(const WatchReply&)>& send,
                      const Cancelled& cancelled, Cursor* cursor);
  // False: a page is full and there is more.
  static bool FromMemory(const Job& job, Cursor* cursor, WatchReply* reply);
  absl::Status FromStore(int64_t until_step, Cursor* cursor, WatchReply* reply);

  Cores* const cores_;
  Store* const store_;
  Recorder* const recorder_;
  std::atomic<int> count_{0};
};

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_SERVICE_WATCHES_H_
