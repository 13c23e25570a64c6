#include "compress/buffers/device_tiers.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"

namespace isthmus::compress {
namespace {

using Pieces = std::vector<DeviceTiers::Piece>;

void Gather(const Pieces& pieces, const uint16_t* raw, int64_t words, uint16_t* to) {
  char* at = reinterpret_cast<char*>(to);
  char* const end = at + 2 * words;
  for (const DeviceTiers::Piece& piece : pieces) {
    std::copy_n(reinterpret_cast<const char*>(raw) + piece.at, piece.bytes, at);
    at += piece.bytes;
  }
  std::fill(at, end, '\0');
}

void Scatter(const Pieces& pieces, const uint16_t* from, uint16_t* raw) {
  const char* at = reinterpret_cast<const char*>(from);
  for (const DeviceTiers::Piece& piece : pieces) {
    std::copy_n(at, piece.bytes, reinterpret_cast<char*>(raw) + piece.at);
    at += piece.bytes;
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceTiers>> DeviceTiers::Make(Options options,
                                                               std::unique_ptr<FarMemory> far) {
  std::unique_ptr<DeviceTiers> tiers(new DeviceTiers(std::move(options), std::move(far)));
  RETURN_IF_ERROR(tiers->Open());
  return tiers;
}

absl::Status DeviceTiers::Open() {
  const int64_t most = std::min(options_.device_entries, options_.layout.memory_entries);
  while (static_cast<int64_t>(free_slots_.size()) < most) {
    absl::StatusOr<uint16_t*> slot = far_->Allocate();
    if (absl::IsResourceExhausted(slot.status())) break;
    RETURN_IF_ERROR(slot.status());
    free_slots_.push_back(*slot);
  }
  std::reverse(free_slots_.begin(), free_slots_.end());
  const int64_t entries = static_cast<int64_t>(free_slots_.size());
  most_under_way_ = static_cast<size_t>(std::max<int64_t>(SpareEntries(entries), 1));
  if (entries >= options_.layout.capacity()) return absl::OkStatus();
  BufferTiers::Options below;
  below.words = options_.device_words;
  below.layout = options_.layout;
  // What is on its way to the device has room below it as well.
  below.layout.memory_entries += static_cast<int64_t>(most_under_way_) - entries;
  below.spill_directory = options_.spill_directory;
  below.before_write = options_.before_write;
  below.allocate = [this] { return far_->AllocateHost(); };
  ASSIGN_OR_RETURN(below_, BufferTiers::Make(std::move(below)));
  return absl::OkStatus();
}

DeviceTiers::~DeviceTiers() {
  if (!flights_.empty()) far_->Await(flights_.back().ticket).IgnoreError();
}

HostBuffer DeviceTiers::TakeHost() {
  if (spare_.empty()) return far_->AllocateHost();
  HostBuffer buffer = std::move(spare_.back());
  spare_.pop_back();
  return buffer;
}

void DeviceTiers::Recycle(HostBuffer buffer) {
  if (spare_.size() < most_under_way_) spare_.push_back(std::move(buffer));
}

absl::Status DeviceTiers::Land(Flight flight) {
  const auto found = places_.find(flight.id);
  if (flight.leaves) --leaving_;
  if (!flight.leaves || found == places_.end() || found->second.departure != flight.ticket) {
    Recycle(std::move(flight.host));  // it came, or is of no use any more
    return absl::OkStatus();
  }
  free_slots_.push_back(found->second.slot);
  places_.erase(found);
  return below_->Attach(flight.id, std::move(flight.host));
}

void DeviceTiers::Stay(uint32_t id, Place* place) {
  if (place->departure == 0) {
    used_.splice(used_.begin(), used_, place->at);
  } else {
    place->at = used_.insert(used_.begin(), id);
  }
  place->departure = 0;
}

absl::Status DeviceTiers::Collect() {
  while (failed_.ok() && !flights_.empty() && far_->Done(flights_.front().ticket)) {
    Flight flight = std::move(flights_.front());
    flights_.pop_front();
    Keep(Land(std::move(flight)));
  }
  return failed_;
}

absl::Status DeviceTiers::AwaitLeaving() {
  const auto oldest = std::find_if(flights_.begin(), flights_.end(),
                                   [](const Flight& flight) { return flight.leaves; });
  ISTHMUS_CHECK(oldest != flights_.end());
  Keep(far_->Await(oldest->ticket));
  return Collect();
}

// What was used last, is not the frame's and does not come next. `any`: or comes next.
std::list<uint32_t>::iterator DeviceTiers::Victim(bool any) {
  return std::find_if(used_.begin(), used_.end(), [this, any](uint32_t id) {
    return frame_.count(id) == 0 && (any || !Comes(id));
  });
}

absl::Status DeviceTiers::Evict(std::list<uint32_t>::iterator victim) {
  Flight flight;
  flight.id = *victim;
  flight.leaves = true;
  flight.host = TakeHost();
  Place& place = places_.find(flight.id)->second;
  ASSIGN_OR_RETURN(flight.ticket, far_->ToHost(flight.host.get(), place.slot));
  place.departure = flight.ticket;
  used_.erase(victim);
  flights_.push_back(std::move(flight));
  ++leaving_;
  return absl::OkStatus();
}

absl::StatusOr<uint16_t*> DeviceTiers::TakeSlot() {
  while (free_slots_.empty()) {
    if (below_ != nullptr && leaving_ > 0) {
      RETURN_IF_ERROR(AwaitLeaving());
      continue;
    }
    auto victim = Victim(false);
    if (victim == used_.end()) victim = Victim(true);
    if (below_ != nullptr && victim != used_.end()) {
      RETURN_IF_ERROR(Evict(victim));
      continue;
    }
    absl::StatusOr<uint16_t*> more = far_->Allocate();
    if (more.ok()) return more;
    return Annotate(more.status(),
                    "delta buffers of one frame in device memory; smaller micro-batches need less");
  }
  uint16_t* const slot = free_slots_.back();
  free_slots_.pop_back();
  return slot;
}

// Detaches the sample's buffer from the tiers below and queues the copy.
absl::Status DeviceTiers::BringUp(uint32_t id, uint16_t* slot) {
  Flight flight;
  flight.id = id;
  ASSIGN_OR_RETURN(flight.host, below_->Detach(id));
  ASSIGN_OR_RETURN(flight.ticket, far_->ToDevice(slot, flight.host.get()));
  Place& place = places_[id];
  place.slot = slot;
  place.arrival = flight.ticket;
  place.at = used_.insert(used_.begin(), id);
  flights_.push_back(std::move(flight));
  return absl::OkStatus();
}

absl::StatusOr<uint16_t*> DeviceTiers::Fetch(uint32_t id) {
  RETURN_IF_ERROR(Collect());
  if (places_.count(id) == 0) {
    absl::StatusOr<uint16_t*> slot = TakeSlot();
    Keep(slot.status());
    RETURN_IF_ERROR(failed_);
    if (below_ != nullptr && below_->Knows(id)) {
      ++late_copies_;
      Keep(BringUp(id, *slot));  // an error loses the buffer
      RETURN_IF_ERROR(failed_);
    } else {
      Place& place = places_[id];
      place.slot = *slot;
      place.at = used_.insert(used_.begin(), id);
    }
  }
  Place& place = places_.find(id)->second;
  if (place.arrival > 0) Keep(far_->Follow(place.arrival));
  RETURN_IF_ERROR(failed_);
  place.arrival = 0;
  Stay(id, &place);
  return place.slot;
}

absl::StatusOr<const uint16_t*> DeviceTiers::Look(uint32_t id, uint16_t* scratch) {
  RETURN_IF_ERROR(failed_);
  const auto found = places_.find(id);
  if (found == places_.end()) {
    if (below_ == nullptr)
      return absl::InternalError(absl::StrCat("sample ", id, " has no buffer"));
    raw_.resize(static_cast<size_t>(options_.device_words));
    ASSIGN_OR_RETURN(const uint16_t* raw, below_->Look(id, raw_.data()));
    Gather(options_.pieces, raw, options_.words, scratch);
    return scratch;
  }
  HostBuffer host = TakeHost();
  ASSIGN_OR_RETURN(const uint64_t ticket, far_->ToHost(host.get(), found->second.slot));
  RETURN_IF_ERROR(far_->Await(ticket));
  Gather(options_.pieces, host.get(), options_.words, scratch);
  Recycle(std::move(host));
  return scratch;
}

absl::Status DeviceTiers::Put(uint32_t id, const uint16_t* content) {
  ASSIGN_OR_RETURN(uint16_t* const slot, Fetch(id));
  HostBuffer host = TakeHost();
  Scatter(options_.pieces, content, host.get());
  ASSIGN_OR_RETURN(const uint64_t ticket, far_->ToDevice(slot, host.get()));
  RETURN_IF_ERROR(far_->Await(ticket));
  Recycle(std::move(host));
  return absl::OkStatus();
}

void DeviceTiers::Drop(uint32_t id) {
  const auto found = places_.find(id);
  if (found == places_.end()) {
    if (below_ != nullptr) below_->Drop(id);
    return;
  }
  Place& place = found->second;
  // Whoever has the slot next must not be overwritten by what was meant for this sample.
  if (place.arrival > 0) Keep(far_->Follow(place.arrival));
  if (place.departure == 0) used_.erase(place.at);
  free_slots_.push_back(place.slot);
  places_.erase(found);
}

// Those that lie in host memory, while there are slots.
absl::Status DeviceTiers::BringAhead(absl::Span<const uint32_t> ids) {
  size_t coming = flights_.size() - static_cast<size_t>(leaving_);
  for (uint32_t id : ids) {
    const auto found = places_.find(id);
    if (found != places_.end()) {
      if (found->second.departure > 0) Stay(id, &found->second);
    } else if (below_->InMemory(id)) {
      if (free_slots_.empty() || coming == most_under_way_) break;
      uint16_t* const slot = free_slots_.back();
      free_slots_.pop_back();
      RETURN_IF_ERROR(BringUp(id, slot));
      ++coming;
    }
  }
  return absl::OkStatus();
}

void DeviceTiers::Prefetch(absl::Span<const uint32_t> ids) {
  if (below_ == nullptr || !Collect().ok()) return;  // an error is told by the next call
  wanted_ = {ids.begin(), ids.end()};
  Keep(BringAhead(ids));
  std::vector<uint32_t> below;
  size_t without = 0;
  for (uint32_t id : ids) {
    if (places_.count(id) > 0) continue;
    ++without;
    if (below_->Knows(id)) below.push_back(id);
  }
  below_->Prefetch(below);
  // Slots for those that have none yet: what has been used makes room.
  const size_t needed = std::min(without, most_under_way_);
  while (failed_.ok() && free_slots_.size() + static_cast<size_t>(leaving_) < needed) {
    const auto victim = Victim(false);
    if (victim == used_.end()) break;
    Keep(Evict(victim));
  }
}

}  // namespace isthmus::compress
