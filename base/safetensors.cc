#include "base/safetensors.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "nlohmann/json.hpp"

namespace isthmus {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kMaxHeaderBytes = uint64_t{16}
                                     << 20;  // GPT-2 XL has 580 tensors and a header of 60 KB
constexpr int kMaxHeaderDepth = 3;           // {name: {data_offsets: [..]}}
constexpr int kMaxRank = 16;
constexpr int64_t kPrefixBytes = 8;  // the length of the header
constexpr char kMetadata[] = "__metadata__";

// 0: not a type of the format.
int64_t BytesOf(absl::string_view dtype) {
  for (const char* one : {"BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3"}) {
    if (dtype == one) return 1;
  }
  for (const char* two : {"F16", "BF16", "I16", "U16"}) {
    if (dtype == two) return 2;
  }
  for (const char* four : {"F32", "I32", "U32"}) {
    if (dtype == four) return 4;
  }
  for (const char* eight : {"F64", "I64", "U64"}) {
    if (dtype == eight) return 8;
  }
  return 0;
}

// Names come from outside: cut and escaped before they get into a message.
std::string Quoted(const std::string& name) {
  return Json(name.substr(0, 200)).dump(-1, ' ', true, Json::error_handler_t::replace);
}

absl::Status Bad(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("not a valid safetensors file: ", what));
}

// Elements x bytes of the type, checked for overflow and against the type.
absl::StatusOr<int64_t> TensorBytes(const std::string& name, absl::string_view dtype,
                                    const std::vector<int64_t>& shape) {
  int64_t bytes = BytesOf(dtype);
  if (bytes == 0)
    return Bad(absl::StrCat("tensor ", Quoted(name), " has the unknown type ",
                            Quoted(std::string(dtype))));
  for (int64_t n : shape) {
    if (n < 0 || __builtin_mul_overflow(bytes, n, &bytes)) {
      return Bad(absl::StrCat("tensor ", Quoted(name), " has an impossible shape"));
    }
  }
  return bytes;
}

