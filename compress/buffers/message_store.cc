#include "compress/buffers/message_store.h"

#include <algorithm>
#include <unordered_set>

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/rng.h"
#include "base/status.h"

namespace isthmus::compress {

absl::StatusOr<std::unique_ptr<MessageStore>> MessageStore::Make(const Options& options) {
  std::unique_ptr<MessageStore> store(new MessageStore(options));
  store->entry_bytes_ = std::max<int64_t>(2 * options.entry_elements, 1);
  store->layout_ = LayOutBuffers(store->entry_bytes_, options.memory_bytes,
                                 options.spill_directory.empty() ? 0 : options.disk_bytes,
                                 options.distinct_samples);
  if (options.make_home != nullptr) {
    ASSIGN_OR_RETURN(store->home_, options.make_home(store->layout_));
    return store;
  }
  BufferTiers::Options tiers;
  tiers.words = options.entry_elements;
  tiers.layout = store->layout_;
  tiers.spill_directory = options.spill_directory;
  tiers.before_write = options.before_write;
  ASSIGN_OR_RETURN(store->home_, BufferTiers::Make(std::move(tiers)));
  return store;
}

void MessageStore::Plan(absl::Span<const uint32_t> ids, std::vector<Slot>* plan) const {
  plan->assign(ids.size(), Slot());
  int64_t room = capacity();
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
  home_->Begin(ids);
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
  while (size() + kept_new > capacity()) {
    Forget(used_.back());
    ++evicted_;
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    if (plan[i].known || !plan[i].keep) continue;
    Insert(ids[i]);
  }
  return home_->status();
}

MessageStore::Entry* MessageStore::Insert(uint32_t id) {
  Entry& entry = entries_[id];
  used_.push_front(id);
  entry.used = used_.begin();
  return &entry;
}

absl::StatusOr<uint16_t*> MessageStore::Buffer(uint32_t id) {
  const auto found = entries_.find(id);
  if (found == entries_.end())
    return absl::InternalError(absl::StrCat("sample ", id, " has no buffer"));
  found->second.hashed = false;
  return home_->Fetch(id);
}

void MessageStore::Bump(uint32_t id) {
  Entry& entry = entries_.find(id)->second;
  ++entry.version;
  entry.hashed = false;
  home_->Release(id);
}

void MessageStore::Forget(uint32_t id) {
  const auto found = entries_.find(id);
  if (found == entries_.end()) return;
  used_.erase(found->second.used);
  entries_.erase(found);
  home_->Drop(id);
}

absl::StatusOr<uint64_t> MessageStore::Hash() {
  uint64_t sum = 0;
  std::vector<uint16_t> scratch(static_cast<size_t>(options_.entry_elements));
  const size_t bytes = 2 * scratch.size();
  for (auto& [id, entry] : entries_) {
    if (!entry.hashed) {
      ASSIGN_OR_RETURN(const uint16_t* content, home_->Look(id, scratch.data()));
      entry.hash = Hash64(content, bytes, (uint64_t{entry.version} << 32) | id);
      entry.hashed = true;
    }
    sum += Mix64(entry.hash);
  }
  return sum ^ Mix64(static_cast<uint64_t>(entries_.size()));
}

absl::Status MessageStore::Save(StateWriter* to) {
  std::vector<uint16_t> scratch(static_cast<size_t>(options_.entry_elements));
  to->Put<uint64_t>(entries_.size());
  for (auto id = used_.rbegin(); id != used_.rend() && to->status().ok(); ++id) {
    ASSIGN_OR_RETURN(const uint16_t* content, home_->Look(*id, scratch.data()));
    to->Put(*id);
    to->Put(entries_.find(*id)->second.version);
    to->Bytes(content, 2 * scratch.size());
  }
  return to->status();
}

absl::Status MessageStore::Load(StateReader* from) {
  std::vector<uint16_t> content(static_cast<size_t>(options_.entry_elements));
  const size_t bytes = 2 * content.size();
  const uint64_t count = from->Get<uint64_t>("delta buffers");
  if (count > static_cast<uint64_t>(capacity())) {
    from->Fail(absl::InvalidArgumentError(absl::StrCat(
        "the state has ", count, " delta buffers where at most ", capacity(), " have room")));
  }
  for (uint64_t i = 0; i < count && from->ok(); ++i) {
    const uint32_t id = from->Get<uint32_t>("delta buffers");
    const uint32_t version = from->Get<uint32_t>("delta buffers");
    if (from->ok() && (version == 0 || entries_.count(id) > 0)) {
      from->Fail(absl::InvalidArgumentError(
          absl::StrCat("the state has sample ", id, version == 0 ? " of no version" : " twice")));
    }
    if (!from->ok()) break;
    Entry* entry = Insert(id);
    entry->version = version;
    from->Bytes(content.data(), bytes, "delta buffers");
    RETURN_IF_ERROR(home_->Put(id, content.data()));
    entry->hash = Hash64(content.data(), bytes, (uint64_t{version} << 32) | id);
    entry->hashed = true;  // while it is in memory
  }
  return from->status();
}

}  // namespace isthmus::compress
