#include "daemon/outbox.h"

#include <algorithm>
#include <utility>

namespace isthmus::daemon {

void Outbox::Push(DaemonMessage message) {
  const bool record = message.has_step();
  items_.push_back(Item{std::move(message)});
  records_ += record ? 1 : 0;
  if (records_ > kMaxRecords) DropOldest(true);
  if (items_.size() - records_ > kMaxEvents) DropOldest(false);
}

void Outbox::DropOldest(bool record) {
  const auto oldest = std::find_if(items_.begin(), items_.end(), [&](const Item& item) {
    return item.message.has_step() == record;
  });
  if (static_cast<size_t>(oldest - items_.begin()) < next_) --next_;
  if (oldest->sent == absl::InfiniteFuture()) ++dropped_;
  records_ -= record ? 1 : 0;
  items_.erase(oldest);
}

absl::optional<DaemonMessage> Outbox::Next(absl::Time now) {
  if (!HasNext()) return absl::nullopt;
  Item& item = items_[next_++];
  item.sent = std::min(item.sent, now);
  return item.message;
}

void Outbox::Trim(absl::Time now) {
  while (!items_.empty() && next_ > 0 && items_.front().sent + kKeepSent <= now) {
    records_ -= items_.front().message.has_step() ? 1 : 0;
    items_.pop_front();
    --next_;
  }
}

}  // namespace isthmus::daemon
