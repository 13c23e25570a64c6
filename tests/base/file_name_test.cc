#include "base/file/file_name.h"

#include <string>

#include "gtest/gtest.h"

namespace isthmus {
namespace {

TEST(FileName, LeadsNowhereElse) {
  for (const char* name : {"a", "job-1_b.c", "0", "-"}) EXPECT_TRUE(IsFileName(name)) << name;
  for (const char* name : {"", ".", "..", ".a", "a/b", "/", "a b", "a\n", "\xc3\xa4"})
    EXPECT_FALSE(IsFileName(name)) << name;
  EXPECT_TRUE(IsFileName(std::string(kMaxFileNameBytes, 'a')));
  EXPECT_FALSE(IsFileName(std::string(kMaxFileNameBytes + 1, 'a')));
  EXPECT_FALSE(IsFileName(absl::string_view("a\0b", 3)));
}

}  // namespace
}  // namespace isthmus
