// The thread that moves delta buffers to a spill file and back while their owner goes on. Jobs are
// done one by one in the order given: a read sees every write that was given before it, which is
// what keeps a buffer that is read ahead from being older than the one just written (the race of
// the published code, which submits both at once).
//
// Thread: one owner; the jobs pass through two bounded queues. A file error ends in Job::status.
#ifndef ISTHMUS_COMPRESS_BUFFERS_SPILL_THREAD_H_
#define ISTHMUS_COMPRESS_BUFFERS_SPILL_THREAD_H_

#include <cstdint>
#include <memory>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/queue.h"
#include "compress/buffers/buffer_home.h"
#include "compress/buffers/spill_file.h"

namespace isthmus::compress {

class SpillThread {
 public:
  // Writes `buffer` to one slot (if any), then fills it from another (if any).
  struct Job {
    uint64_t ticket = 0;
    uint32_t write_id = 0, read_id = 0;  // whose buffers they are: the owner's
    int64_t write_slot = -1, read_slot = -1;
    HostBuffer buffer;
    absl::Status status;
  };

  // `most`: jobs under way at a time; the owner never gives more.
  SpillThread(std::unique_ptr<SpillFile> file, size_t most);
  ~SpillThread();  // drops what has not been begun

  void Give(Job job);
  // The oldest job that is done and not yet taken. NotFound: none is. With `wait`: DeadlineExceeded
  // after ten minutes, if one is under way.
  absl::StatusOr<Job> Take(bool wait);

  // At once, on the owner's thread: for slots that no job under way writes.
  absl::Status Read(int64_t slot, void* to) const { return file_->Read(slot, to); }

 private:
  void Run();

  const std::unique_ptr<SpillFile> file_;
  BoundedQueue<Job> given_, done_;
  std::thread thread_;
};

}  // namespace isthmus::compress

#endif  // ISTHMUS_COMPRESS_BUFFERS_SPILL_THREAD_H_
