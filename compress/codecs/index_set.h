// A sorted set of `kept` distinct indices under n, in a size that is known before encoding
// (IndexSetBytes in proto/codec/codec_size.h): Elias-Fano, 2 + log2(n / kept) bits an index, within
// 0.56 bits of the entropy of a random set; or a bitmap, where that is less.
//
// Elias-Fano: of each index the low l bits (kept x l bits, most significant first, padded to a
// byte), where l is the largest with kept x 2^l <= n; then a bit string of kept + n / 2^l + 1 bits
// (padded to a byte) in which bit (index >> l) + i is set for the i-th index. Thread: pure
// functions.
#ifndef ISTHMUS_COMPRESS_CODECS_INDEX_SET_H_
#define ISTHMUS_COMPRESS_CODECS_INDEX_SET_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace isthmus::compress {

// `indices` is sorted, distinct, each under n < 2^32.
void WriteIndexSet(const std::vector<uint32_t>& indices, int64_t n, std::string* out);

// `bytes` has IndexSetBytes(n, kept) bytes. InvalidArgument: not a sorted set of `kept` indices
// under n, or padding that is not zero.
absl::Status ReadIndexSet(absl::string_view bytes, int64_t n, int64_t kept,
                          std::vector<uint32_t>* indices);

}  // namespace isthmus::compress

#endif  // ISTHMUS_COMPRESS_CODECS_INDEX_SET_H_
