#include "worker/study/table.h"

#include <algorithm>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace isthmus::study {
namespace {

using testing::HasSubstr;
using testing::Not;

CellRecord Record(const std::string& setting, uint64_t seed, double loss, int64_t wire) {
  CellRecord r;
  r.setting = setting;
  r.where = "all";
  r.seed = seed;
  r.loss = loss;
  r.validation = loss + 1;
  r.steps = 10;
  r.raw_bytes = 80000;
  r.wire_bytes = wire;
  r.encode_s = 0.002;
  r.wire = {{{100, 0, 0}}, {{100, 0, 0}}, 0};
  return r;
}

std::vector<CellRecord> Records() {
  std::vector<CellRecord> records = {Record("none", 1, 2, 80000), Record("a / b", 1, 2.1, 8000),
                                     Record("none", 2, 3, 80000), Record("a / b", 2, 3.3, 8000),
                                     Record("a / b", 9, 50, 8000)};
  records[1].raw_bytes = records[3].raw_bytes = 1;  // whatever they say, the ratio is to none's
  records[0].energies = {{"activation", "b0", 0.5}, {"activation", "b1", 0.7}};
  records[2].energies = {{"activation", "b0", 0.3}};
  return records;
}

std::vector<Row> Rows() { return *MakeRows(Records(), {"gpipe", 2, 1, 4, 0}, {{1, 1}, {2, 2}}); }

TEST(Table, DifferencesAreOfTheSameSeed) {
  const std::vector<Row> rows = Rows();
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].setting, "none");
  EXPECT_EQ(rows[0].difference, 0);
  EXPECT_EQ(rows[1].seeds, 2);  // seed 9 has no uncompressed run
  EXPECT_NEAR(rows[1].loss, 2.7, 1e-12);
  EXPECT_NEAR(rows[1].difference, 0.2, 1e-12);
  EXPECT_NEAR(rows[1].deviation, 0.141421356, 1e-8);
  EXPECT_NEAR(rows[1].ratio(), 10, 1e-12);
  EXPECT_NEAR(rows[1].wire_bytes, 800, 1e-9);
  ASSERT_EQ(rows[1].step_s.size(), std::size(kRatesMbit));
  EXPECT_NEAR(rows[1].step_s[3], 6, 1e-3);
}

TEST(Table, EnergiesAreMeansOverAllPlaces) {
  const std::vector<Energy> energies = MakeEnergies(Records());
  ASSERT_EQ(energies.size(), 1u);
  EXPECT_EQ(energies[0].matrices, 3);
  EXPECT_NEAR(energies[0].share, 0.5, 1e-12);
  EXPECT_EQ(energies[0].least, 0.3);
  EXPECT_EQ(energies[0].most, 0.7);
}

TEST(Table, TextHasALineARowAndColumnsInLine) {
  std::vector<Row> rows = Rows();
  rows.push_back({"predict(x) / none", "late"});
  rows.back().note = "no ids";
  const std::string text = RenderTable(rows, MakeEnergies(Records()));
  EXPECT_THAT(text, HasSubstr("+0.2000 ±0.1414"));
  EXPECT_THAT(text, HasSubstr("predict(x) / none   late  not run: no ids\n"));
  EXPECT_THAT(text, HasSubstr("50.0 %   (3 matrices, 30.0 to 70.0)"));
  EXPECT_THAT(text, HasSubstr("s@5M"));
  EXPECT_THAT(text, Not(HasSubstr(" \n")));
}

TEST(Table, CsvAndJsonHaveEveryRow) {
  const std::vector<Row> rows = Rows();
  const std::string csv = RenderCsv(rows);
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 3);
  EXPECT_THAT(csv, HasSubstr("\n\"a / b\",all,2,2.700000,0.200000,0.141421,3.700000,8000,800,"));
  const auto json = nlohmann::json::parse(RenderJson(rows, MakeEnergies(Records())));
  EXPECT_EQ(json["rows"].size(), 2u);
  EXPECT_NEAR(json["rows"][1]["difference"].get<double>(), 0.2, 1e-12);
  EXPECT_EQ(json["rows"][1]["predicted_step_s"].size(), std::size(kRatesMbit));
  EXPECT_EQ(json["energy_shares"][0]["matrices"], 3);
}

TEST(Table, ThePlotHasAMarkARowAndIsWellFormed) {
  std::vector<Row> rows = Rows();
  rows[1].setting = "<a> & b";
  const std::string svg = RenderSvg(rows, "loss & bytes");
  EXPECT_THAT(svg, HasSubstr("&lt;a&gt; &amp; b"));
  EXPECT_THAT(svg, HasSubstr("loss &amp; bytes"));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  size_t marks = 0;
  for (size_t at = 0; (at = svg.find("<circle", at)) != std::string::npos; ++at) ++marks;
  EXPECT_EQ(marks, 4u);  // two rows, two entries of the legend
  EXPECT_THAT(RenderSvg({}, "empty"), Not(HasSubstr("nan")));
}

}  // namespace
}  // namespace isthmus::study
