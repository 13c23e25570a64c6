#include "compress/buffers/buffer_tiers.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace isthmus::compress {

absl::StatusOr<std::unique_ptr<BufferTiers>> BufferTiers::Make(Options options) {
  std::unique_ptr<BufferTiers> tiers(new BufferTiers(std::move(options)));
  const Options& o = tiers->options_;
  if (o.layout.file_entries == 0) return tiers;
  const int64_t slots = o.layout.file_entries + o.layout.spare_entries;
  ASSIGN_OR_RETURN(std::unique_ptr<SpillFile> file,
                   SpillFile::Make(o.spill_directory, slots, 2 * o.words, o.before_write));
  tiers->spill_ =
      std::make_unique<SpillThread>(std::move(file), static_cast<size_t>(tiers->most_buffers_));
  tiers->free_slots_.reserve(static_cast<size_t>(slots));
  for (int64_t slot = slots - 1; slot >= 0; --slot) tiers->free_slots_.push_back(slot);
  return tiers;
}

BufferTiers::BufferTiers(Options options)
    : options_(std::move(options)),
      memory_entries_(std::max<int64_t>(options_.layout.memory_entries, 1)),
      most_buffers_(memory_entries_ + 1),
      most_ahead_(static_cast<size_t>(SpareEntries(memory_entries_))) {}

absl::Status BufferTiers::Collect(bool wait) {
  absl::StatusOr<SpillThread::Job> taken = spill_->Take(wait);
  if (!taken.ok()) return taken.status();
  SpillThread::Job job = *std::move(taken);
  --under_way_;
  if (failed_.ok()) failed_ = job.status;
  RETURN_IF_ERROR(failed_);
  if (job.write_slot >= 0) {
    const auto written = places_.find(job.write_id);
    if (written != places_.end() && written->second.ticket == job.ticket)
      written->second.ticket = 0;
  }
  if (job.read_slot < 0) {
    free_.push_back(std::move(job.buffer));
    return absl::OkStatus();
  }
  --reading_;
  const auto read = places_.find(job.read_id);
  if (read == places_.end() || read->second.ticket != job.ticket) {  // dropped meanwhile
    free_.push_back(std::move(job.buffer));
    return absl::OkStatus();
  }
  read->second.ticket = 0;
  read->second.reading = false;
  FreeSlot(&read->second);
  failed_ = MakeRoom();  // an error loses the buffer
  RETURN_IF_ERROR(failed_);
  Install(job.read_id, std::move(job.buffer), true);
  return absl::OkStatus();
}

absl::Status BufferTiers::CollectAll() {
  while (under_way_ > 0) {
    const absl::Status status = Collect(false);
    if (absl::IsNotFound(status) && failed_.ok()) break;
    RETURN_IF_ERROR(status);
  }
  return failed_;
}

absl::Status BufferTiers::Await(const Place& place) {
  while (place.ticket != 0) RETURN_IF_ERROR(Collect(true));
  return absl::OkStatus();
}

HostBuffer BufferTiers::TakeFree() {
  if (free_.empty()) {
    ++made_;
    return options_.allocate != nullptr ? options_.allocate() : NewHostBuffer(options_.words);
  }
  HostBuffer buffer = std::move(free_.back());
  free_.pop_back();
  return buffer;
}

absl::StatusOr<HostBuffer> BufferTiers::TakeBuffer() {
  while (!HasBuffer()) {
    if (under_way_ == 0) return absl::InternalError("delta buffers: all of them are in use");
    RETURN_IF_ERROR(Collect(true));
  }
  return TakeFree();
}

// For one more buffer in memory.
absl::Status BufferTiers::MakeRoom() {
  while (in_memory() >= memory_entries_) {
    if (spill_ == nullptr || free_slots_.empty())
      return absl::InternalError("delta buffers: no free slot in the spill file");
    if (const auto victim = Victim(); victim != used_.end()) {
      Give(Evict(&used_, victim));
    } else {  // all of them come next: the last of those
      std::list<uint32_t>* from = ahead_.empty() ? &used_ : &ahead_;
      Give(Evict(from, std::prev(from->end())));
    }
  }
  return absl::OkStatus();
}

void BufferTiers::Install(uint32_t id, HostBuffer buffer, bool ahead) {
  Place& place = places_[id];
  place.memory = std::move(buffer);
  place.ahead = ahead;
  std::list<uint32_t>& list = ahead ? ahead_ : used_;
  place.at = list.insert(ahead ? list.end() : list.begin(), id);
}

void BufferTiers::Forward(Place* place) {
  used_.splice(used_.begin(), place->ahead ? ahead_ : used_, place->at);
  place->ahead = false;
}

// What was used last and does not come next.
std::list<uint32_t>::iterator BufferTiers::Victim() {
  return std::find_if(used_.begin(), used_.end(),
                      [this](uint32_t id) { return wanted_.count(id) == 0; });
}

SpillThread::Job BufferTiers::Evict(std::list<uint32_t>* from,
                                    std::list<uint32_t>::iterator victim) {
  SpillThread::Job job;
  job.ticket = ++last_ticket_;
  job.write_id = *victim;
  job.write_slot = free_slots_.back();
  free_slots_.pop_back();
  Place& place = places_.find(*victim)->second;
  job.buffer = std::move(place.memory);
  place.slot = job.write_slot;
  place.ticket = job.ticket;
  place.reading = place.ahead = false;
  from->erase(victim);
  return job;
}

void BufferTiers::Give(SpillThread::Job job) {
  ++under_way_;
  spill_->Give(std::move(job));
}

void BufferTiers::FreeSlot(Place* place) {
  free_slots_.push_back(place->slot);
  place->slot = -1;
}

