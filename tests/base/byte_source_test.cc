#include "base/file/byte_source.h"

#include <string>
#include <vector>

#include "base/hash.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace isthmus {
namespace {

using ::testing::ElementsAre;

std::string Text(size_t bytes) {
  std::string text(bytes, 'x');
  for (size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>(i * 31);
  return text;
}

TEST(ByteSource, OfMemoryGivesWhatLiesWithin) {
  const MemorySource source("abcdef");
  char out[4] = "???";
  ASSERT_TRUE(source.ReadAt(2, 3, out).ok());
  EXPECT_STREQ(out, "cde");
  EXPECT_TRUE(source.ReadAt(6, 0, out).ok());
  EXPECT_FALSE(source.ReadAt(5, 2, out).ok());
  EXPECT_FALSE(source.ReadAt(7, 0, out).ok());
  EXPECT_FALSE(source.ReadAt(-1, 1, out).ok());
}

TEST(ByteSource, PiecesAreAllOfIt) {
  const std::string text = Text(1000);
  const MemorySource source(text);
  std::string all;
  std::vector<size_t> sizes;
  const auto use = [&](absl::string_view piece) {
    all.append(piece.data(), piece.size());
    sizes.push_back(piece.size());
    return all.size() < 900 ? absl::OkStatus() : absl::CancelledError("enough");
  };
  EXPECT_EQ(ForEachPiece(source, 300, use).message(), "enough");
  EXPECT_THAT(sizes, ElementsAre(300, 300, 300));
  EXPECT_EQ(all, text.substr(0, 900));
  all.clear();
  EXPECT_TRUE(ForEachPiece(MemorySource(""), 300, use).ok());
  EXPECT_EQ(all, "");
}

TEST(ByteSource, HashAndWhole) {
  const std::string text = Text(700000);
  const MemorySource source(text);
  EXPECT_EQ(HashOf(source).value(), Hash64(text));
  EXPECT_EQ(HashOf(MemorySource("")).value(), Hash64(""));
  EXPECT_EQ(ReadAll(source, 700000).value(), text);
  EXPECT_EQ(ReadAll(source, 699999).status().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace isthmus
