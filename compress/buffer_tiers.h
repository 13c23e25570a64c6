// Where the delta buffers of one end of a boundary lie: in memory, or in a spill file, to and from
// which a thread of their own moves them (spill_thread.h).
//
// Memory holds `memory_entries` buffers and one more for the exchange, whatever is on its way among
// them: when all are in use, the owner waits for the oldest job. What leaves memory is what was
// used last, since each sample comes once an epoch and the others come before it. Fetch always
// gives the content that was there last, so tiers change the speed and nothing else.
//
// Thread: one owner. A file error, also of a job in the background, is the result of the next call
// and of all later ones: a buffer is lost then.
#ifndef ISTHMUS_COMPRESS_BUFFER_TIERS_H_
#define ISTHMUS_COMPRESS_BUFFER_TIERS_H_

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "compress/spill_thread.h"
#include "proto/codec_size.h"

namespace isthmus::compress {

class BufferTiers {
 public:
  struct Options {
    int64_t words = 0;                    // of a buffer
    BufferLayout layout;                  // no more than layout.capacity() samples at a time
    std::string spill_directory;          // unless there are no file entries
    SpillFile::BeforeWrite before_write;  // tests: delays and faults
  };
  static absl::StatusOr<std::unique_ptr<BufferTiers>> Make(Options options);

  // The buffer of a sample, in memory until the next call, to be changed; one not heard of before
  // has any content.
  absl::StatusOr<uint16_t*> Fetch(uint32_t id);
  // The same, to be read; moves nothing. `scratch` has room for a buffer. InternalError: not heard
  // of before.
  absl::StatusOr<const uint16_t*> Look(uint32_t id, uint16_t* scratch);
  void Drop(uint32_t id);  // if there is one

  // These samples come next, in this order: makes room for them and reads ahead those in the file,
  // as far as the layout's spare entries go. What was read ahead before and is not among them may
  // leave memory again.
  void Prefetch(absl::Span<const uint32_t> ids);

  const absl::Status& status() const { return failed_; }  // the first file error
  int64_t in_memory() const { return static_cast<int64_t>(used_.size() + ahead_.size()); }
  int64_t buffers_made() const { return made_; }      // most that memory ever held
  int64_t late_reads() const { return late_reads_; }  // a Fetch that had to go to the file itself

 private:
  using Buffer = SpillThread::Buffer;
  struct Place {
    Buffer memory;                     // null: not in memory
    int64_t slot = -1;                 // in the file, there or on its way from or to there
    uint64_t ticket = 0;               // of the job that is at it
    bool reading = false;              // that job brings it
    bool ahead = false;                // it is in ahead_
    std::list<uint32_t>::iterator at;  // in used_ or ahead_, if in memory
  };

  explicit BufferTiers(Options options);
  absl::Status Collect(bool wait);  // one job, if any is done, or the oldest
  absl::Status CollectAll();        // that are done
  absl::Status Await(const Place& place);
  bool HasBuffer() const { return !free_.empty() || made_ < most_buffers_; }
  Buffer TakeFree();
  absl::StatusOr<Buffer> TakeBuffer();
  absl::Status MakeRoom();
  void Install(uint32_t id, Buffer buffer, bool ahead);
  void Forward(Place* place);  // to the front of used_
  std::list<uint32_t>::iterator Victim();
  bool CanEvict() { return Victim() != used_.end() && !free_slots_.empty(); }
  SpillThread::Job Evict(std::list<uint32_t>* from, std::list<uint32_t>::iterator victim);
  void Give(SpillThread::Job job);
  void ReadAhead(uint32_t id, Place* place);
  void FreeSlot(Place* place);

  const Options options_;
  const int64_t memory_entries_;  // at least one: the sample being worked on is always in memory
  const int64_t most_buffers_;
  const size_t most_ahead_;
  std::unique_ptr<SpillThread> spill_;  // null: no file
  std::unordered_map<uint32_t, Place> places_;
  std::unordered_set<uint32_t> wanted_;  // as the last Prefetch said
  std::list<uint32_t> used_;             // in memory, most recently used first
  std::list<uint32_t> ahead_;            // in memory, read ahead and not used yet
  std::vector<Buffer> free_;
  std::vector<int64_t> free_slots_;
  int64_t made_ = 0;
  int64_t late_reads_ = 0;
  int64_t under_way_ = 0;  // jobs
  size_t reading_ = 0;     // of them, that read ahead
  uint64_t last_ticket_ = 0;
  absl::Status failed_;
};

}  // namespace isthmus::compress

#endif  // ISTHMUS_COMPRESS_BUFFER_TIERS_H_
