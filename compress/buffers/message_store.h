// The delta buffers of one end of one boundary: sample id -> buffer and version, in memory first,
// then in a spill file (buffer_tiers.h moves them; above it there may be a device's memory,
// device_tiers.h), then gone. What a buffer's words mean is buffer_format.h's.
//
// The two ends of a boundary make the same calls in the same order with the same capacity, so they
// always hold the same samples: which sample is forgotten depends on the order of use alone (least
// recently used first), never on which tier it happens to lie in.
//
//   per frame:  Plan (what will happen; changes nothing) -> Begin -> for each sample: Buffer, then
//   Bump or Forget; in between, at any time: Prefetch
//
// Capacity = memory_bytes / entry + disk_bytes / entry samples, each rounded down; no more than
// distinct_samples. Memory holds one buffer more than that, for the exchange. Thread: one owner.
#ifndef ISTHMUS_COMPRESS_BUFFERS_MESSAGE_STORE_H_
#define ISTHMUS_COMPRESS_BUFFERS_MESSAGE_STORE_H_

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "compress/buffers/buffer_tiers.h"
#include "compress/state/state_io.h"

namespace isthmus::compress {

class MessageStore {
 public:
  struct Options {
    int64_t entry_elements = 0;  // 16-bit words of a buffer
    int64_t memory_bytes = 0;
    int64_t disk_bytes = 0;
    int64_t distinct_samples =
        0;  // that can occur, if known: no more space is reserved; 0: not known
    std::string spill_directory;          // empty: no disk tier
    SpillFile::BeforeWrite before_write;  // tests: delays and faults
    // Where the buffers lie, if not in BufferTiers: a home for layout.capacity() samples.
    std::function<absl::StatusOr<std::unique_ptr<BufferHome>>(const BufferLayout& layout)>
        make_home;
  };
  static absl::StatusOr<std::unique_ptr<MessageStore>> Make(const Options& options);

  // What a frame's sample will find.
  struct Slot {
    bool known = false;  // it has a buffer
    bool keep =
        false;  // it has, or will be given one (false: more samples in the frame than capacity)
    uint32_t version = 0;  // of the buffer; 0 if it has none
  };
  // No id twice.
  void Plan(absl::Span<const uint32_t> ids, std::vector<Slot>* plan) const;
  // Makes room: forgets the least recently used samples that are not in this frame, and gives each
  // new sample to keep a buffer of version 0, of any content.
  absl::Status Begin(absl::Span<const uint32_t> ids, absl::Span<const Slot> plan);

  // The buffer of a kept sample, where its owner computes: in host memory until the next call, in
  // device memory until the next Begin. Its content may be changed before Bump.
  absl::StatusOr<uint16_t*> Buffer(uint32_t id);
  void Bump(uint32_t id);
  void Forget(uint32_t id);  // no error if it has none

  // The samples of the coming frames, in their order: makes them lie in memory, in the background
  // and as far as room goes. Changes nothing that can be seen but the speed; errors are told by the
  // next call.
  void Prefetch(absl::Span<const uint32_t> ids) { home_->Prefetch(ids); }

  // Hash of all (id, version, content); does not depend on tiers or order. Reads spilled entries
  // that changed since the last call.
  absl::StatusOr<uint64_t> Hash();

  // All samples, least recently used first. Between frames; which tier a sample lies in is not
  // kept.
  absl::Status Save(StateWriter* to);
  // Into an empty store with the same options. After an error it is not to be used any more.
  absl::Status Load(StateReader* from);

  int64_t capacity() const { return layout_.capacity(); }
  int64_t size() const { return static_cast<int64_t>(entries_.size()); }
  int64_t evicted() const { return evicted_; }
  int64_t device_bytes() const { return entry_bytes_ * home_->on_device(); }
  int64_t memory_bytes() const { return entry_bytes_ * home_->in_memory(); }
  int64_t disk_bytes() const {
    return entry_bytes_ * (size() - home_->in_memory() - home_->on_device());
  }
  int64_t late_reads() const { return home_->late_reads(); }
  int64_t buffers_made() const { return home_->buffers_made(); }  // most that memory ever held

 private:
  struct Entry {
    uint32_t version = 0;
    uint64_t hash = 0;
    bool hashed = false;
    std::list<uint32_t>::iterator used;  // in used_
  };

  explicit MessageStore(const Options& options) : options_(options) {}
  Entry* Insert(uint32_t id);  // as the most recently used, version 0

  const Options options_;
  int64_t entry_bytes_ = 0;
  BufferLayout layout_;
  int64_t evicted_ = 0;
  std::unordered_map<uint32_t, Entry> entries_;
  std::list<uint32_t> used_;  // most recently used first: the same at both ends
  std::unique_ptr<BufferHome> home_;
};

}  // namespace isthmus::compress

#endif  // ISTHMUS_COMPRESS_BUFFERS_MESSAGE_STORE_H_
