#include "compress/codecs/mean_table.h"

#include "gtest/gtest.h"

namespace isthmus::compress {
namespace {

TEST(MeanTable, FollowsTheMeansOfFrames) {
  MeanTable table(2, 0.25f, 0, 10);
  EXPECT_EQ(table.Find(7), nullptr);
  table.EndFrame();  // nothing came
  for (float x : {1.0f, 3.0f}) {
    float* sum = table.Add(7);
    sum[0] += x;
    sum[1] -= x;
  }
  EXPECT_EQ(table.Find(7), nullptr) << "a mean does not change within a frame";
  table.EndFrame();
  ASSERT_NE(table.Find(7), nullptr);
  EXPECT_EQ(table.Find(7)[0], 2.0f) << "the first frame's mean is taken as it is";
  EXPECT_EQ(table.Find(7)[1], -2.0f);
  for (int update = 2; update <= 6; ++update) {
    const float before = table.Find(7)[0];
    table.Add(7)[0] += 4.0f;
    table.EndFrame();
    const float rate = update < 4 ? 1.0f / static_cast<float>(update) : 0.25f;
    EXPECT_EQ(table.Find(7)[0], before + rate * (4.0f - before)) << update;
  }
  EXPECT_EQ(table.bytes(), 8);
}

TEST(MeanTable, PatienceHalvesTheFirstFrame) {
  MeanTable table(1, 0.01f, 1, 10);
  table.Add(0)[0] += 6.0f;
  table.EndFrame();
  EXPECT_EQ(table.Find(0)[0], 3.0f);
}

TEST(MeanTable, TakesTheFrameOfAnother) {
  MeanTable tokens(1, 0.5f, 0, 10), all(1, 0.5f, 0, 1);
  for (uint32_t key : {5u, 9u, 5u, 0u}) tokens.Add(key)[0] += static_cast<float>(key);
  all.AddFrame(tokens);
  tokens.EndFrame();
  all.EndFrame();
  EXPECT_EQ(all.Find(0)[0], 19.0f / 4);
  all.AddFrame(tokens);  // nothing came since
  all.EndFrame();
  EXPECT_EQ(all.Find(0)[0], 19.0f / 4);
}

TEST(MeanTable, KeysBeyondItsRowsGetNone) {
  MeanTable table(1, 0.5f, 0, 2), same(1, 0.5f, 0, 2);
  for (MeanTable* t : {&table, &same}) {
    for (uint32_t key : {5u, 9u, 5u, 11u}) t->Add(key)[0] += static_cast<float>(key);
    t->EndFrame();
  }
  EXPECT_EQ(table.Find(5)[0], 5.0f);
  EXPECT_EQ(table.Find(9)[0], 9.0f);
  EXPECT_EQ(table.Find(11), nullptr);
  EXPECT_EQ(table.bytes(), 8);
  EXPECT_EQ(table.Hash(), same.Hash());
  same.Add(9)[0] += 1.0f;
  same.EndFrame();
  EXPECT_NE(table.Hash(), same.Hash());
}

}  // namespace
}  // namespace isthmus::compress
