// What a codec remembers from frame to frame, saved and taken up again: an encoder or decoder that
// was loaded goes on bit for bit as the saved one would have.
//
// A state belongs to one codec, one set of options and one place (which link, direction, boundary);
// under any other it is refused in words. Codecs on a device save and load the same states as those
// on a host. What both ends share is not compared here: their users compare AgreementHash before
// either uses a loaded codec. Layout: README.md. Thread: pure functions.
#ifndef ISTHMUS_COMPRESS_STATE_CODEC_STATE_H_
#define ISTHMUS_COMPRESS_STATE_CODEC_STATE_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "compress/codec.h"
#include "compress/state/state_io.h"

namespace isthmus::compress {

// Where and when a state was saved.
struct StateStamp {
  uint64_t place = 0;       // hash of what names the link, direction and boundary
  int64_t step = 0;         // committed steps
  uint64_t generation = 0;  // of the session that saved it
};

// False: the next frame of such a codec depends on no frame before, at neither end.
bool KeepsState(const CodecSpec& spec);

// Between two frames. Errors of the sink come back as they are.
absl::Status SaveState(Encoder* encoder, const CodecSpec& spec, const CodecOptions& options,
                       const StateStamp& stamp, StateSink* sink);
absl::Status SaveState(Decoder* decoder, const CodecSpec& spec, const CodecOptions& options,
                       const StateStamp& stamp, StateSink* sink);

template <typename Codec>
struct LoadedCodec {
  std::unique_ptr<Codec> codec;
  StateStamp stamp;
};

// A codec with the state of `place` and `step`. FailedPrecondition: it is of another codec, set of
// options, place or step, which the message names; DataLoss, InvalidArgument: truncated or changed
// bytes, or such as no codec writes.
absl::StatusOr<LoadedCodec<Encoder>> LoadEncoder(const CodecSpec& spec, const CodecOptions& options,
                                                 uint64_t place, int64_t step, StateSource* source);
absl::StatusOr<LoadedCodec<Decoder>> LoadDecoder(const CodecSpec& spec, const CodecOptions& options,
                                                 uint64_t place, int64_t step, StateSource* source);

// Equal at the two ends of a direction if they may go on together: the same stamp, number of frames
// and shared state. Never 0. An error where the state can't be read.
absl::StatusOr<uint64_t> AgreementHash(const LoadedCodec<Encoder>& loaded);
absl::StatusOr<uint64_t> AgreementHash(const LoadedCodec<Decoder>& loaded);

}  // namespace isthmus::compress

#endif  // ISTHMUS_COMPRESS_STATE_CODEC_STATE_H_
