#include "compress/message_store.h"

#include <algorithm>
#include <limits>
#include <unordered_set>

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/rng.h"
#include "base/status.h"

namespace isthmus::compress {

absl::StatusOr<std::unique_ptr<MessageStore>> MessageStore::Make(const Options& options) {
  std::unique_ptr<MessageStore> store(new MessageStore(options));
  store->entry_bytes_ = std::max<int64_t>(2 * options.entry_elements, 1);
  const int64_t most = options.distinct_samples > 0 ? options.distinct_samples
                                                    : std::numeric_limits<int64_t>::max() / 4;
  const int64_t in_memory =
      std::min(std::max<int64_t>(options.memory_bytes, 0) / store->entry_bytes_, most);
  int64_t on_disk = 0;
  if (!options.spill_directory.empty()) {
    on_disk =
        std::min(std::max<int64_t>(options.disk_bytes, 0) / store->entry_bytes_, most - in_memory);
  }
  store->capacity_ = in_memory + on_disk;
  store->memory_slots_ =
      std::max<int64_t>(in_memory, 1);  // the sample being worked on is always in memory
  if (on_disk > 0) {
    ASSIGN_OR_RETURN(store->spill_,
                     SpillFile::Make(options.spill_directory, on_disk, store->entry_bytes_));
    store->free_slots_.reserve(static_cast<size_t>(on_disk));
    for (int64_t slot = on_disk - 1; slot >= 0; --slot) store->free_slots_.push_back(slot);
  }
  return store;
}

void MessageStore::Plan(absl::Span<const uint32_t> ids, std::vector<Slot>* plan) const {
  plan->assign(ids.size(), Slot());
  int64_t room = capacity_;
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto entry = entries_.find(ids[i]);
    if (entry == entries_.end()) continue;
    (*plan)[i] = {true, true, entry->second.version};
    --room;
  }
  for (Slot& slot : *plan) {
    if (slot.known || room <= 0) continue;
    slot.keep = true;
    --room;
  }
}

absl::Status MessageStore::Begin(absl::Span<const uint32_t> ids, absl::Span<const Slot> plan) {
  int64_t kept_new = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (plan[i].known) {
      Entry& entry = entries_.find(ids[i])->second;
      used_.splice(used_.begin(), used_, entry.used);
    } else if (plan[i].keep) {
      ++kept_new;
    }
  }
  // What this frame uses is at the front now, and Plan left room for it: the back holds other
  // samples.
  while (size() + kept_new > capacity_) {
    Forget(used_.back());
    ++evicted_;
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    if (plan[i].known || !plan[i].keep) continue;
    RETURN_IF_ERROR(Insert(ids[i]).status());
  }
  return absl::OkStatus();
}

absl::StatusOr<MessageStore::Entry*> MessageStore::Insert(uint32_t id) {
  RETURN_IF_ERROR(MakeMemoryRoom());
  Entry& entry = entries_[id];
  entry.memory = NewBuffer();
  used_.push_front(id);
  resident_.push_front(id);
  entry.used = used_.begin();
  entry.resident = resident_.begin();
  return &entry;
}

std::unique_ptr<uint16_t[]> MessageStore::NewBuffer() {
  if (!free_buffers_.empty()) {
    std::unique_ptr<uint16_t[]> buffer = std::move(free_buffers_.back());
    free_buffers_.pop_back();
    std::fill_n(buffer.get(), options_.entry_elements, uint16_t{0});
    return buffer;
  }
  return std::make_unique<uint16_t[]>(static_cast<size_t>(options_.entry_elements));
}

// Moves the entry that has waited longest out of memory, if memory is full.
absl::Status MessageStore::MakeMemoryRoom() {
  if (static_cast<int64_t>(resident_.size()) < memory_slots_) return absl::OkStatus();
  Entry& oldest = entries_.find(resident_.back())->second;
  if (free_slots_.empty())
    return absl::InternalError("message store: no free slot in the spill file");
  const int64_t slot = free_slots_.back();
  RETURN_IF_ERROR(spill_->Write(slot, oldest.memory.get()));
  free_slots_.pop_back();
  oldest.disk_slot = slot;
  free_buffers_.push_back(std::move(oldest.memory));
  resident_.pop_back();
  return absl::OkStatus();
}

