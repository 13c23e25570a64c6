#include "tests/compress/reference.h"

#include <cmath>
#include <cstring>

#include "compress/simd/convert.h"
#include "compress/simd/quantize.h"

namespace isthmus::compress {
namespace {

int64_t ScaleCount(const CodecSpec& spec, int64_t positions, int64_t hidden) {
  if (spec.scale() == CodecSpec::PER_CHANNEL) return hidden;
  if (spec.scale() == CodecSpec::PER_TOKEN) return positions;
  return positions * ((hidden + spec.group() - 1) / spec.group());
}

int64_t ScaleOf(const CodecSpec& spec, int64_t p, int64_t c, int64_t hidden) {
  if (spec.scale() == CodecSpec::PER_CHANNEL) return c;
  if (spec.scale() == CodecSpec::PER_TOKEN) return p;
  return p * ((hidden + spec.group() - 1) / spec.group()) + c / spec.group();
}

std::vector<uint16_t> FindScales(const CodecSpec& spec, const std::vector<float>& x,
                                 int64_t positions, int64_t hidden) {
  const size_t count = static_cast<size_t>(ScaleCount(spec, positions, hidden));
  std::vector<std::vector<float>> groups(count);
  for (int64_t p = 0; p < positions; ++p) {
    for (int64_t c = 0; c < hidden; ++c) {
      groups[static_cast<size_t>(ScaleOf(spec, p, c, hidden))].push_back(
          x[static_cast<size_t>(p * hidden + c)]);
    }
  }
  std::vector<uint16_t> scales(count, 0);
  for (size_t g = 0; g < count; ++g) {
    float largest = 0;
    float sum = 0;
    bool finite = true;
    for (float v : groups[g]) {
      finite = finite && std::isfinite(v);
      largest = std::max(largest, std::fabs(v));
      sum += v * v;
    }
    if (!finite) {
      scales[g] = kScaleNan;
      continue;
    }
    float s = largest;
    if (spec.rms_scale()) {  // the order of addition is part of the definition
      if (spec.scale() != CodecSpec::PER_CHANNEL)
        sum = SumOfSquares(groups[g].data(), groups[g].size());
      s = groups[g].empty() ? 0.0f : 2.0f * std::sqrt(sum / static_cast<float>(groups[g].size()));
    }
    if (s < 0x1p-100f) continue;
    if (s > 0x1p100f) s = 0x1p100f;
    uint16_t rounded = static_cast<uint16_t>(FloatBits(s) >> 16);
    if (Bf16ToFloat(rounded) < s) ++rounded;  // up
    scales[g] = rounded;
  }
  return scales;
}

int32_t Code(const CodecSpec& spec, float x, float s) {
  const int bits = spec.bits();
  if (spec.symmetric()) {
    const float top = static_cast<float>((1 << bits) - 1);
    const float inverse = s == 0 ? 0.0f : (top / s) * 0.5f;
    const float y = std::nearbyint(x * inverse + top * 0.5f);
    return static_cast<int32_t>(y < 0 ? 0 : y > top ? top : y);
  }
  const float top = static_cast<float>(1 << (bits - 1));
  const float inverse = s == 0 ? 0.0f : top / s;
  const float y = std::nearbyint(x * inverse);
  return static_cast<int32_t>(y < -top ? -top : y > top - 1 ? top - 1 : y) + (1 << (bits - 1));
}

float Value(const CodecSpec& spec, int32_t code, float s) {
  const int bits = spec.bits();
  if (spec.symmetric()) {
    const int32_t top = (1 << bits) - 1;
    return static_cast<float>(2 * code - top) * (s / static_cast<float>(top));
  }
  const int32_t top = 1 << (bits - 1);
  return static_cast<float>(code - top) * (s / static_cast<float>(top));
}

}  // namespace

void ReferenceAppendBits(uint32_t code, int bits, int64_t* used, std::string* out) {
  for (int b = bits - 1; b >= 0; --b, ++*used) {
    if (*used % 8 == 0) out->push_back('\0');
    if ((code >> b) & 1u) out->back() = static_cast<char>(out->back() | (1 << (7 - *used % 8)));
  }
}

uint32_t ReferenceReadBits(absl::string_view in, int bits, int64_t* used) {
  uint32_t code = 0;
  for (int b = 0; b < bits; ++b, ++*used) {
    const uint8_t byte = static_cast<uint8_t>(in[static_cast<size_t>(*used / 8)]);
    code = code << 1 | ((byte >> (7 - *used % 8)) & 1u);
  }
  return code;
}

std::string ReferenceQuantEncode(const CodecSpec& spec, const std::vector<float>& x,
                                 int64_t positions, int64_t hidden) {
  std::string out;
  const std::vector<uint16_t> scales = FindScales(spec, x, positions, hidden);
  for (uint16_t s : scales) {
    out.push_back(static_cast<char>(s & 0xff));
    out.push_back(static_cast<char>(s >> 8));
  }
  std::string packed;
  int64_t used = 0;
  for (int64_t i = 0; i < positions * hidden; ++i) {
    const uint16_t scale =
        scales[static_cast<size_t>(ScaleOf(spec, i / hidden, i % hidden, hidden))];
    float v = x[static_cast<size_t>(i)];
    if (!std::isfinite(v)) v = 0;
    const float s = scale == kScaleNan ? 0.0f : Bf16ToFloat(scale);
    ReferenceAppendBits(static_cast<uint32_t>(Code(spec, v, s)), spec.bits(), &used, &packed);
  }
  return out + packed;
}

std::vector<float> ReferenceQuantDecode(const CodecSpec& spec, absl::string_view body,
                                        int64_t positions, int64_t hidden) {
  std::vector<float> x(static_cast<size_t>(positions * hidden));
  const size_t count = static_cast<size_t>(ScaleCount(spec, positions, hidden));
  const absl::string_view packed = body.substr(2 * count);
  int64_t used = 0;
  for (int64_t i = 0; i < positions * hidden; ++i) {
    const size_t g = static_cast<size_t>(ScaleOf(spec, i / hidden, i % hidden, hidden));
    uint16_t scale;
    std::memcpy(&scale, body.data() + 2 * g, 2);
    const int32_t code = static_cast<int32_t>(ReferenceReadBits(packed, spec.bits(), &used));
    x[static_cast<size_t>(i)] = Value(spec, code, Bf16ToFloat(scale));
  }
  return x;
}

std::string ReferenceStoreBuffer(int bits, int64_t positions, int64_t hidden,
                                 std::vector<uint16_t>* m) {
  CodecSpec quant;
  quant.set_kind(CodecSpec::QUANT);
  quant.set_bits(bits);
  std::vector<float> values(m->size());
  for (size_t i = 0; i < m->size(); ++i) values[i] = Bf16ToFloat((*m)[i]);
  const std::string stored = ReferenceQuantEncode(quant, values, positions, hidden);
  values = ReferenceQuantDecode(quant, stored, positions, hidden);
  for (size_t i = 0; i < m->size(); ++i) (*m)[i] = FloatToBf16(values[i]);
  return stored;
}

std::string ReferenceDeltaEncode(const CodecSpec& inner, const std::vector<float>& a,
                                 int64_t positions, int64_t hidden, std::vector<uint16_t>* m,
                                 std::vector<float>* sum) {
  std::vector<float> d(a.size());
  for (size_t i = 0; i < a.size(); ++i) d[i] = a[i] - Bf16ToFloat((*m)[i]);
  const std::string body = ReferenceQuantEncode(inner, d, positions, hidden);
  d = ReferenceQuantDecode(inner, body, positions, hidden);
  sum->resize(a.size());
  for (size_t i = 0; i < a.size(); ++i) {
    (*sum)[i] = Bf16ToFloat((*m)[i]) + d[i];
    (*m)[i] = FloatToBf16((*sum)[i]);
  }
  return body;
}

std::vector<float> ReferenceKept(const std::vector<float>& g, const std::vector<bool>& sent) {
  std::vector<float> list;
  for (size_t i = 0; i < g.size(); ++i) {
    if (sent[i]) list.push_back(g[i]);
  }
  return list;
}

std::vector<float> ReferenceUnkept(const std::vector<float>& list, const std::vector<bool>& sent,
                                   bool scaled) {
  std::vector<float> g(sent.size(), 0.0f);
  size_t at = 0;
  for (size_t i = 0; i < sent.size(); ++i) {
    if (!sent[i]) continue;
    const size_t begin = at * sent.size() / list.size();  // of the run that i was drawn from
    const size_t end = (at + 1) * sent.size() / list.size();
    g[i] = scaled ? list[at] * static_cast<float>(end - begin) : list[at];
    ++at;
  }
  return g;
}

}  // namespace isthmus::compress
