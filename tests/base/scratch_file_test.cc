#include "base/file/scratch_file.h"

#include <filesystem>
#include <string>

#include "gtest/gtest.h"
#include "tests/temp_directory.h"

namespace isthmus {
namespace {

TEST(ScratchFile, IsReadInPiecesAndHasNoName) {
  TempDirectory scratch;
  const std::string directory = scratch.path() + "/a/b";
  auto file = ScratchFile::Create(directory);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE(std::filesystem::is_empty(directory)) << "a killed process leaves nothing";
  ASSERT_TRUE((*file)->Append("abc").ok());
  ASSERT_TRUE((*file)->Append("").ok());
  ASSERT_TRUE((*file)->Append("defg").ok());
  EXPECT_EQ((*file)->bytes(), 7);
  EXPECT_EQ(ReadAll(**file, 100).value(), "abcdefg");
  char c = 0;
  ASSERT_TRUE((*file)->ReadAt(6, 1, &c).ok());
  EXPECT_EQ(c, 'g');
  const absl::Status beyond = (*file)->ReadAt(7, 1, &c);
  EXPECT_EQ(beyond.code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(beyond.message().find(directory), absl::string_view::npos) << beyond;
}

TEST(ScratchFile, WhereNoneCanBeMadeTheDirectoryIsNamed) {
  const absl::Status status = ScratchFile::Create("/dev/null/x").status();
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.message().find("/dev/null/x"), absl::string_view::npos) << status;
}

}  // namespace
}  // namespace isthmus
