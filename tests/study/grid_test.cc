#include "worker/study/grid.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace isthmus::study {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string Error(const char* text) { return std::string(ParseSetting(text).status().message()); }

TEST(Grid, SettingsAreForwardAndBackward) {
  EXPECT_EQ(ParseSetting("quant( 4 )/quant(8)")->Text(), "quant(4) / quant(8)");
  EXPECT_EQ(ParseSetting("quant(4)")->Text(), "quant(4) / none");
  EXPECT_EQ(ParseSetting("/ lowrank(8)")->Text(), "none / lowrank(8)");
  EXPECT_EQ(ParseSetting("none")->Text(), "none");
  EXPECT_FALSE(ParseSetting("none / none")->compresses());
  EXPECT_TRUE(ParseSetting("none | zstd")->compresses());
}

TEST(Grid, BadSettingsNameSideAndPlace) {
  EXPECT_THAT(Error("quant(9)"), HasSubstr("forward: codec 'quant(9)', column 8: expected bits"));
  EXPECT_THAT(Error("none / quaint(4)"), HasSubstr("backward: codec 'quaint(4)', column 1"));
  EXPECT_THAT(Error("none / none / none"), HasSubstr("column 13: a second '/'"));
  EXPECT_THAT(Error("  "), HasSubstr("FORWARD / BACKWARD"));
}

TEST(Grid, EachSeedBeginsUncompressedAndNoCellComesTwice) {
  Grid grid;
  grid.settings = {*ParseSetting("none"), *ParseSetting("quant(4)"), *ParseSetting("quant( 4)")};
  grid.boundaries = {Where::kEarly, Where::kAll};
  grid.seeds = {1, 2};
  std::vector<std::string> names;
  for (const Cell& c : Cells(grid, 2))
    names.push_back(c.setting.Text() + " " + WhereName(c.where) + " " + std::to_string(c.seed));
  EXPECT_THAT(names, ElementsAre("none all 1", "quant(4) / none early 1", "quant(4) / none all 1",
                                 "none all 2", "quant(4) / none early 2", "quant(4) / none all 2"));
  EXPECT_EQ(Cells(grid, 1).size(), 4u);  // early and all are one
}

TEST(Grid, EarlyIsTheFirstBoundaryAndLateTheLast) {
  Cell cell;
  const auto which = [&] {
    return std::vector<bool>{HasCodec(cell, 0, 3), HasCodec(cell, 1, 3), HasCodec(cell, 2, 3)};
  };
  cell.where = Where::kEarly;
  EXPECT_THAT(which(), ElementsAre(true, false, false));
  cell.where = Where::kLate;
  EXPECT_THAT(which(), ElementsAre(false, false, true));
  cell.where = Where::kAll;
  EXPECT_THAT(which(), ElementsAre(true, true, true));
  EXPECT_EQ(*ParseWhere(" late"), Where::kLate);
  EXPECT_THAT(std::string(ParseWhere("lat").status().message()), HasSubstr("early, late, all"));
}

TEST(Grid, PredictWithoutTheTokenIdsIsAnObstacle) {
  Cell cell;
  cell.setting = *ParseSetting("predict(quant(3))");
  cell.where = Where::kLate;
  EXPECT_THAT(Obstacle(cell, 2), HasSubstr("token ids"));
  EXPECT_EQ(Obstacle(cell, 1), "");
  cell.where = Where::kEarly;
  EXPECT_EQ(Obstacle(cell, 2), "");
  cell.setting = *ParseSetting("quant(4) / predict(quant(3))");
  EXPECT_THAT(Obstacle(cell, 2), HasSubstr("on the way forward"));
}

TEST(Grid, KeptWithoutAForwardCodecThatKeepsIndicesIsAnObstacle) {
  Cell cell;
  for (const char* text : {"kept", "quant(4) / kept", "/ kept(bf16)"}) {
    cell.setting = *ParseSetting(text);
    EXPECT_THAT(Obstacle(cell, 2), HasSubstr("kept")) << text;
  }
  cell.setting = *ParseSetting("topk(0.3) / kept(quant(8))");
  for (Where where : {Where::kEarly, Where::kLate, Where::kAll}) {
    cell.where = where;
    EXPECT_EQ(Obstacle(cell, 2), "");
  }
}

TEST(Grid, TheListsOfSettingsParse) {
  EXPECT_GT(DefaultSettings().size(), QuickSettings().size());
  std::vector<std::string> texts;
  for (const Setting& setting : DefaultSettings()) {
    texts.push_back(setting.Text());
    const Cell cell{setting, Where::kAll, 1};
    EXPECT_EQ(Obstacle(cell, 2), "") << setting.Text();
  }
  EXPECT_THAT(texts, testing::Contains("autoencoder(16) / none"));
  EXPECT_THAT(texts, testing::Contains("topk(0.3) / kept"));
}

}  // namespace
}  // namespace isthmus::study
