// Brings what changes in the cores to the store and back at the start. Owns what the disk refused
// (kept and tried again; records in memory are bounded by the core) and what was logged of each
// job's state. Thread: any; a thread of its own writes, every `every` and at once where somebody
// waits in Sync. Its mutex is never held together with that of Cores. Bounds: kDiskPatience.
#ifndef ISTHMUS_COORDINATOR_SERVICE_RECORDER_H_
#define ISTHMUS_COORDINATOR_SERVICE_RECORDER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "coordinator/service/cores.h"
#include "coordinator/store/checkpoint_store.h"
#include "coordinator/store/store.h"

namespace isthmus::coordinator {

constexpr absl::Duration kDiskPatience = absl::Seconds(10);  // of Sync

class Recorder {
 public:
  using Stored = std::function<void(const StoreBatch&)>;  // on the recorder's thread, no lock held

  Recorder(Cores* cores, Store* store, absl::Duration every, Stored stored)
      : cores_(cores), store_(store), every_(every), stored_(std::move(stored)) {}
  ~Recorder() { Stop(); }

  // What the store holds goes into the cores, as far as `checkpoints` agree. Before Start.
  absl::Status Load(CheckpointStore* checkpoints);
  void Start();
  void Stop();  // after a last write

  // Until what is true now is on disk. Unavailable: the disk does not take it, or Stop.
  absl::Status Sync();
  // Writes at once that job `id` is no more, before it is taken out of the cores.
  absl::Status Forget(const std::string& id);

 private:
  void Loop();
  bool Flush();
  absl::Status Write();  // of unwritten_
  StoreBatch Collect() ABSL_EXCLUSIVE_LOCKS_REQUIRED(cores_->mutex);
  void LogStates() ABSL_EXCLUSIVE_LOCKS_REQUIRED(cores_->mutex);

  Cores* const cores_;
  Store* const store_;
  const absl::Duration every_;
  const Stored stored_;

  // The thread's, and Load's before it.
  StoreBatch unwritten_;  // what the disk refused
  bool trouble_ = false;
  std::map<std::string, std::string> logged_;  // by job

  Mutex mutex_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t wanted_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t done_ ABSL_GUARDED_BY(mutex_) = 0;
  std::thread thread_;
};

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_SERVICE_RECORDER_H_
