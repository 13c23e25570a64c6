#include "coordinator/planner/bucket_choice.h"

#include <gtest/gtest.h>

namespace isthmus::coordinator {
namespace {

BucketQuestion Question(int layers, double contribution_s, double backward_s) {
  BucketQuestion q;
  q.layers = LayerTensors(layers, {{1, 256, 1024}});
  q.contribution_s = contribution_s;
  q.backward_s = backward_s;
  q.step_s = 1;
  return q;
}

TEST(BucketChoice, HidesWhatTheLastBackwardPassCanHide) {
  // As much to send as to compute: of n buckets the last one is left over.
  const BucketAnswer half = ChooseBuckets(Question(2, 1, 1));
  EXPECT_EQ(half.buckets, 2);
  EXPECT_NEAR(half.hidden_s, 0.5, 0.01);
  const BucketAnswer most = ChooseBuckets(Question(64, 1, 1));
  EXPECT_GT(most.buckets, 8);
  EXPECT_LE(most.buckets, kMostBuckets);
  EXPECT_GT(most.hidden_s, 0.85);
  // More to send than the pass takes: it is hidden but for its first piece.
  EXPECT_NEAR(ChooseBuckets(Question(10, 10, 1)).hidden_s, 0.9, 0.05);
}

TEST(BucketChoice, OneWhereNothingIsGained) {
  EXPECT_EQ(ChooseBuckets(Question(1, 1, 1)).buckets, 1) << "one layer";
  EXPECT_EQ(ChooseBuckets(Question(8, 0.001, 1)).buckets, 1) << "a fast link";
  EXPECT_EQ(ChooseBuckets(Question(8, 1, 0.001)).buckets, 1) << "a short pass";
  EXPECT_EQ(ChooseBuckets(Question(8, 1, 0)).hidden_s, 0);
  BucketQuestion tiny = Question(8, 1, 1);
  tiny.layers = LayerTensors(8, {{1, 1, 8}});
  EXPECT_EQ(ChooseBuckets(tiny).buckets, 1) << "one row";
  tiny.by_matrix = true;
  EXPECT_GT(ChooseBuckets(tiny).buckets, 1);
}

// An embedding, whose gradients are complete at the very end, is most of the stage.
TEST(BucketChoice, WhatComesLastIsNotHidden) {
  BucketQuestion q = Question(4, 1, 1);
  q.layers[0].insert(q.layers[0].begin(), {1, 12 * 256, 1024});
  const BucketAnswer answer = ChooseBuckets(q);
  EXPECT_NEAR(answer.hidden_s, 3.0 / 16, 0.01);
}

}  // namespace
}  // namespace isthmus::coordinator
