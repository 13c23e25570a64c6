// Runs a fuzz target over files and directories, without libFuzzer: the corpus as an ordinary test,
// with any compiler.
//   NAME_replay PATH...               prints how many inputs it ran; exit code 1 if there were
//   none. Each also runs cut short and with bytes changed. NAME_replay --write-seeds DIR     writes
//   good inputs there, where the target knows how to make them
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" void WriteSeeds(const char* directory) __attribute__((weak));

namespace {

void Run(std::vector<uint8_t> bytes) {
  bytes.shrink_to_fit();
  LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
}

int64_t RunFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<uint8_t> bytes((std::istreambuf_iterator<char>(file)),
                                   std::istreambuf_iterator<char>());
  Run(bytes);
  int64_t runs = 1;
  for (size_t n = 0; n < bytes.size(); n += 1 + bytes.size() / 16, ++runs)
    Run({bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(n)});
  for (size_t i = 0; i < bytes.size(); i += 1 + bytes.size() / 32, ++runs) {
    std::vector<uint8_t> changed = bytes;
    changed[i] = static_cast<uint8_t>(changed[i] * 37 + 101);
    Run(std::move(changed));
  }
  return runs;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--write-seeds") {
    if (WriteSeeds != nullptr) WriteSeeds(argv[2]);
    return WriteSeeds != nullptr ? 0 : 1;
  }
  int64_t runs = 0;
  for (int i = 1; i < argc; ++i) {
    if (!std::filesystem::is_directory(argv[i])) {
      runs += RunFile(argv[i]);
      continue;
    }
    for (const auto& entry : std::filesystem::recursive_directory_iterator(argv[i])) {
      if (entry.is_regular_file()) runs += RunFile(entry.path());
    }
  }
  std::printf("%lld inputs\n", static_cast<long long>(runs));
  return runs > 0 ? 0 : 1;
}
