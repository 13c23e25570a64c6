#include "base/suggest.h"

#include "gtest/gtest.h"

namespace isthmus {
namespace {

TEST(Suggest, EditDistance) {
  EXPECT_EQ(EditDistance("", ""), 0);
  EXPECT_EQ(EditDistance("abc", ""), 3);
  EXPECT_EQ(EditDistance("layers", "layers"), 0);
  EXPECT_EQ(EditDistance("layer", "layers"), 1);
  EXPECT_EQ(EditDistance("laeyrs", "layers"), 1);  // a swap
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3);
}

TEST(Suggest, NearestIgnoresCaseAndDashes) {
  const std::vector<std::string> words = {"micro_batch", "global_batch", "steps"};
  EXPECT_EQ(Nearest("micro-batch", words), "micro_batch");
  EXPECT_EQ(Nearest("MicroBatch", words), "micro_batch");
  EXPECT_EQ(Nearest("step", words), "steps");
  EXPECT_EQ(Nearest("colour", words), "");
  EXPECT_EQ(Nearest(std::string(100000, 'x'), words), "");
  EXPECT_EQ(DidYouMean("stpes", words), "did you mean 'steps'?");
  EXPECT_EQ(DidYouMean("", words), "");
}

}  // namespace
}  // namespace isthmus
