// The quantiser, the delta update and kept once more, one element and one bit at a time, with no
// thought for speed: what the fast versions (quantize, pack, quant, delta; and any device's
// kernels) must reproduce bit for bit with rounding to nearest.
//
// Thread: pure functions.
#ifndef ISTHMUS_TESTS_COMPRESS_REFERENCE_H_
#define ISTHMUS_TESTS_COMPRESS_REFERENCE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "proto/codec.pb.h"

namespace isthmus::compress {

// Body of one sample of positions x hidden. `spec`: QUANT, not stochastic.
std::string ReferenceQuantEncode(const CodecSpec& spec, const std::vector<float>& x,
                                 int64_t positions, int64_t hidden);
std::vector<float> ReferenceQuantDecode(const CodecSpec& spec, absl::string_view body,
                                        int64_t positions, int64_t hidden);

// One warm visit of AQ-SGD: the body of a - m; *m and *sum (what the receiver computes with)
// afterwards.
std::string ReferenceDeltaEncode(const CodecSpec& inner, const std::vector<float>& a,
                                 int64_t positions, int64_t hidden, std::vector<uint16_t>* m,
                                 std::vector<float>* sum);

// What a quantised delta buffer (BufferFormat) keeps of *m, without the padding to a word, and *m
// as it is found there at the next visit.
std::string ReferenceStoreBuffer(int bits, int64_t positions, int64_t hidden,
                                 std::vector<uint16_t>* m);

// What a `kept` sends of a gradient of one sample: the elements that were sent forward, in order.
std::vector<float> ReferenceKept(const std::vector<float>& g, const std::vector<bool>& sent);
// And what the receiver makes of them. `scaled`: the forward codec is a randomk(..., scaled).
std::vector<float> ReferenceUnkept(const std::vector<float>& list, const std::vector<bool>& sent,
                                   bool scaled);

// Bits to the end of `out`, most significant first; *used counts bits so far.
void ReferenceAppendBits(uint32_t code, int bits, int64_t* used, std::string* out);
uint32_t ReferenceReadBits(absl::string_view in, int bits, int64_t* used);

}  // namespace isthmus::compress

#endif  // ISTHMUS_TESTS_COMPRESS_REFERENCE_H_