// A JSON integer in [0, 2^63).
bool AsSize(const Json& value, int64_t* out) {
  if (!value.is_number_unsigned()) return false;
  const uint64_t n = value.get<uint64_t>();
  if (n > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return false;
  *out = static_cast<int64_t>(n);
  return true;
}

struct Placed {
  int64_t begin;
  int64_t end;
  const std::string* name;
};

absl::StatusOr<SafetensorsPlace> ParsePlace(const std::string& name, const Json& json,
                                            int64_t data_bytes, Placed* placed) {
  const std::string where = absl::StrCat("tensor ", Quoted(name));
  if (!json.is_object()) return Bad(absl::StrCat(where, " is not described by an object"));
  const auto dtype = json.find("dtype"), shape = json.find("shape"),
             offsets = json.find("data_offsets");
  if (dtype == json.end() || !dtype->is_string()) return Bad(absl::StrCat(where, " has no dtype"));
  if (shape == json.end() || !shape->is_array() || shape->size() > kMaxRank)
    return Bad(absl::StrCat(where, " has no usable shape"));
  if (offsets == json.end() || !offsets->is_array() || offsets->size() != 2)
    return Bad(absl::StrCat(where, " has no data_offsets"));
  SafetensorsPlace entry;
  entry.dtype = dtype->get_ref<const std::string&>();
  for (const Json& value : *shape) {
    int64_t n = 0;
    if (!AsSize(value, &n))
      return Bad(absl::StrCat(where, " has a shape that is not made of sizes"));
    entry.shape.push_back(n);
  }
  if (!AsSize((*offsets)[0], &placed->begin) || !AsSize((*offsets)[1], &placed->end) ||
      placed->begin > placed->end || placed->end > data_bytes) {
    return Bad(absl::StrCat(where, " lies outside the ", data_bytes,
                            " data bytes: the file is cut off or its header is wrong"));
  }
  ASSIGN_OR_RETURN(const int64_t bytes, TensorBytes(name, entry.dtype, entry.shape));
  if (bytes != placed->end - placed->begin) {
    return Bad(absl::StrCat(where, " needs ", bytes, " bytes for its type and shape but has ",
                            placed->end - placed->begin));
  }
  entry.at = placed->begin;
  entry.bytes = bytes;
  return entry;
}

// Like the reference implementation: the tensors cover the data without overlap or hole.
absl::Status CheckCover(std::vector<Placed> placed, int64_t data_bytes) {
  std::sort(placed.begin(), placed.end(), [](const Placed& a, const Placed& b) {
    return std::make_pair(a.begin, a.end) < std::make_pair(b.begin, b.end);
  });
  int64_t at = 0;
  for (const Placed& p : placed) {
    if (p.begin != at) {
      return Bad(absl::StrCat("tensor ", Quoted(*p.name), " starts at data byte ", p.begin,
                              p.begin < at ? ", inside another one" : ", after a hole",
                              " (expected ", at, ")"));
    }
    at = p.end;
  }
  if (at != data_bytes) {
    return Bad(absl::StrCat("its tensors end at data byte ", at, " of ", data_bytes));
  }
  return absl::OkStatus();
}

absl::StatusOr<Json> ParseHeader(absl::string_view header) {
  std::set<std::string> names;
  std::string repeated;
  bool too_deep = false;
  const auto watch = [&](int depth, Json::parse_event_t event, Json& value) {
    if (depth > kMaxHeaderDepth) too_deep = true;
    if (event == Json::parse_event_t::key && depth == 1 &&
        !names.insert(value.get<std::string>()).second) {
      repeated = value.get<std::string>();
    }
    return depth <= kMaxHeaderDepth;  // deeper values are dropped while parsing
  };
  Json json = Json::parse(header.begin(), header.end(), watch, /*allow_exceptions=*/false);
  if (json.is_discarded() || !json.is_object()) return Bad("its header is not a JSON object");
  if (too_deep) return Bad("its header is nested too deeply");
  if (!repeated.empty()) return Bad(absl::StrCat("tensor ", Quoted(repeated), " is named twice"));
  return json;
}

float HalfToFloat(uint16_t half) {
  const uint32_t sign = uint32_t{half & 0x8000u} << 16;
  const uint32_t exponent = (half >> 10) & 0x1f;
  uint32_t mantissa = half & 0x3ff;
  uint32_t bits;
  if (exponent == 0x1f) {
    bits = sign | 0x7f800000u | (mantissa << 13);
  } else if (exponent != 0) {
    bits = sign | ((exponent + 112) << 23) | (mantissa << 13);
  } else if (mantissa == 0) {
    bits = sign;
  } else {  // subnormal: normalise
    uint32_t e = 113;
    while ((mantissa & 0x400) == 0) {
      mantissa <<= 1;
      --e;
    }
    bits = sign | (e << 23) | ((mantissa & 0x3ff) << 13);
  }
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Of an element of a type that floats are made of.
absl::StatusOr<int64_t> FloatBytes(const std::string& dtype) {
  if (dtype == "F32") return 4;
  if (dtype == "F16" || dtype == "BF16") return 2;
  return absl::InvalidArgumentError(
      absl::StrCat("type ", Quoted(dtype), " is not supported; convert to F32, F16 or BF16"));
}

// `from` may be the second half of `out` in place, where the type is half as wide.
void Widen(const std::string& dtype, const char* from, absl::Span<float> out) {
  if (dtype == "F32") {
    if (!out.empty()) std::memcpy(out.data(), from, out.size() * 4);
    return;
  }
  const bool half = dtype == "F16";
  for (size_t i = 0; i < out.size(); ++i) {
    uint16_t bits;
    std::memcpy(&bits, from + 2 * i, 2);
    const uint32_t wide = uint32_t{bits} << 16;
    float value;
    std::memcpy(&value, &wide, 4);
    out[i] = half ? HalfToFloat(bits) : value;
  }
}

// The length of the header; `prefix` is the beginning of a file of `file_bytes`.
absl::StatusOr<int64_t> HeaderBytes(absl::string_view prefix, int64_t file_bytes) {
  uint64_t header_bytes = 0;
  if (prefix.size() < sizeof header_bytes)
    return Bad(absl::StrCat("it has ", file_bytes, " bytes"));
  std::memcpy(&header_bytes, prefix.data(), sizeof header_bytes);
  if (header_bytes > kMaxHeaderBytes) {
    return Bad(absl::StrCat("its header would be ", header_bytes, " bytes long (limit ",
                            kMaxHeaderBytes, ")"));
  }
  if (static_cast<int64_t>(header_bytes) > file_bytes - kPrefixBytes)
    return Bad(absl::StrCat("its header of ", header_bytes, " bytes is cut off"));
  return static_cast<int64_t>(header_bytes);
}

// Places in the data, which begin behind the header.
absl::StatusOr<std::map<std::string, SafetensorsPlace>> ParsePlaces(absl::string_view text,
                                                                    int64_t data_bytes) {
  ASSIGN_OR_RETURN(const Json header, ParseHeader(text));
  std::map<std::string, SafetensorsPlace> places;
  std::vector<Placed> placed;
  for (const auto& item : header.items()) {
    if (item.key() == kMetadata) continue;
    Placed span{0, 0, nullptr};
    ASSIGN_OR_RETURN(SafetensorsPlace place,
                     ParsePlace(item.key(), item.value(), data_bytes, &span));
    span.name = &places.emplace(item.key(), std::move(place)).first->first;
    placed.push_back(span);
  }
  RETURN_IF_ERROR(CheckCover(std::move(placed), data_bytes));
  return places;
}

}  // namespace

absl::StatusOr<std::map<std::string, SafetensorsEntry>> ParseSafetensors(absl::string_view bytes) {
  const auto size = static_cast<int64_t>(bytes.size());
  ASSIGN_OR_RETURN(const int64_t header_bytes, HeaderBytes(bytes.substr(0, kPrefixBytes), size));
  const int64_t data_at = kPrefixBytes + header_bytes;
  ASSIGN_OR_RETURN(auto places,
                   ParsePlaces(bytes.substr(kPrefixBytes, header_bytes), size - data_at));
  const absl::string_view data = bytes.substr(data_at);
  std::map<std::string, SafetensorsEntry> entries;
  for (auto& [name, place] : places) {
    entries.emplace(name, SafetensorsEntry{std::move(place.dtype), std::move(place.shape),
                                           data.substr(place.at, place.bytes)});
  }
  return entries;
}

absl::StatusOr<std::map<std::string, SafetensorsPlace>> ReadSafetensorsPlaces(
    const ByteSource& file) {
  std::string prefix(static_cast<size_t>(std::min(file.bytes(), kPrefixBytes)), '\0');
  RETURN_IF_ERROR(file.ReadAt(0, prefix.size(), prefix.data()));
  ASSIGN_OR_RETURN(const int64_t header_bytes, HeaderBytes(prefix, file.bytes()));
  std::string header(static_cast<size_t>(header_bytes), '\0');
  RETURN_IF_ERROR(file.ReadAt(kPrefixBytes, header.size(), header.data()));
  const int64_t data_at = kPrefixBytes + header_bytes;
  ASSIGN_OR_RETURN(auto places, ParsePlaces(header, file.bytes() - data_at));
  for (auto& [name, place] : places) place.at += data_at;
  return places;
}

absl::StatusOr<std::string> SafetensorsHead(const std::vector<SafetensorsSpec>& specs,
                                            const std::map<std::string, std::string>& metadata) {
  Json header = Json::object();
  if (!metadata.empty()) header[kMetadata] = metadata;
  int64_t offset = 0;
  for (const SafetensorsSpec& spec : specs) {
    ASSIGN_OR_RETURN(const int64_t bytes, TensorBytes(spec.name, spec.dtype, spec.shape));
    if (spec.name == kMetadata || header.contains(spec.name)) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor name ", Quoted(spec.name), " is used twice or reserved"));
    }
    ISTHMUS_CHECK(&spec == &specs.front() || (&spec)[-1].name < spec.name);  // their data follow
    header[spec.name] = {
        {"dtype", spec.dtype}, {"shape", spec.shape}, {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const Json::exception&) {
    return absl::InvalidArgumentError("a tensor name or metadata value is not UTF-8");
  }
  text.append((8 - text.size() % 8) % 8, ' ');  // so that the data starts aligned
  const uint64_t header_bytes = text.size();
  if (header_bytes > kMaxHeaderBytes)
    return absl::InvalidArgumentError("too many tensors for one safetensors file");
  text.insert(0, reinterpret_cast<const char*>(&header_bytes), sizeof header_bytes);
  return text;
}

absl::StatusOr<std::string> WriteSafetensors(std::vector<SafetensorsItem> items,
                                             const std::map<std::string, std::string>& metadata) {
  std::sort(items.begin(), items.end(),
            [](const SafetensorsItem& a, const SafetensorsItem& b) { return a.name < b.name; });
  std::vector<SafetensorsSpec> specs;
  size_t data_bytes = 0;
  for (const SafetensorsItem& item : items) {
    ASSIGN_OR_RETURN(const int64_t bytes, TensorBytes(item.name, item.dtype, item.shape));
    if (static_cast<uint64_t>(bytes) != item.data.size()) {
      return absl::InvalidArgumentError(absl::StrCat("tensor ", Quoted(item.name), " has ",
                                                     item.data.size(),
                                                     " bytes; its type and shape need ", bytes));
    }
    specs.push_back({item.name, item.dtype, item.shape});
    data_bytes += item.data.size();
  }
  ASSIGN_OR_RETURN(std::string out, SafetensorsHead(specs, metadata));
  out.reserve(out.size() + data_bytes);
  for (const SafetensorsItem& item : items) out.append(item.data.data(), item.data.size());
  return out;
}

absl::StatusOr<std::vector<float>> ToFloats(const SafetensorsEntry& entry) {
  ASSIGN_OR_RETURN(const int64_t width, FloatBytes(entry.dtype));
  std::vector<float> values(entry.data.size() / width);
  Widen(entry.dtype, entry.data.data(), absl::MakeSpan(values));
  return values;
}

absl::Status ReadFloats(const ByteSource& file, const SafetensorsPlace& place, int64_t first,
                        absl::Span<float> out) {
  ASSIGN_OR_RETURN(const int64_t width, FloatBytes(place.dtype));
  const auto count = static_cast<int64_t>(out.size());
  if (first < 0 || first > place.bytes / width || count > place.bytes / width - first)
    return absl::InvalidArgumentError(
        absl::StrCat("elements ", first, " to ", first + count, " of ", place.bytes / width));
  char* const bytes = reinterpret_cast<char*>(out.data());
  if (width == 4) return file.ReadAt(place.at + 4 * first, out.size() * 4, bytes);
  // Into the second half of `out`: each element is read before the ones that it becomes are
  // written over it.
  char* const narrow = bytes + out.size() * 2;
  RETURN_IF_ERROR(file.ReadAt(place.at + 2 * first, out.size() * 2, narrow));
  Widen(place.dtype, narrow, out);
  return absl::OkStatus();
}

}  // namespace isthmus
