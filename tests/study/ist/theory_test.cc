// The table of the theory, and that a row which is wrong shows.
#include "worker/study/ist/theory.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace isthmus::study::ist {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TEST(IstTheory, EveryRowHoldsOnSeveralProblems) {
  const std::vector<TheoryRow> rows = TheoryTable({2, 20'000});
  EXPECT_GE(rows.size(), 30U);
  for (const TheoryRow& row : rows) {
    EXPECT_TRUE(row.holds()) << row.part << ", " << row.what << ": " << row.measured << " for "
                             << row.expected << ", deviation " << row.deviation;
    EXPECT_GT(row.tolerance, 0);
    EXPECT_LT(row.tolerance, 0.1) << row.what;
  }
  EXPECT_THAT(RenderTheory(rows), Not(HasSubstr("MISSED")));
}

TEST(IstTheory, TheTableIsTheSameEachTimeAndAnotherSeedAnother) {
  const auto text = [](int64_t seeds) { return RenderTheoryJson(TheoryTable({seeds, 2000})); };
  EXPECT_EQ(text(1), text(1));
  EXPECT_NE(text(1), text(3));
}

// The two statements that a user is to take home: the bias is there, and the control has none.
TEST(IstTheory, TheBiasIsThereAndCompressedGradientsHaveNone) {
  int biases = 0;
  double control = 1;
  for (const TheoryRow& row : TheoryTable({1, 50'000})) {
    if (row.what.find("bias") != std::string::npos) {
      ++biases;
      EXPECT_GT(row.measured, 0.1);
    }
    if (row.what == "compressed gradients, Perm-2: x*") control = row.deviation;
  }
  EXPECT_EQ(biases, 4);
  EXPECT_LT(control, 0.02);
}

TEST(IstTheory, AMissIsMarked) {
  TheoryRow row{"part", "what", 1.5, 1, false, 0.5, 0.1};
  EXPECT_FALSE(row.holds());
  EXPECT_THAT(RenderTheory({row}), AllOf(HasSubstr("MISSED"), HasSubstr("1.500000")));
  EXPECT_EQ(nlohmann::json::parse(RenderTheoryJson({row}))[0]["holds"], false);
  row.deviation = std::numeric_limits<double>::quiet_NaN();
  EXPECT_FALSE(row.holds());
  row.deviation = 0.1;
  EXPECT_TRUE(row.holds());
  row.bound = true;
  EXPECT_THAT(RenderTheory({row}), HasSubstr("<= 1.000000"));
}

}  // namespace
}  // namespace isthmus::study::ist