absl::StatusOr<HostBuffer> BufferTiers::ReadNow(Place* place) {
  ASSIGN_OR_RETURN(HostBuffer buffer, TakeBuffer());
  ++late_reads_;
  failed_ = spill_->Read(place->slot, buffer.get());
  RETURN_IF_ERROR(failed_);
  FreeSlot(place);
  return buffer;
}

absl::StatusOr<uint16_t*> BufferTiers::Fetch(uint32_t id) {
  RETURN_IF_ERROR(CollectAll());
  Place& place = places_[id];
  RETURN_IF_ERROR(Await(place));
  if (place.memory == nullptr) {
    HostBuffer buffer;
    if (place.slot >= 0) {
      ASSIGN_OR_RETURN(buffer,
                       ReadNow(&place));  // first, so that what makes room may take its slot
    } else {
      ASSIGN_OR_RETURN(buffer, TakeBuffer());
    }
    failed_ = MakeRoom();  // an error loses the buffer
    RETURN_IF_ERROR(failed_);
    Install(id, std::move(buffer), false);
  } else {
    Forward(&place);
  }
  return place.memory.get();
}

absl::Status BufferTiers::Put(uint32_t id, const uint16_t* content) {
  ASSIGN_OR_RETURN(uint16_t* const buffer, Fetch(id));
  std::copy_n(content, options_.words, buffer);
  return absl::OkStatus();
}

bool BufferTiers::InMemory(uint32_t id) const {
  const auto found = places_.find(id);
  return found != places_.end() && found->second.memory != nullptr;
}

absl::StatusOr<HostBuffer> BufferTiers::Detach(uint32_t id) {
  RETURN_IF_ERROR(CollectAll());
  const auto found = places_.find(id);
  if (found == places_.end())
    return absl::InternalError(absl::StrCat("sample ", id, " has no buffer"));
  Place& place = found->second;
  RETURN_IF_ERROR(Await(place));
  HostBuffer buffer = std::move(place.memory);
  if (buffer != nullptr) {
    (place.ahead ? ahead_ : used_).erase(place.at);
  } else {
    ASSIGN_OR_RETURN(buffer, ReadNow(&place));
  }
  places_.erase(id);
  --made_;
  return buffer;
}

absl::Status BufferTiers::Attach(uint32_t id, HostBuffer buffer) {
  RETURN_IF_ERROR(CollectAll());
  // In the place of one of the others: never more than most_buffers_.
  while (made_ == most_buffers_ && free_.empty()) RETURN_IF_ERROR(Collect(true));
  if (made_ == most_buffers_) {
    free_.pop_back();
    --made_;
  }
  failed_ = MakeRoom();  // an error loses the buffer
  RETURN_IF_ERROR(failed_);
  Install(id, std::move(buffer), false);
  ++made_;
  return absl::OkStatus();
}

absl::StatusOr<const uint16_t*> BufferTiers::Look(uint32_t id, uint16_t* scratch) {
  RETURN_IF_ERROR(failed_);
  const auto found = places_.find(id);
  if (found == places_.end())
    return absl::InternalError(absl::StrCat("sample ", id, " has no buffer"));
  const Place& place = found->second;
  RETURN_IF_ERROR(Await(place));
  if (place.memory != nullptr) return place.memory.get();
  RETURN_IF_ERROR(spill_->Read(place.slot, scratch));
  return scratch;
}

void BufferTiers::Drop(uint32_t id) {
  const auto found = places_.find(id);
  if (found == places_.end()) return;
  Place& place = found->second;
  if (place.memory != nullptr) {
    (place.ahead ? ahead_ : used_).erase(place.at);
    free_.push_back(std::move(place.memory));
  } else if (place.slot >= 0) {
    FreeSlot(
        &place);  // jobs are done in order: whoever writes there next comes after what is there
  }
  places_.erase(found);
}

void BufferTiers::Prefetch(absl::Span<const uint32_t> ids) {
  if (spill_ == nullptr || !CollectAll().ok()) return;  // an error is told by the next call
  wanted_ = {ids.begin(), ids.end()};
  for (auto it = ahead_.begin(); it != ahead_.end();) {
    const uint32_t id = *it++;
    if (wanted_.count(id) == 0) Forward(&places_.find(id)->second);
  }
  size_t fresh = 0;
  for (uint32_t id : ids) {
    const auto place = places_.find(id);
    if (place == places_.end()) {
      ++fresh;
    } else if (place->second.memory == nullptr && !place->second.reading) {
      if (ahead_.size() + reading_ >= most_ahead_) break;
      ReadAhead(id, &place->second);
    }
  }
  // Samples that come for the first time need buffers, each of them only once it is their turn.
  fresh = std::min(fresh, most_ahead_);
  while (static_cast<size_t>(under_way_) + free_.size() +
                 static_cast<size_t>(most_buffers_ - made_) <
             fresh &&
         CanEvict())
    Give(Evict(&used_, Victim()));
}

// Through a free buffer, or through that of the sample used last, which is written first.
void BufferTiers::ReadAhead(uint32_t id, Place* place) {
  const int64_t soon = in_memory() + static_cast<int64_t>(reading_);
  SpillThread::Job job;
  if (soon >= memory_entries_ && CanEvict()) {
    job = Evict(&used_, Victim());
  } else if (soon <= memory_entries_ && HasBuffer()) {
    job.ticket = ++last_ticket_;
    job.buffer = TakeFree();
  } else {
    return;
  }
  job.read_id = id;
  job.read_slot = place->slot;
  place->ticket = job.ticket;
  place->reading = true;
  ++reading_;
  Give(std::move(job));
}

}  // namespace isthmus::compress
