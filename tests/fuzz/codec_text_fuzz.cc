// The text form of codecs: what parses must be valid, and print to a text that parses to the same.
#include <cstdlib>
#include <string>

#include "proto/codec/codec_text.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::StatusOr<isthmus::CodecSpec> spec =
      isthmus::ParseCodec(absl::string_view(reinterpret_cast<const char*>(data), size));
  if (!spec.ok()) return 0;
  if (!isthmus::ValidateCodec(*spec).ok()) abort();
  const std::string text = isthmus::FormatCodec(*spec);
  const absl::StatusOr<isthmus::CodecSpec> again = isthmus::ParseCodec(text);
  if (!again.ok() || isthmus::FormatCodec(*again) != text) abort();
  return 0;
}
