// What GPT-2's pattern makes of texts; check_tokens.py compares many more with Hugging Face.
#include "worker/generate/pretokenize.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace isthmus::generate {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(Pretokenize, WordsTakeTheBlankBeforeThem) {
  EXPECT_THAT(SplitWords("Hello world, 42 times!"),
              ElementsAre("Hello", " world", ",", " 42", " times", "!"));
}

TEST(Pretokenize, ContractionsStandAlone) {
  EXPECT_THAT(SplitWords("it's we'll"), ElementsAre("it", "'s", " we", "'ll"));
}

TEST(Pretokenize, OfSeveralBlanksTheLastOneIsTheWords) {
  EXPECT_THAT(SplitWords("a   b"), ElementsAre("a", "  ", " b"));
  EXPECT_THAT(SplitWords("a\n\nb\n"), ElementsAre("a", "\n", "\n", "b", "\n"));
  EXPECT_THAT(SplitWords("end  "), ElementsAre("end", "  "));
  EXPECT_THAT(SplitWords("a\xe2\x80\x83\xe2\x80\x83z"),  // two em spaces
              ElementsAre("a", "\xe2\x80\x83", "\xe2\x80\x83", "z"));
}

TEST(Pretokenize, LettersOfAnyAlphabetAreLetters) {
  EXPECT_THAT(SplitWords("für 你好"), ElementsAre("für", " 你好"));
}

TEST(Pretokenize, NothingOfNothing) { EXPECT_THAT(SplitWords(""), IsEmpty()); }

TEST(Pretokenize, KnowsUtf8) {
  EXPECT_TRUE(IsUtf8("für\n"));
  EXPECT_TRUE(IsUtf8(""));
  EXPECT_FALSE(IsUtf8("f\xfcr"));
}

}  // namespace
}  // namespace isthmus::generate
