#include "compress/cuda/device_store.h"

#include <algorithm>
#include <limits>

#include "base/hash.h"
#include "base/rng.h"
#include "base/status.h"

namespace isthmus::compress::cuda {
namespace {

constexpr int64_t kSlabBytes = int64_t{64} << 20;

// Samples that MessageStore would hold under the same caps.
int64_t CapacityOf(int64_t entry_bytes, const CodecOptions& options) {
  const int64_t most = options.distinct_samples > 0 ? options.distinct_samples
                                                    : std::numeric_limits<int64_t>::max() / 4;
  const int64_t memory =
      std::min(std::max<int64_t>(options.buffer_memory_bytes, 0) / entry_bytes, most);
  if (options.spill_directory.empty()) return memory;
  return memory +
         std::min(std::max<int64_t>(options.buffer_disk_bytes, 0) / entry_bytes, most - memory);
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceStore>> DeviceStore::Make(int64_t entry_elements,
                                                               const CodecOptions& options) {
  const int64_t entry_bytes = std::max<int64_t>(2 * entry_elements, 1);
  std::unique_ptr<DeviceStore> store(new DeviceStore(entry_bytes));
  MessageStore::Options order;
  order.entry_elements = 1;
  order.memory_bytes = 2 * CapacityOf(entry_bytes, options);
  ASSIGN_OR_RETURN(store->order_, MessageStore::Make(order));
  return store;
}

absl::Status DeviceStore::Begin(absl::Span<const uint32_t> ids,
                                absl::Span<const MessageStore::Slot> plan) {
  const int64_t before = order_->evicted();
  RETURN_IF_ERROR(order_->Begin(ids, plan));
  if (order_->evicted() == before) return absl::OkStatus();
  std::vector<uint32_t> held;
  for (const auto& [id, buffer] : buffers_) held.push_back(id);
  std::vector<MessageStore::Slot> now;
  order_->Plan(held, &now);
  for (size_t i = 0; i < held.size(); ++i) {
    if (now[i].known) continue;
    free_.push_back(buffers_[held[i]]);
    buffers_.erase(held[i]);
  }
  return absl::OkStatus();
}

absl::StatusOr<uint16_t*> DeviceStore::Take() {
  if (free_.empty()) {
    const int64_t pitch = (entry_bytes_ + 255) / 256 * 256;
    const int64_t entries = std::max<int64_t>(kSlabBytes / pitch, 1);
    DeviceMemory slab;
    RETURN_IF_ERROR(Annotate(slab.Reserve(entries * pitch),
                             "delta buffers; lower the buffer caps of the job (at both ends)"));
    for (int64_t i = entries - 1; i >= 0; --i)
      free_.push_back(reinterpret_cast<uint16_t*>(slab.data() + i * pitch));
    slabs_.push_back(std::move(slab));
  }
  uint16_t* buffer = free_.back();
  free_.pop_back();
  return buffer;
}

absl::StatusOr<uint16_t*> DeviceStore::Buffer(uint32_t id) {
  RETURN_IF_ERROR(order_->Buffer(id).status());
  const auto found = buffers_.find(id);
  if (found != buffers_.end()) return found->second;
  ASSIGN_OR_RETURN(uint16_t * buffer, Take());
  buffers_[id] = buffer;
  return buffer;
}

void DeviceStore::Forget(uint32_t id) {
  order_->Forget(id);
  const auto found = buffers_.find(id);
  if (found == buffers_.end()) return;
  free_.push_back(found->second);
  buffers_.erase(found);
}

absl::StatusOr<uint64_t> DeviceStore::Hash(Queue* queue) {
  std::vector<uint32_t> ids;
  for (const auto& [id, buffer] : buffers_) ids.push_back(id);
  std::vector<MessageStore::Slot> slots;
  order_->Plan(ids, &slots);
  std::vector<uint8_t> content(static_cast<size_t>(entry_bytes_));
  uint64_t sum = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    RETURN_IF_ERROR(queue->ToHost(content.data(), buffers_[ids[i]], entry_bytes_));
    RETURN_IF_ERROR(queue->Wait());
    sum +=
        Mix64(Hash64(content.data(), content.size(), (uint64_t{slots[i].version} << 32) | ids[i]));
  }
  return sum ^ Mix64(static_cast<uint64_t>(ids.size()));
}

}  // namespace isthmus::compress::cuda
