#include "worker/generate/tokenizer.h"

#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/temp_directory.h"

namespace isthmus::generate {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Bytes a, b, c and the blank; merges to "ab", " ab" and "abc", the first of them foremost.
constexpr char kFile[] = R"({
  "added_tokens": [{"id": 7, "content": "<|endoftext|>", "special": true}],
  "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
  "model": {"type": "BPE",
    "vocab": {"a": 0, "b": 1, "c": 2, "Ġ": 3, "ab": 4, "Ġab": 5, "abc": 6},
    "merges": ["a b", ["Ġ", "ab"], "ab c"]}})";

TEST(Tokenizer, MergesByRankWithinWords) {
  const auto t = Tokenizer::FromJson(kFile);
  ASSERT_TRUE(t.ok()) << t.status();
  EXPECT_THAT(t->Encode("abc ab abcab").value(), ElementsAre(6, 5, 5, 2, 4));
  EXPECT_EQ(t->Decode(5), " ab");
  EXPECT_EQ(t->size(), 8);
}

TEST(Tokenizer, SpecialTokensAreFoundAsTheyStand) {
  const auto t = Tokenizer::FromJson(kFile);
  ASSERT_TRUE(t.ok()) << t.status();
  EXPECT_THAT(t->Encode("ab<|endoftext|>c<|endoftext|>").value(), ElementsAre(4, 7, 2, 7));
  EXPECT_EQ(t->Decode(7), "<|endoftext|>");
}

TEST(Tokenizer, TheOlderPairOfFilesGivesTheSame) {
  const auto t = Tokenizer::FromVocabulary(
      R"({"a": 0, "b": 1, "c": 2, "Ġ": 3, "ab": 4, "Ġab": 5, "abc": 6, "<|endoftext|>": 7})",
      "#version: 0.2\na b\nĠ ab\nab c\n");
  ASSERT_TRUE(t.ok()) << t.status();
  EXPECT_THAT(t->Encode("abc ab<|endoftext|>").value(), ElementsAre(6, 5, 7));
}

TEST(Tokenizer, OfBytesTheIdIsTheByte) {
  const Tokenizer t = Tokenizer::OfBytes();
  EXPECT_THAT(t.Encode("A\xff").value(), ElementsAre(65, 255));
  EXPECT_EQ(t.Decode(255), "\xff");
  EXPECT_EQ(t.Decode(256), "");
}

TEST(Tokenizer, AByteWithoutATokenIsNamed) {
  EXPECT_THAT(Tokenizer::FromJson(kFile)->Encode("x").status().message(), HasSubstr("0x78"));
}

TEST(Tokenizer, ATextThatIsNotUtf8IsRefused) {
  EXPECT_THAT(Tokenizer::FromJson(kFile)->Encode("\xff").status().message(), HasSubstr("UTF-8"));
}

TEST(Tokenizer, OtherKindsAreRefusedInWords) {
  const auto why = [](const char* file) {
    return std::string(Tokenizer::FromJson(file).status().message());
  };
  EXPECT_THAT(why(R"({"model": {"type": "WordPiece"}})"), HasSubstr("WordPiece"));
  EXPECT_THAT(why(R"({"model": {"type": "BPE"}, "pre_tokenizer": {"type": "Metaspace"}})"),
              HasSubstr("not ByteLevel"));
  EXPECT_THAT(why(R"({"model": {"type": "BPE", "byte_fallback": true}})"),
              HasSubstr("byte_fallback"));
  EXPECT_THAT(why("[1"), HasSubstr("'model'"));
  EXPECT_THAT(why(R"({"model": {"vocab": {"a": 0}, "merges": ["a b"]},
                      "pre_tokenizer": {"type": "ByteLevel"}})"),
              HasSubstr("'a b'"));
}

TEST(Tokenizer, IsReadFromADirectoryOrIsThatOfBytes) {
  const TempDirectory dir;
  EXPECT_THAT(Tokenizer::Read(dir.path(), 256)->Encode("a").value(), ElementsAre(97));
  EXPECT_THAT(Tokenizer::Read(dir.path(), 300).status().message(), HasSubstr("--tokenizer DIR"));
  std::ofstream(dir.path() + "/tokenizer.json") << kFile;
  EXPECT_THAT(Tokenizer::Read(dir.path(), 8)->Encode("a").value(), ElementsAre(0));
}

TEST(Tokenizer, OfAnotherModelIsRefused) {
  const TempDirectory dir;
  std::ofstream(dir.path() + "/tokenizer.json") << kFile;
  EXPECT_THAT(Tokenizer::Read(dir.path(), 7).status().message(), HasSubstr("another model's"));
}

}  // namespace
}  // namespace isthmus::generate
