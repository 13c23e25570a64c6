// What the codecs of a link or a group are built with: the same at both ends.
// Thread: pure functions.
#ifndef ISTHMUS_WORKER_LINK_CODEC_OPTIONS_H_
#define ISTHMUS_WORKER_LINK_CODEC_OPTIONS_H_

#include <string>

#include "base/log.h"
#include "compress/codec.h"
#include "worker/device_lane.h"
#include "worker/session_plan.h"

namespace isthmus::worker {

// Of one direction of a boundary. `up`: lower -> upper. `spill_directory` is for codecs that keep
// state; empty: no spill file.
compress::CodecOptions BoundaryCodecOptions(const SessionPlan& plan, const LinkPlan& link,
                                            const CodecSpec& spec, bool up,
                                            const std::string& spill_directory);

// Bytes of a GPU's memory for the delta buffers of one codec, where `free_bytes` of it are free:
// not of what the plan's stages on this host take (proto/plan/card_memory.h). At least 1: 0 would
// be the codec's own choice.
int64_t DeviceBufferBytes(const SessionPlan& plan, int64_t free_bytes);

// The same of the calling thread's device; with another one, or where it can't be asked, 0.
int64_t DeviceBufferBytes(const SessionPlan& plan, compress::Device device);

// Makes a codec of the link by `make(options)`: on the lane of a stage on a GPU, if there is one
// and the device has such a codec, else on the host. *on_lane: which. The two directions need not
// agree: what `kept` takes of the forward codec, the indices, is in host memory either way.
template <typename Make>
auto MakeOnLane(const SessionPlan& plan, const LinkPlan& link, const DeviceLane* lane,
                const compress::CodecOptions& options, bool* on_lane, Make make)
    -> decltype(make(options)) {
  *on_lane = lane != nullptr;
  if (!*on_lane) return make(options);
  compress::CodecOptions there = options;
  there.device = lane->device();
  there.stream = lane->stream();
  there.device_buffer_bytes = DeviceBufferBytes(plan, there.device);
  auto made = make(there);
  if (!absl::IsUnimplemented(made.status())) return made;
  LogInfo(link.id(), ": its codec works on the host: ", made.status().message());
  *on_lane = false;
  return make(options);
}

// Of the frames `kind` of plan.groups(group) from the rank `from` to the rank `to`. What goes to
// all ranks is encoded once: `to` then changes nothing.
compress::CodecOptions GroupCodecOptions(const SessionPlan& plan, int group, FrameHeader::Kind kind,
                                         int from, int to);

}  // namespace isthmus::worker

#endif  // ISTHMUS_WORKER_LINK_CODEC_OPTIONS_H_
