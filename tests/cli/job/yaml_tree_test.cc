#include "coordinator/cli/job/yaml_tree.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace isthmus::cli {
namespace {

using testing::HasSubstr;

TEST(YamlTree, KeepsPlacesAndQuotes) {
  YamlNode root;
  ASSERT_FALSE(ParseYaml("a: 1\nb:\n  - 'x'\n  - {c: ~}\n", &root).has_value());
  ASSERT_EQ(root.kind, YamlNode::kMap);
  ASSERT_EQ(root.entries.size(), 2u);
  EXPECT_EQ(root.entries[0].first.scalar, "a");
  EXPECT_EQ(root.entries[0].second.scalar, "1");
  EXPECT_FALSE(root.entries[0].second.quoted);
  EXPECT_EQ(root.entries[0].second.column, 4);
  const YamlNode& list = root.entries[1].second;
  ASSERT_EQ(list.kind, YamlNode::kList);
  ASSERT_EQ(list.items.size(), 2u);
  EXPECT_TRUE(list.items[0].quoted);
  EXPECT_EQ(list.items[0].line, 3);
  ASSERT_EQ(list.items[1].entries.size(), 1u);
  EXPECT_EQ(list.items[1].entries[0].second.kind, YamlNode::kNull);
}

TEST(YamlTree, DuplicateKeysAreKept) {
  YamlNode root;
  ASSERT_FALSE(ParseYaml("a: 1\na: 2\n", &root).has_value());
  EXPECT_EQ(root.entries.size(), 2u);
}

std::string ErrorOf(const std::string& text) {
  YamlNode root;
  const auto error = ParseYaml(text, &root);
  return error.has_value() ? error->message : "";
}

TEST(YamlTree, RefusesWhatGrows) {
  EXPECT_THAT(ErrorOf("a: &x [1]\nb: 2\n"), HasSubstr("anchors"));
  EXPECT_THAT(ErrorOf("a: *x\n"),
              HasSubstr("anchor"));  // yaml-cpp itself refuses an alias without its anchor
  EXPECT_THAT(ErrorOf("a: !!int 3\n"), HasSubstr("tags"));
  EXPECT_THAT(ErrorOf("a: 1\n---\nb: 2\n"), HasSubstr("second document"));
  EXPECT_THAT(ErrorOf(std::string(kMaxYamlBytes + 1, ' ')), HasSubstr("larger than"));
  EXPECT_THAT(ErrorOf(std::string("a: \0b", 5)), HasSubstr("not a text file"));
  EXPECT_THAT(ErrorOf(std::string(kMaxYamlDepth + 2, '[') + std::string(kMaxYamlDepth + 2, ']')),
              HasSubstr("levels deep"));
  EXPECT_NE(ErrorOf(std::string(100000, '[')), "");
  std::string many = "[";
  for (int i = 0; i <= kMaxYamlNodes; ++i) many += "1,";
  EXPECT_THAT(ErrorOf(many + "]"), HasSubstr("values in one file"));
}

TEST(YamlTree, TextOfAnotherEncodingIsRefusedWithItsPlace) {
  YamlNode root;
  const auto error = ParseYaml(
      "a: 1\nb: B\xfc"
      "cher.txt\n",
      &root);
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->line, 2);
  EXPECT_THAT(error->message, HasSubstr("not UTF-8"));
  EXPECT_EQ(ErrorOf("b: B\xc3\xbc"
                    "cher.txt\n"),
            "");
}

TEST(YamlTree, SyntaxErrorsHaveAPlace) {
  YamlNode root;
  const auto error = ParseYaml("a: 1\nb: [1, 2\nc: 3\n", &root);
  ASSERT_TRUE(error.has_value());
  EXPECT_GE(error->line, 2);
  EXPECT_THAT(error->message, HasSubstr("not valid YAML"));
}

TEST(YamlTree, EmptyTextIsNull) {
  YamlNode root;
  EXPECT_FALSE(ParseYaml("# nothing\n", &root).has_value());
  EXPECT_EQ(root.kind, YamlNode::kNull);
}

}  // namespace
}  // namespace isthmus::cli
