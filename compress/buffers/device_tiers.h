// Delta buffers of an end that computes on a device: in the device's memory first, then in pinned
// host memory, then in a spill file (buffer_tiers.h), all under the caps of the host's codecs. A
// buffer lies in one place at a time. Buffers come up and go down on a queue of copies of the
// device, beside what it computes; Prefetch starts them a frame ahead.
//
// Device memory holds `device_entries` buffers, reserved at the start, or more where one frame
// needs more. What leaves it is what was used last and does not come next, as in BufferTiers.
//
// Plain C++: the device is behind FarMemory. Thread: one owner.
#ifndef ISTHMUS_COMPRESS_BUFFERS_DEVICE_TIERS_H_
#define ISTHMUS_COMPRESS_BUFFERS_DEVICE_TIERS_H_

#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "compress/buffers/buffer_home.h"
#include "compress/buffers/buffer_tiers.h"

namespace isthmus::compress {

// Memory of a device, and copies between it and the host that are done in the order in which they
// were queued. A copy comes after all that the device's owner had it compute before it was queued;
// what is computed later may overtake it, unless Follow says otherwise. Tickets rise from 1.
class FarMemory {
 public:
  virtual ~FarMemory() = default;
  // Device memory of one buffer, which lives as long as this. ResourceExhausted: there is no more.
  virtual absl::StatusOr<uint16_t*> Allocate() = 0;
  virtual HostBuffer AllocateHost() = 0;  // of the host, best for copies

  virtual absl::StatusOr<uint64_t> ToHost(uint16_t* host, const uint16_t* device) = 0;
  virtual absl::StatusOr<uint64_t> ToDevice(uint16_t* device, const uint16_t* host) = 0;
  virtual bool Done(uint64_t ticket) = 0;
  virtual absl::Status Await(uint64_t ticket) = 0;
  virtual absl::Status Follow(uint64_t ticket) = 0;  // what is computed from now on
};

class DeviceTiers : public BufferHome {
 public:
  struct Piece {
    int64_t at = 0;  // byte of a buffer in device memory
    int64_t bytes = 0;
  };
  struct Options {
    int64_t words = 0;           // of a buffer, as Look and Put have it
    int64_t device_words = 0;    // of a buffer on the device, and wherever it goes from there
    std::vector<Piece> pieces;   // where, in device_words, the bytes of `words` lie one after the
                                 // other; what is missing at their end is zero
    BufferLayout layout;         // device_entries are taken from its memory entries
    int64_t device_entries = 0;  // fewer, where the device has no more
    std::string spill_directory;
    SpillFile::BeforeWrite before_write;
  };
  static absl::StatusOr<std::unique_ptr<DeviceTiers>> Make(Options options,
                                                           std::unique_ptr<FarMemory> far);
  ~DeviceTiers() override;

  void Begin(absl::Span<const uint32_t> ids) override { frame_ = {ids.begin(), ids.end()}; }
  // Device memory, where the sample stays until Release or the next Begin, or until Drop.
  absl::StatusOr<uint16_t*> Fetch(uint32_t id) override;
  absl::StatusOr<const uint16_t*> Look(uint32_t id, uint16_t* scratch) override;
  absl::Status Put(uint32_t id, const uint16_t* content) override;
  void Drop(uint32_t id) override;
  void Release(uint32_t id) override { frame_.erase(id); }
  void Prefetch(absl::Span<const uint32_t> ids) override;

  const absl::Status& status() const override { return failed_; }
  int64_t on_device() const override { return static_cast<int64_t>(used_.size()); }
  int64_t in_memory() const override { return leaving_ + (below_ ? below_->in_memory() : 0); }
  int64_t late_reads() const override { return below_ ? below_->late_reads() : 0; }
  int64_t buffers_made() const override { return below_ ? below_->buffers_made() : 0; }
  int64_t late_copies() const { return late_copies_; }  // a Fetch that had to begin one itself

 private:
  // Of samples that have a slot; the others are below.
  struct Place {
    uint16_t* slot = nullptr;
    uint64_t arrival = 0;    // the copy that brought it, unless the owner is known to come after it
    uint64_t departure = 0;  // the copy that takes it away; 0: it stays
    std::list<uint32_t>::iterator at;  // in used_, if it stays
  };
  // A copy that may be under way still, and the host's end of it.
  struct Flight {
    uint64_t ticket = 0;
    uint32_t id = 0;
    bool leaves = false;
    HostBuffer host;
  };

  DeviceTiers(Options options, std::unique_ptr<FarMemory> far)
      : options_(std::move(options)), far_(std::move(far)) {}
  absl::Status Open();
  absl::Status Collect();  // flights that are done
  absl::Status Land(Flight flight);
  absl::Status AwaitLeaving();  // the oldest
  absl::StatusOr<uint16_t*> TakeSlot();
  HostBuffer TakeHost();
  void Recycle(HostBuffer buffer);
  bool Comes(uint32_t id) const { return wanted_.count(id) > 0; }
  std::list<uint32_t>::iterator Victim(bool any);
  void Stay(uint32_t id, Place* place);  // as the most recently used
  absl::Status Evict(std::list<uint32_t>::iterator victim);
  absl::Status BringUp(uint32_t id, uint16_t* slot);
  absl::Status BringAhead(absl::Span<const uint32_t> ids);
  void Keep(absl::Status status) {
    if (failed_.ok()) failed_ = std::move(status);
  }

  const Options options_;
  const std::unique_ptr<FarMemory> far_;
  std::unique_ptr<BufferTiers> below_;  // null: all have room on the device
  size_t most_under_way_ = 1;           // in one direction
  std::unordered_map<uint32_t, Place> places_;
  std::list<uint32_t> used_;  // on the device or coming, most recently used first
  std::unordered_set<uint32_t> frame_, wanted_;
  std::vector<uint16_t*> free_slots_;
  std::deque<Flight> flights_;  // in order of their tickets
  std::vector<HostBuffer> spare_;
  std::vector<uint16_t> raw_;
  int64_t leaving_ = 0;  // flights
  int64_t late_copies_ = 0;
  absl::Status failed_;
};

}  // namespace isthmus::compress

#endif  // ISTHMUS_COMPRESS_BUFFERS_DEVICE_TIERS_H_
