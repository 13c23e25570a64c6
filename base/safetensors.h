// Safetensors files in memory: 8-byte little-endian header length, JSON header, data. Reads what
// Hugging Face writes and writes what it reads. Hostile bytes give a Status: offsets, overlaps,
// dtype and shape are checked against the length. Thread: values.
#ifndef ISTHMUS_BASE_SAFETENSORS_H_
#define ISTHMUS_BASE_SAFETENSORS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace isthmus {

struct SafetensorsEntry {
  std::string dtype;  // F32, F16, BF16, I64, ...
  std::vector<int64_t> shape;
  absl::string_view data;  // into the parsed bytes
};

// `bytes` outlives the result.
absl::StatusOr<std::map<std::string, SafetensorsEntry>> ParseSafetensors(absl::string_view bytes);

struct SafetensorsItem {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  absl::string_view data;  // size must match dtype and shape
};

// Items in name order; metadata goes to "__metadata__". InvalidArgument names an item whose size
// does not match.
absl::StatusOr<std::string> WriteSafetensors(std::vector<SafetensorsItem> items,
                                             const std::map<std::string, std::string>& metadata);

// F32, F16 and BF16 to floats. InvalidArgument for other types.
absl::StatusOr<std::vector<float>> ToFloats(const SafetensorsEntry& entry);

}  // namespace isthmus

#endif  // ISTHMUS_BASE_SAFETENSORS_H_
