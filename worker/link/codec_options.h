// What the codecs of a link or a group are built with: the same at both ends.
// Thread: pure functions.
#ifndef ISTHMUS_WORKER_LINK_CODEC_OPTIONS_H_
#define ISTHMUS_WORKER_LINK_CODEC_OPTIONS_H_

#include <string>

#include "compress/codec.h"
#include "worker/session_plan.h"

namespace isthmus::worker {

// Of one direction of a boundary. `up`: lower -> upper. `spill_directory` is for codecs that keep
// state; empty: no spill file.
compress::CodecOptions BoundaryCodecOptions(const SessionPlan& plan, const LinkPlan& link,
                                            const CodecSpec& spec, bool up,
                                            const std::string& spill_directory);

// Of the frames `kind` of plan.groups(group) from the rank `from` to the rank `to`. What goes to
// all ranks is encoded once: `to` then changes nothing.
compress::CodecOptions GroupCodecOptions(const SessionPlan& plan, int group, FrameHeader::Kind kind,
                                         int from, int to);

}  // namespace isthmus::worker

#endif  // ISTHMUS_WORKER_LINK_CODEC_OPTIONS_H_
