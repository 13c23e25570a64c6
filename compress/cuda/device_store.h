// The delta buffers of one end of one boundary in device memory.
//
// Which sample has a buffer, and in which order they are forgotten, is MessageStore's business, so
// that an end on a device and one on a host always agree; here its entries hold no tensors but
// pointers. The capacity is the same number of samples as at the other end, the disk tier's
// included, all in device memory: what does not fit there is ResourceExhausted, and the job needs
// smaller caps. Thread: one owner.
#ifndef ISTHMUS_COMPRESS_CUDA_DEVICE_STORE_H_
#define ISTHMUS_COMPRESS_CUDA_DEVICE_STORE_H_

#include <memory>
#include <unordered_map>
#include <vector>

#include "compress/codec.h"
#include "compress/cuda/device_memory.h"
#include "compress/message_store.h"

namespace isthmus::compress::cuda {

class DeviceStore {
 public:
  static absl::StatusOr<std::unique_ptr<DeviceStore>> Make(int64_t entry_elements,
                                                           const CodecOptions& options);

  // As of MessageStore.
  void Plan(absl::Span<const uint32_t> ids, std::vector<MessageStore::Slot>* plan) const {
    order_->Plan(ids, plan);
  }
  absl::Status Begin(absl::Span<const uint32_t> ids, absl::Span<const MessageStore::Slot> plan);
  absl::StatusOr<uint16_t*> Buffer(uint32_t id);  // device memory; valid until forgotten
  void Bump(uint32_t id) { order_->Bump(id); }
  void Forget(uint32_t id);

  // Equal to MessageStore's over the same buffers. Copies all of them to the host: for tests.
  absl::StatusOr<uint64_t> Hash(Queue* queue);
  int64_t evicted() const { return order_->evicted(); }
  int64_t bytes() const { return entry_bytes_ * static_cast<int64_t>(buffers_.size()); }

 private:
  explicit DeviceStore(int64_t entry_bytes) : entry_bytes_(entry_bytes) {}
  absl::StatusOr<uint16_t*> Take();

  const int64_t entry_bytes_;
  std::unique_ptr<MessageStore> order_;
  std::unordered_map<uint32_t, uint16_t*> buffers_;
  std::vector<DeviceMemory> slabs_;
  std::vector<uint16_t*> free_;
};

}  // namespace isthmus::compress::cuda

#endif  // ISTHMUS_COMPRESS_CUDA_DEVICE_STORE_H_
