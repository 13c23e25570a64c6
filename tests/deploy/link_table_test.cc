#include "deploy/testnet/link_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace isthmus::testnet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kHeader[] = "from,to,rate,delay,jitter,loss\n";

LinkTable Parse(const std::string& rows, int num_nodes = 0) {
  absl::StatusOr<LinkTable> table = ParseLinkTable(kHeader + rows, "t.csv", num_nodes);
  EXPECT_TRUE(table.ok()) << table.status();
  return table.ok() ? *table : LinkTable{};
}

std::string ErrorOf(const std::string& csv, int num_nodes = 0) {
  absl::StatusOr<LinkTable> table = ParseLinkTable(csv, "t.csv", num_nodes);
  EXPECT_FALSE(table.ok()) << csv;
  return std::string(table.status().message());
}

TEST(LinkTable, ReadsEveryCell) {
  const LinkTable t = Parse("# a comment\n\n a , b , 1.5Gbit , 25ms , 500us , 0.1%\r\n");
  EXPECT_THAT(t.nodes, ElementsAre("a", "b"));
  const LinkSpec& s = t.At(0, 1);
  EXPECT_EQ(s.rate_bits_per_s, 1'500'000'000);
  EXPECT_EQ(s.delay, absl::Milliseconds(25));
  EXPECT_EQ(s.jitter, absl::Microseconds(500));
  EXPECT_DOUBLE_EQ(s.loss, 0.001);
}

TEST(LinkTable, IsSymmetricUnlessBothDirectionsAreGiven) {
  const LinkTable t = Parse("a,b,10Mbit,1ms,,\na,c,20Mbit,2ms,,\nc,a,30Mbit,3ms,,\nb,c,0,0,,\n");
  EXPECT_EQ(t.At(0, 1), t.At(1, 0));
  EXPECT_EQ(t.At(0, 2).rate_bits_per_s, 20'000'000);
  EXPECT_EQ(t.At(2, 0).rate_bits_per_s, 30'000'000);
}

TEST(LinkTable, MoreExactRowsWin) {
  const LinkTable t = Parse("*,*,1Mbit,1ms,,\na,*,2Mbit,1ms,,\na,b,3Mbit,1ms,,\nc,d,4Mbit,1ms,,\n");
  EXPECT_EQ(t.At(0, 1).rate_bits_per_s, 3'000'000);  // a,b
  EXPECT_EQ(t.At(0, 2).rate_bits_per_s, 2'000'000);  // a,c by a,*
  EXPECT_EQ(t.At(2, 0).rate_bits_per_s, 2'000'000);  // mirrored
  EXPECT_EQ(t.At(2, 3).rate_bits_per_s, 4'000'000);
  EXPECT_EQ(t.At(1, 2).rate_bits_per_s, 1'000'000);  // by *,*
}

TEST(LinkTable, TwoRowsAsExactThatDisagreeAreAnErrorNamingBoth) {
  const std::string error = ErrorOf(std::string(kHeader) + "a,*,1Mbit,1ms,,\nb,*,2Mbit,1ms,,\n");
  EXPECT_THAT(error, HasSubstr("t.csv:3:"));
  EXPECT_THAT(error, HasSubstr("line 2"));
  Parse("a,*,1Mbit,1ms,,\nb,*,1Mbit,1ms,,\n");  // that agree: fine
}

TEST(LinkTable, NumberOfNodes) {
  EXPECT_THAT(Parse("a,b,0,0,,\nb,c,0,0,,\na,c,0,0,,\n", 2).nodes, ElementsAre("a", "b"));
  EXPECT_THAT(Parse("*,*,0,0,,\nn0,b,0,0,,\n", 4).nodes, ElementsAre("n0", "b", "n1", "n2"));
  EXPECT_THAT(ErrorOf(std::string(kHeader) + "*,*,0,0,,\n"), HasSubstr("--nodes"));
  EXPECT_THAT(ErrorOf(std::string(kHeader) + "*,*,0,0,,\nhome,@up,5Mbit,,,\n"),
              HasSubstr("names no nodes in its links, only *"));
  EXPECT_THAT(ErrorOf(std::string(kHeader) + "a,b,0,0,,\n", 3), HasSubstr("no row covers"));
  ErrorOf(std::string(kHeader) + "*,*,0,0,,\n", kMaxNodes + 1);
}

TEST(LinkTable, ErrorsNameFileAndLineAndTheFix) {
  EXPECT_THAT(ErrorOf(""), HasSubstr("from,to,rate"));
  EXPECT_THAT(ErrorOf("a,b,1Mbit,1ms,,\n"), HasSubstr("t.csv:1: the first row must be the header"));
  EXPECT_THAT(ErrorOf(kHeader), HasSubstr("no links"));
  const struct {
    const char* row;
    const char* says;
  } cases[] = {
      {"a,b,100,1ms,,", "rate '100' has no unit"},
      {"a,b,fastMbit,1ms,,", "rate 'fastMbit' is not a number"},
      {"a,b,-1Mbit,1ms,,", "out of range"},
      {"a,b,nanMbit,1ms,,", "is not a number"},
      {"a,b,1Mbit,25,,", "delay '25' is not a duration"},
      {"a,b,1Mbit,-1ms,,", "out of range"},
      {"a,b,1Mbit,inf,,", "out of range"},
      {"a,b,1Mbit,1ms,,0.01", "write 0.1%"},
      {"a,b,1Mbit,1ms,,101%", "loss '101%'"},
      {"a,b,1Mbit,1ms,,nan%", "loss 'nan%'"},
      {"a,a,1Mbit,1ms,,", "to itself"},
      {"a,b c,1Mbit,1ms,,", "node name 'b c'"},
      {"-a,b,1Mbit,1ms,,", "node name '-a'"},
      {"a,b,1Mbit,1ms", "4 cells"},
  };
  for (const auto& c : cases) {
    const std::string error = ErrorOf(std::string(kHeader) + "x,y,0,0,,\n" + c.row + "\n");
    EXPECT_THAT(error, HasSubstr(c.says)) << c.row;
    EXPECT_THAT(error, HasSubstr("t.csv:3: ")) << c.row;
  }
  EXPECT_THAT(ErrorOf(std::string(kHeader) + "a,b,0,0,,\na,b,0,0,,\n"), HasSubstr("on line 2"));
}

TEST(LinkTable, WhatAllLinksOfANodeShare) {
  const LinkTable t = Parse(
      "b,@up,20Mbit,,,\n*,@down,1Gbit,0,0,0\n*,*,0,5ms,,\n"
      "a,@down,unlimited,,,\n",
      3);
  EXPECT_THAT(t.nodes, ElementsAre("b", "a", "n0"));
  EXPECT_EQ(t.ends[0].uplink_bits_per_s, 20'000'000);
  EXPECT_EQ(t.ends[0].downlink_bits_per_s, 1'000'000'000);
  EXPECT_EQ(t.ends[1].uplink_bits_per_s, 0);
  EXPECT_EQ(t.ends[1].downlink_bits_per_s, 0) << "its own row wins";
  EXPECT_EQ(t.ends[2].downlink_bits_per_s, 1'000'000'000);
  EXPECT_EQ(t.At(0, 1).rate_bits_per_s, 0) << "the pair's own rate is another thing";
  EXPECT_EQ(Parse("a,b,0,0,,\n").ends.size(), 2u);
  EXPECT_EQ(UniformLinkTable(2, {}, {5'000'000, 0})->ends[1].uplink_bits_per_s, 5'000'000);

  absl::StatusOr<LinkTable> back = ParseLinkTable(FormatLinkTable(t), "back");
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->nodes, t.nodes);
  EXPECT_EQ(FormatLinkTable(*back), FormatLinkTable(t));
}

TEST(LinkTable, ErrorsOfWhatANodeSharesNameLineAndCell) {
  const struct {
    const char* row;
    const char* says;
  } cases[] = {
      {"a,@up,20,,,", "rate '20' has no unit"},
      {"a,@up,20Mbit,5ms,,", "delay, jitter and loss of a,@up"},
      {"a,@down,20Mbit,,,1%", "delay, jitter and loss of a,@down"},
      {"a,@up,20Mbit,late,,", "delay 'late'"},
      {"a,@side,20Mbit,,,", "node name '@side'"},
      {"@up,a,20Mbit,,,", "NODE,@up,RATE,,,"},
      {"a,@up,20Mbit", "3 cells"},
      {"x,@up,2Mbit,,,", "the pair x,@up is already on line 2"},
  };
  for (const auto& c : cases) {
    const std::string error = ErrorOf(std::string(kHeader) + "x,@up,1Mbit,,,\n" + c.row + "\n");
    EXPECT_THAT(error, HasSubstr(c.says)) << c.row;
    EXPECT_THAT(error, HasSubstr("t.csv:3: ")) << c.row;
  }
  EXPECT_THAT(ErrorOf(std::string(kHeader) + "x,@up,1Mbit,,,\n"), HasSubstr("no links"));
}

TEST(LinkTable, TooManyNodesIsAnError) {
  std::string csv = kHeader;
  for (int i = 0; i <= kMaxNodes; ++i) csv += "x" + std::to_string(i) + ",*,0,0,,\n";
  EXPECT_THAT(ErrorOf(csv), HasSubstr("more than 250 nodes"));
}

TEST(LinkTable, FormatReadsBackToTheSame) {
  const LinkTable t = Parse("a,b,1.5Mbit,33.25ms,7us,0.3%\nb,a,64kbit,2s,,33.333%\n");
  absl::StatusOr<LinkTable> back = ParseLinkTable(FormatLinkTable(t), "back");
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->nodes, t.nodes);
  EXPECT_EQ(back->At(0, 1), t.At(0, 1));
  EXPECT_EQ(back->At(1, 0), t.At(1, 0));
}

TEST(LinkTable, UniformHasNumberedNodes) {
  absl::StatusOr<LinkTable> t = UniformLinkTable(3, LinkSpec{1'000'000});
  ASSERT_TRUE(t.ok());
  EXPECT_THAT(t->nodes, ElementsAre("n0", "n1", "n2"));
  EXPECT_EQ(t->At(2, 0).rate_bits_per_s, 1'000'000);
  EXPECT_EQ(t->Find("n2"), 2);
  EXPECT_EQ(t->Find("n3"), -1);
  EXPECT_FALSE(UniformLinkTable(0, {}).ok());
  EXPECT_FALSE(UniformLinkTable(kMaxNodes + 1, {}).ok());
}

TEST(LinkTable, EveryPresetLoadsAndSaysWhatItIs) {
  std::vector<std::string> names;
  for (const Preset& preset : ListPresets()) {
    names.push_back(preset.name);
    EXPECT_FALSE(preset.summary.empty()) << preset.path;
    absl::StatusOr<LinkTable> t = LoadLinkTable(preset.name, 4);
    ASSERT_TRUE(t.ok()) << t.status();
    EXPECT_EQ(t->nodes.size(), 4u);
  }
  EXPECT_THAT(names, ElementsAre("home-lab-2clouds", "lan-1gbit", "regions", "slow-5mbit"));
  absl::StatusOr<LinkTable> regions = LoadLinkTable("regions");
  ASSERT_TRUE(regions.ok()) << regions.status();
  EXPECT_EQ(regions->nodes.size(), 8u);
  absl::StatusOr<LinkTable> none = LoadLinkTable("nowhere");
  EXPECT_THAT(std::string(none.status().message()), HasSubstr("regions"));
  EXPECT_EQ(LoadLinkTable("/nonexistent/x.csv").status().code(), absl::StatusCode::kNotFound);
  // An endless device, and a FIFO that would wait for its writer, are no tables.
  EXPECT_EQ(LoadLinkTable("/dev/zero").status().message(),
            "can't read /dev/zero: it is not a regular file");
}

}  // namespace
}  // namespace isthmus::testnet
