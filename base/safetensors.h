// Safetensors files, in memory or read in pieces: 8-byte little-endian header length, JSON header,
// data. Reads what Hugging Face writes and writes what it reads. Hostile bytes give a Status:
// offsets, overlaps, dtype and shape are checked against the length. Thread: values.
#ifndef ISTHMUS_BASE_SAFETENSORS_H_
#define ISTHMUS_BASE_SAFETENSORS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/file/byte_source.h"

namespace isthmus {

struct SafetensorsEntry {
  std::string dtype;  // F32, F16, BF16, I64, ...
  std::vector<int64_t> shape;
  absl::string_view data;  // into the parsed bytes
};

// `bytes` outlives the result.
absl::StatusOr<std::map<std::string, SafetensorsEntry>> ParseSafetensors(absl::string_view bytes);

// A tensor of a file that is not in memory.
struct SafetensorsPlace {
  std::string dtype;
  std::vector<int64_t> shape;
  int64_t at = 0;  // its first byte in the file
  int64_t bytes = 0;
};

// Reads the header alone; what is beyond it must be as long as the header says.
absl::StatusOr<std::map<std::string, SafetensorsPlace>> ReadSafetensorsPlaces(
    const ByteSource& file);

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

struct SafetensorsSpec {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
};

// What stands before the data of such a file: length and header. The data of `specs` follow in
// their order, which is by name. InvalidArgument as above.
absl::StatusOr<std::string> SafetensorsHead(const std::vector<SafetensorsSpec>& specs,
                                            const std::map<std::string, std::string>& metadata);

// F32, F16 and BF16 to floats. InvalidArgument for other types.
absl::StatusOr<std::vector<float>> ToFloats(const SafetensorsEntry& entry);

// The same of elements [first, first + out.size()) of a tensor that is not in memory.
absl::Status ReadFloats(const ByteSource& file, const SafetensorsPlace& place, int64_t first,
                        absl::Span<float> out);

}  // namespace isthmus

#endif  // ISTHMUS_BASE_SAFETENSORS_H_
