// Safetensors files: in memory and in pieces the same is taken and refused, with the same words;
// what is taken lies within the file, and comes as floats where its type is one of them.
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "base/file/byte_source.h"
#include "base/safetensors.h"

namespace {

void Require(bool holds) {
  if (!holds) abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  const isthmus::MemorySource source(bytes);
  const auto entries = isthmus::ParseSafetensors(bytes);
  const auto places = isthmus::ReadSafetensorsPlaces(source);
  Require(entries.status() == places.status());
  if (!entries.ok()) return 0;
  Require(entries->size() == places->size());
  for (const auto& [name, place] : *places) {
    const isthmus::SafetensorsEntry& entry = entries->at(name);
    Require(place.at >= 0 && place.bytes >= 0 && place.at + place.bytes <= source.bytes());
    Require(entry.data == absl::string_view(bytes).substr(place.at, place.bytes));
    Require(entry.dtype == place.dtype && entry.shape == place.shape);
    const auto whole = isthmus::ToFloats(entry);
    std::vector<float> read(whole.ok() ? whole->size() : 0);
    const absl::Status status = isthmus::ReadFloats(source, place, 0, absl::MakeSpan(read));
    Require(status == whole.status());
    Require(read.empty() || std::memcmp(read.data(), whole->data(), read.size() * 4) == 0);
  }
  return 0;
}

extern "C" void WriteSeeds(const char* directory) {
  const std::string data = "0123456789abcdef";
  const auto write = [&](const char* name, std::vector<isthmus::SafetensorsItem> items) {
    std::ofstream(std::string(directory) + "/" + name, std::ios::binary)
        << isthmus::WriteSafetensors(std::move(items), {{"format", "pt"}}).value();
  };
  write("0", {});
  write("1", {{"a", "F32", {2, 2}, data}, {"b", "F16", {8}, data}, {"c", "BF16", {1, 8}, data}});
  write("2", {{"a", "I64", {2}, data}, {"empty", "F32", {0, 7}, ""}, {"scalar", "U8", {}, "x"}});
}
