#include "proto/codec/codec_grammar.h"

#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/codec/codec_text.h"

namespace isthmus {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::SizeIs;

// "context=1..4" and "buffer=2|4|8" as users write them, an example of each end and of each choice.
std::vector<std::string> Examples(absl::string_view form) {
  std::vector<std::string> out;
  const std::string word(form.substr(0, form.find('=')));
  if (word.size() == form.size()) return {word};
  const absl::string_view value = form.substr(word.size() + 1);
  for (absl::string_view each : absl::StrSplit(value, absl::ByAnyChar(".|"), absl::SkipEmpty())) {
    const std::string text = absl::StrReplaceAll(each, {{"CODEC", "fp16"}, {"R", "0.5"}});
    out.push_back(absl::StrCat(word, "=", text));
  }
  return out;
}

std::string Argument(const CodecForm& form) {
  return absl::StrReplaceAll(form.argument, {{"SUBSET, RATIO, BITS", "0.5, 0.5, 4"},
                                             {"RATIO", "0.5"},
                                             {"CODEC", "fp16"},
                                             {"BITS", "4"},
                                             {"RANK", "8"},
                                             {"CHANNELS", "8"}});
}

std::string Written(const CodecForm& form, const std::string& option) {
  const std::string argument = Argument(form);
  if (argument.empty() && option.empty()) return std::string(form.name);
  return absl::StrCat(form.name, "(", argument, argument.empty() || option.empty() ? "" : ", ",
                      option, ")");
}

TEST(CodecGrammar, EveryCodecAndOptionOfTheTableIsOneOfTheParser) {
  int options = 0;
  for (const CodecForm& form : CodecForms()) {
    const absl::StatusOr<CodecSpec> plain = ParseCodec(Written(form, ""));
    ASSERT_TRUE(plain.ok()) << plain.status();
    EXPECT_EQ(ParseCodec(std::string(form.name)).ok(), form.optional) << form.name;
    for (const CodecOption& option : form.options) {
      for (const std::string& example : Examples(option.form)) {
        const absl::StatusOr<CodecSpec> with = ParseCodec(Written(form, example));
        ASSERT_TRUE(with.ok()) << with.status();
        const bool usual =
            absl::EndsWith(option.meaning, "(the default)") || example == "context=1";
        EXPECT_EQ(FormatCodec(*with) == FormatCodec(*plain), usual) << form.name << " " << example;
        ++options;
      }
    }
  }
  EXPECT_GT(options, 20);
}

// The parser asks the table about every word: what it has no line for is no codec and no option.
TEST(CodecGrammar, WhatTheTableLacksIsRefused) {
  for (const CodecForm& form : CodecForms()) {
    for (const CodecForm& other : CodecForms()) {
      for (const CodecOption& option : other.options) {
        if (FindCodecOption(form.name, option.word()) != nullptr) continue;
        const std::string text = Written(form, Examples(option.form).front());
        EXPECT_FALSE(ParseCodec(text).ok()) << text;
      }
    }
  }
  EXPECT_EQ(FindCodecForm("gzip"), nullptr);
  EXPECT_EQ(FindCodecOption("gzip", "token"), nullptr);
  EXPECT_EQ(FindCodecOption("topk", "scaled"), nullptr);
  EXPECT_EQ(CodecOptionList("gzip"), "");
}

// One of each kind: a codec that the table lacks could not be written.
TEST(CodecGrammar, EveryKindOfCodecIsInTheTable) {
  std::set<int> kinds;
  for (const CodecForm& form : CodecForms()) kinds.insert(ParseCodec(Written(form, ""))->kind());
  EXPECT_EQ(static_cast<int>(kinds.size()), CodecSpec::Kind_descriptor()->value_count());
}

TEST(CodecGrammar, HelpNamesThemAll) {
  const std::string help = CodecHelp();
  for (const CodecForm& form : CodecForms()) {
    EXPECT_THAT(help, HasSubstr(absl::StrCat("  ", form.name)));
    EXPECT_NE(form.meaning, "");
    EXPECT_THAT(CodecList(), HasSubstr(std::string(form.name)));
    for (const CodecOption& option : form.options) {
      EXPECT_THAT(help, HasSubstr(absl::StrCat(option.form)));
      EXPECT_THAT(CodecOptionList(form.name), HasSubstr(std::string(option.form)));
      EXPECT_NE(option.meaning, "");
    }
  }
  const std::vector<std::string> lines = absl::StrSplit(help, '\n');
  EXPECT_THAT(lines, Each(SizeIs(::testing::Lt(160u))));
}

}  // namespace
}  // namespace isthmus
