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
#ifndef ISTHMUS_COMPRESS_BUFFERS_BUFFER_TIERS_H_
#define ISTHMUS_COMPRESS_BUFFERS_BUFFER_TIERS_H_

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
#include "compress/buffers/buffer_home.h"
#include "compress/buffers/spill_thread.h"
#include "proto/codec/codec_size.h"

namespace isthmus::compress {

class BufferTiers : public BufferHome {
 public:
  struct Options {
    int64_t words = 0;                     // of a buffer
    BufferLayout layout;                   // no more than layout.capacity() samples at a time
    std::string spill_directory;           // unless there are no file entries
    SpillFile::BeforeWrite before_write;   // tests: delays and faults
    std::function<HostBuffer()> allocate;  // null: NewHostBuffer
  };
  static absl::StatusOr<std::unique_ptr<BufferTiers>> Make(Options options);

  absl::StatusOr<uint16_t*> Fetch(uint32_t id) override;  // in memory until the next call
  absl::StatusOr<const uint16_t*> Look(uint32_t id, uint16_t* scratch) override;
  absl::Status Put(uint32_t id, const uint16_t* content) override;
  void Drop(uint32_t id) override;

  // Reads ahead samples that lie in the file, as far as the layout's spare entries go. What was
  // read ahead before and is not among them may leave memory again.
  void Prefetch(absl::Span<const uint32_t> ids) override;

  // For a tier above this one. A buffer and its memory are taken away, or given. Detach reads what
  // lies in the file; InternalError: not heard of before.
  bool Knows(uint32_t id) const { return places_.count(id) > 0; }
  bool InMemory(uint32_t id) const;  // Detach has not to wait
  absl::StatusOr<HostBuffer> Detach(uint32_t id);
  absl::Status Attach(uint32_t id, HostBuffer buffer);

  const absl::Status& status() const override { return failed_; }
  int64_t in_memory() const override { return static_cast<int64_t>(used_.size() + ahead_.size()); }
  int64_t buffers_made() const override { return made_; }
  int64_t late_reads() const override { return late_reads_; }

 private:
  struct Place {
    HostBuffer memory;                 // null: not in memory
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
  HostBuffer TakeFree();
  absl::StatusOr<HostBuffer> TakeBuffer();
  absl::StatusOr<HostBuffer> ReadNow(Place* place);  // what lies in the file
  absl::Status MakeRoom();
  void Install(uint32_t id, HostBuffer buffer, bool ahead);
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
  std::vector<HostBuffer> free_;
  std::vector<int64_t> free_slots_;
  int64_t made_ = 0;
  int64_t late_reads_ = 0;
  int64_t under_way_ = 0;  // jobs
  size_t reading_ = 0;     // of them, that read ahead
  uint64_t last_ticket_ = 0;
  absl::Status failed_;
};

}  // namespace isthmus::compress

#endif  // ISTHMUS_COMPRESS_BUFFERS_BUFFER_TIERS_H_
