#include "compress/codecs/index_set.h"

#include "absl/strings/str_cat.h"
#include "proto/codec/codec_size.h"

namespace isthmus::compress {
namespace {

int LowBits(int64_t n, int64_t kept) {
  int low = 0;
  while (((kept << low) << 1) <= n) ++low;
  return low;
}

bool IsBitmap(int64_t n, int64_t kept) { return IndexSetBytes(n, kept) == (n + 7) / 8; }

void SetBit(char* bytes, int64_t bit) {
  bytes[bit / 8] = static_cast<char>(bytes[bit / 8] | (0x80 >> (bit % 8)));
}

// Calls f(position) for each set bit; stops and returns false if f does.
template <typename F>
bool ForEachBit(absl::string_view bytes, F f) {
  for (size_t i = 0; i < bytes.size(); ++i) {
    uint32_t byte = static_cast<uint8_t>(bytes[i]);
    while (byte != 0) {
      const int bit = __builtin_clz(byte) - 24;
      byte &= ~(0x80u >> bit);
      if (!f(static_cast<int64_t>(8 * i) + bit)) return false;
    }
  }
  return true;
}

}  // namespace

void WriteIndexSet(const std::vector<uint32_t>& indices, int64_t n, std::string* out) {
  const int64_t kept = static_cast<int64_t>(indices.size());
  const size_t start = out->size();
  out->resize(start + static_cast<size_t>(IndexSetBytes(n, kept)));
  if (kept == 0) return;
  char* to = out->data() + start;
  if (IsBitmap(n, kept)) {
    for (uint32_t index : indices) SetBit(to, index);
    return;
  }
  const int low = LowBits(n, kept);
  uint64_t waiting = 0;  // bits not yet written, at the low end
  int bits = 0;
  for (uint32_t index : indices) {
    waiting = (waiting << low) | (index & ((uint64_t{1} << low) - 1));
    for (bits += low; bits >= 8; bits -= 8) *to++ = static_cast<char>(waiting >> (bits - 8));
  }
  if (bits > 0) *to++ = static_cast<char>(waiting << (8 - bits));
  for (int64_t i = 0; i < kept; ++i) SetBit(to, (indices[static_cast<size_t>(i)] >> low) + i);
}

absl::Status ReadIndexSet(absl::string_view bytes, int64_t n, int64_t kept,
                          std::vector<uint32_t>* indices) {
  indices->clear();
  if (kept == 0) return absl::OkStatus();
  indices->reserve(static_cast<size_t>(kept));
  const auto bad = [&] {
    return absl::InvalidArgumentError(absl::StrCat("not a set of ", kept, " indices under ", n));
  };
  if (IsBitmap(n, kept)) {
    const bool fits = ForEachBit(bytes, [&](int64_t bit) {
      indices->push_back(static_cast<uint32_t>(bit));
      return bit < n && static_cast<int64_t>(indices->size()) <= kept;
    });
    return fits && static_cast<int64_t>(indices->size()) == kept ? absl::OkStatus() : bad();
  }
  const int low = LowBits(n, kept);
  const size_t low_bytes = static_cast<size_t>((kept * low + 7) / 8);
  uint64_t waiting = 0;
  int bits = 0;
  size_t at = 0;
  int64_t last = -1;
  const bool fits = ForEachBit(bytes.substr(low_bytes), [&](int64_t bit) {
    const int64_t i = static_cast<int64_t>(indices->size());
    if (i == kept) return false;
    for (; bits < low; bits += 8) waiting = (waiting << 8) | static_cast<uint8_t>(bytes[at++]);
    const int64_t low_part =
        static_cast<int64_t>((waiting >> (bits - low)) & ((uint64_t{1} << low) - 1));
    bits -= low;
    const int64_t index = ((bit - i) << low) | low_part;
    if (index <= last || index >= n) return false;
    last = index;
    indices->push_back(static_cast<uint32_t>(index));
    return true;
  });
  if (!fits || static_cast<int64_t>(indices->size()) != kept) return bad();
  return (waiting & ((uint64_t{1} << bits) - 1)) == 0 ? absl::OkStatus() : bad();
}

}  // namespace isthmus::compress
