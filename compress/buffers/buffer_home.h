// Where the delta buffers of one end of a boundary lie, whatever memory that is: what MessageStore
// needs to know of it. Tiers change the speed and nothing else: the content of a sample's buffer is
// always what was put there last.
//
// Thread: one owner. An error loses a buffer: it is the result of the next call and of all later
// ones.
#ifndef ISTHMUS_COMPRESS_BUFFERS_BUFFER_HOME_H_
#define ISTHMUS_COMPRESS_BUFFERS_BUFFER_HOME_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace isthmus::compress {

// Host memory of one buffer. `free`: how it is given back, if not by delete.
struct FreeBuffer {
  void (*free)(uint16_t*) = nullptr;
  void operator()(uint16_t* words) const {
    if (free != nullptr) {
      free(words);
    } else {
      delete[] words;
    }
  }
};
using HostBuffer = std::unique_ptr<uint16_t[], FreeBuffer>;

inline HostBuffer NewHostBuffer(int64_t words) {
  return HostBuffer(new uint16_t[static_cast<size_t>(words)]);
}

class BufferHome {
 public:
  virtual ~BufferHome() = default;

  // A frame of these samples begins.
  virtual void Begin(absl::Span<const uint32_t> ids) {}

  // The buffer of a sample, where its owner computes, to be changed; one not heard of before has
  // any content. How long it stays there is the class's own word.
  virtual absl::StatusOr<uint16_t*> Fetch(uint32_t id) = 0;
  // The same in host memory, to be read; moves nothing. `scratch` has room for a buffer.
  // InternalError: not heard of before.
  virtual absl::StatusOr<const uint16_t*> Look(uint32_t id, uint16_t* scratch) = 0;
  // Content from host memory for a sample not heard of before.
  virtual absl::Status Put(uint32_t id, const uint16_t* content) = 0;
  virtual void Drop(uint32_t id) = 0;  // if there is one
  // The frame is done with the sample, but for what its owner has the device do already.
  virtual void Release(uint32_t id) {}

  // These samples come next, in this order: brings them near, as far as there is room.
  virtual void Prefetch(absl::Span<const uint32_t> ids) = 0;

  virtual const absl::Status& status() const = 0;  // the first error
  virtual int64_t on_device() const { return 0; }  // buffers there
  virtual int64_t in_memory() const = 0;           // of the host
  virtual int64_t late_reads() const = 0;          // a Fetch that had to go to the file itself
  virtual int64_t buffers_made() const = 0;        // most that the host's memory ever held
};

}  // namespace isthmus::compress

#endif  // ISTHMUS_COMPRESS_BUFFERS_BUFFER_HOME_H_