absl::StatusOr<uint16_t*> MessageStore::Buffer(uint32_t id) {
  const auto found = entries_.find(id);
  if (found == entries_.end())
    return absl::InternalError(absl::StrCat("sample ", id, " has no buffer"));
  Entry& entry = found->second;
  if (entry.memory == nullptr) {
    std::unique_ptr<uint16_t[]> buffer = NewBuffer();
    RETURN_IF_ERROR(spill_->Read(entry.disk_slot, buffer.get()));
    free_slots_.push_back(
        entry.disk_slot);  // first, so that the entry that makes room may take its place
    entry.disk_slot = -1;
    RETURN_IF_ERROR(MakeMemoryRoom());
    entry.memory = std::move(buffer);
    resident_.push_front(id);
    entry.resident = resident_.begin();
  } else {
    resident_.splice(resident_.begin(), resident_, entry.resident);
  }
  entry.hashed = false;
  return entry.memory.get();
}

void MessageStore::Bump(uint32_t id) {
  Entry& entry = entries_.find(id)->second;
  ++entry.version;
  entry.hashed = false;
}

void MessageStore::Forget(uint32_t id) {
  const auto found = entries_.find(id);
  if (found == entries_.end()) return;
  Entry& entry = found->second;
  used_.erase(entry.used);
  if (entry.memory != nullptr) {
    resident_.erase(entry.resident);
    free_buffers_.push_back(std::move(entry.memory));
  } else {
    free_slots_.push_back(entry.disk_slot);
  }
  entries_.erase(found);
}

void MessageStore::Prefetch(absl::Span<const uint32_t> ids) const {
  for (uint32_t id : ids) {
    const auto found = entries_.find(id);
    if (found != entries_.end() && found->second.memory == nullptr)
      spill_->Prefetch(found->second.disk_slot);
  }
}

absl::StatusOr<uint64_t> MessageStore::Hash() {
  uint64_t sum = 0;
  std::unique_ptr<uint16_t[]> scratch;
  const size_t bytes = static_cast<size_t>(2 * options_.entry_elements);
  for (auto& [id, entry] : entries_) {
    if (!entry.hashed) {
      const uint16_t* content = entry.memory.get();
      if (content == nullptr) {
        if (scratch == nullptr)
          scratch = std::make_unique<uint16_t[]>(static_cast<size_t>(options_.entry_elements));
        RETURN_IF_ERROR(spill_->Read(entry.disk_slot, scratch.get()));
        content = scratch.get();
      }
      entry.hash = Hash64(content, bytes, (uint64_t{entry.version} << 32) | id);
      entry.hashed = true;
    }
    sum += Mix64(entry.hash);
  }
  return sum ^ Mix64(static_cast<uint64_t>(entries_.size()));
}

absl::Status MessageStore::Save(StateWriter* to) const {
  const size_t bytes = static_cast<size_t>(2 * options_.entry_elements);
  std::vector<uint16_t> scratch(static_cast<size_t>(options_.entry_elements));
  to->Put<uint64_t>(entries_.size());
  for (auto id = used_.rbegin(); id != used_.rend() && to->status().ok(); ++id) {
    const Entry& entry = entries_.find(*id)->second;
    const uint16_t* content = entry.memory.get();
    if (content == nullptr) {
      RETURN_IF_ERROR(spill_->Read(entry.disk_slot, scratch.data()));
      content = scratch.data();
    }
    to->Put(*id);
    to->Put(entry.version);
    to->Bytes(content, bytes);
  }
  return to->status();
}

absl::Status MessageStore::Load(StateReader* from) {
  const size_t bytes = static_cast<size_t>(2 * options_.entry_elements);
  const uint64_t count = from->Get<uint64_t>("delta buffers");
  if (count > static_cast<uint64_t>(capacity_)) {
    from->Fail(absl::InvalidArgumentError(absl::StrCat(
        "the state has ", count, " delta buffers where at most ", capacity_, " have room")));
  }
  for (uint64_t i = 0; i < count && from->ok(); ++i) {
    const uint32_t id = from->Get<uint32_t>("delta buffers");
    const uint32_t version = from->Get<uint32_t>("delta buffers");
    if (from->ok() && (version == 0 || entries_.count(id) > 0)) {
      from->Fail(absl::InvalidArgumentError(
          absl::StrCat("the state has sample ", id, version == 0 ? " of no version" : " twice")));
    }
    if (!from->ok()) break;
    ASSIGN_OR_RETURN(Entry * entry, Insert(id));
    entry->version = version;
    from->Bytes(entry->memory.get(), bytes, "delta buffers");
    entry->hash = Hash64(entry->memory.get(), bytes, (uint64_t{version} << 32) | id);
    entry->hashed = true;  // while it is in memory
  }
  return from->status();
}

}  // namespace isthmus::compress
