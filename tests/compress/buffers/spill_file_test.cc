#include "compress/buffers/spill_file.h"

#include <filesystem>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/temp_directory.h"

namespace isthmus::compress {
namespace {

TEST(SpillFile, KeepsSlotsApartAndLeavesNothingBehind) {
  TempDirectory directory;
  auto file = SpillFile::Make(directory.path(), 5, 100);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE(std::filesystem::is_empty(
      directory.path()));  // it has no name: a crash can leave nothing either
  for (int64_t s = 0; s < 5; ++s)
    ASSERT_TRUE((*file)->Write(s, std::string(100, static_cast<char>('a' + s)).data()).ok());
  for (int64_t s = 0; s < 5; ++s) {
    std::string back(100, '\0');
    ASSERT_TRUE((*file)->Read(s, back.data()).ok());
    EXPECT_EQ(back, std::string(100, static_cast<char>('a' + s)));
  }
}

TEST(SpillFile, AnnouncesAFullDiskAtOnce) {
  TempDirectory directory;
  auto file = SpillFile::Make(directory.path(), int64_t{1} << 20, int64_t{1} << 36);
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.status().code(), absl::StatusCode::kResourceExhausted) << file.status();
  EXPECT_THAT(std::string(file.status().message()), testing::HasSubstr("are free"));
}

TEST(SpillFile, NamesTheDirectoryThatIsMissing) {
  auto file = SpillFile::Make("/nonexistent/spill", 1, 1);
  ASSERT_FALSE(file.ok());
  EXPECT_THAT(std::string(file.status().message()), testing::HasSubstr("/nonexistent/spill"));
}

}  // namespace
}  // namespace isthmus::compress
