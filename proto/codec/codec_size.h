// How many payload bytes a codec makes of a tensor: known before encoding, used by the planner and
// checked against the encoders. Thread: pure functions.
#ifndef ISTHMUS_PROTO_CODEC_CODEC_SIZE_H_
#define ISTHMUS_PROTO_CODEC_CODEC_SIZE_H_

#include <cstdint>

#include "proto/codec.pb.h"

namespace isthmus {

struct TensorDims {
  int64_t samples = 0;
  int64_t positions = 0;
  int64_t hidden = 0;
  int64_t elements() const { return samples * positions * hidden; }
};

// How many of n elements a share of `ratio` is: rounded up, at least 1 of a non-empty n.
int64_t KeptOf(double ratio, int64_t n);

// Elements that top-k keeps of one sample; of a bound KEPT (codec_pair.h), those that its forward
// codec keeps.
int64_t TopKKept(const CodecSpec& spec, int64_t positions, int64_t hidden);

// Bytes of a set of `kept` indices under `n`: Elias-Fano or a bitmap, whichever is less
// (compress/codecs/index_set.h).
int64_t IndexSetBytes(int64_t n, int64_t kept);

// The tensors that cross a boundary with this codec forward, activations and gradients: as many
// channels as an autoencoder has, else the model's.
TensorDims WireDims(const CodecSpec& forward, TensorDims dims);

// The codec of the values of a TOP_K, RANDOM_K, LOW_RANK, AUTOENCODER or KEPT: `inner`, or the
// default.
CodecSpec ValuesOf(const CodecSpec& spec);

// What a COCKTAIL is made of: RANDOM_K of TOP_K of QUANT.
CodecSpec ExpandCocktail(const CodecSpec& spec);

// Exact payload bytes without zstd; token ids of `predict` counted with 2 bytes (4 from a
// vocabulary of 65536 on). A KEPT that is not bound yet counts as one of all elements.
// `warm`: every sample of a delta codec has a buffer (else every sample is
// a key frame).
int64_t EncodedBytes(const CodecSpec& spec, const TensorDims& dims, bool warm);

// The mean where a share of `first_visits` (0 to 1) of the samples goes as key frames of a delta
// codec; EncodedBytes of any other codec.
double MeanEncodedBytes(const CodecSpec& spec, const TensorDims& dims, double first_visits);

// Never exceeded by an encoder, with zstd, in any state.
int64_t MaxEncodedBytes(const CodecSpec& spec, const TensorDims& dims);

// The tables of `predict`, in rows of `hidden` floats: how `bytes` are shared out. Positions come
// first, if they fit; contexts of more than one token id get half of the rest.
inline constexpr int kMaxPredictContext = 4;
inline constexpr int64_t kPredictorBytes = int64_t{256} << 20;  // cap at one end of a boundary
struct PredictorRows {
  int64_t positions = 0;
  int64_t tokens = 1;  // at most, the mean of all among them
  int64_t slots = 0;   // at most, of the hashed table of each context; a power of two, or none
};
PredictorRows PredictorRowsOf(const CodecSpec& predict, int64_t bytes, int64_t positions,
                              int64_t hidden);

// Bytes that the `predict` in a codec (or in its cold codec) takes at most at one end of a boundary
// with the default cap, the sums of a frame among them; 0 for other codecs.
int64_t PredictorBytes(const CodecSpec& spec, const TensorDims& dims, int64_t vocabulary);

// True for codecs with delta buffers.
inline bool HasBuffers(const CodecSpec& spec) { return spec.kind() == CodecSpec::DELTA; }

// Bytes of delta buffers for `samples` samples at one end of one boundary: bf16, or with
// `buffer_bits` the scales of the channels and the codes, up to a whole number of 16-bit words
// (compress/buffers/buffer_format.h). 0 for codecs without buffers.
int64_t BufferBytes(const CodecSpec& spec, int64_t samples, int64_t positions, int64_t hidden);

// Bytes of the indices that a bound KEPT needs of one activation, at one end: 4 each. 0 for others.
int64_t IndicesBytes(const CodecSpec& backward, const TensorDims& dims);

// Bytes of the residuals that the sender keeps of an ef (of each sample of a step) or a lep (of
// each sample of a frame). 0 for others.
int64_t ResidualBytes(const CodecSpec& spec, const TensorDims& dims, int64_t samples_a_step);

// How the buffers of one end of a boundary share its caps.
struct BufferLayout {
  int64_t memory_entries = 0;
  int64_t file_entries = 0;
  int64_t spare_entries = 0;  // more slots of the file, within its cap: for what is on its way
  int64_t capacity() const { return memory_entries + file_entries; }  // samples
};

// How many buffers may be on their way between memory and file, where memory holds that many.
int64_t SpareEntries(int64_t memory_entries);

// `samples`: that can occur; 0: not known. No more is reserved than they need.
BufferLayout LayOutBuffers(int64_t entry_bytes, int64_t memory_bytes, int64_t disk_bytes,
                           int64_t samples);

}  // namespace isthmus

#endif  // ISTHMUS_PROTO_CODEC_CODEC_SIZE_H_
