#include "base/huge_pages.h"

#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>

#include "gtest/gtest.h"

namespace isthmus {
namespace {

// The flags of the mapping that holds `address`, as the kernel lists them.
std::string FlagsOf(const void* address) {
  const auto at = reinterpret_cast<uintptr_t>(address);
  std::ifstream maps("/proc/self/smaps");
  bool there = false;
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0, end = 0;
    char dash = 0;
    std::istringstream words(line);
    if (words >> std::hex >> begin >> dash >> end && dash == '-') there = begin <= at && at < end;
    if (there && line.rfind("VmFlags:", 0) == 0) return line + " ";
  }
  return "";
}

TEST(HugePages, AreAskedForWhereAStringIsLarge) {
  for (const size_t bytes : {size_t{100}, kHugePagesFrom - 1, 2 * kHugePagesFrom}) {
    std::string text = "begin";
    ReserveOnHugePages(bytes, &text);
    EXPECT_EQ(text, "begin");
    EXPECT_GE(text.capacity(), bytes);
    const char* const at = text.data();
    text.resize(bytes, 'x');
    EXPECT_EQ(text.data(), at) << "it was reserved";
    const std::string flags = FlagsOf(at + bytes / 2);
    if (flags.empty()) GTEST_SKIP() << "this kernel lists no flags";
    EXPECT_EQ(flags.find(" hg ") != std::string::npos, bytes > kHugePagesFrom) << flags;
  }
}

TEST(HugePages, WhatIsThereIsKept) {
  std::string text(3 * kHugePagesFrom, 'x');
  const char* const at = text.data();
  ReserveOnHugePages(2 * kHugePagesFrom, &text);
  EXPECT_EQ(text.data(), at);
  EXPECT_EQ(text, std::string(3 * kHugePagesFrom, 'x'));
}

}  // namespace
}  // namespace isthmus
