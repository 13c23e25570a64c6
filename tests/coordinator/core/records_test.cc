#include "coordinator/core/records.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace isthmus::coordinator {
namespace {

StepRecord Record(int stage, int64_t step, uint64_t generation = 1) {
  StepRecord r;
  r.set_generation(generation);
  r.set_step(step);
  r.set_rank(stage);
  r.set_tokens(100);
  r.set_step_s(0.5 + stage);
  r.set_compute_s(0.25 * (stage + 1));
  r.set_encode_s(0.01);
  r.set_committed(true);
  return r;
}

TEST(RecordMerger, AStepIsWholeWhenEveryStageHasTold) {
  RecordMerger merger(1, 2, 0);
  StepRecord last = Record(1, 0);
  last.set_has_loss(true);
  last.set_loss(5.5);
  auto* d = last.add_directions();
  d->set_link_id("b0");
  d->set_raw_bytes(400);
  d->set_wire_bytes(90);
  ASSERT_FALSE(merger.Add(last)->has_value());
  ASSERT_FALSE(merger.Add(last)->has_value()) << "the same stage again";
  const auto merged = merger.Add(Record(0, 0)).value();
  ASSERT_TRUE(merged.has_value());
  EXPECT_EQ(merged->record.loss(), 5.5);
  EXPECT_EQ(merged->record.step_s(), 1.5);
  EXPECT_EQ(merged->record.compute_s(), 0.5);
  EXPECT_DOUBLE_EQ(merged->record.encode_s(), 0.02);
  EXPECT_EQ(merged->record.raw_bytes(), 400);
  EXPECT_EQ(merged->record.wire_bytes(), 90);
  EXPECT_TRUE(merged->record.committed());
  EXPECT_EQ(merged->stages.size(), 2u);
  EXPECT_EQ(merger.next_step(), 1);
  ASSERT_FALSE(merger.Add(Record(0, 0))->has_value()) << "sent again after the step was whole";
}

TEST(RecordMerger, AClassifiersAccuracyIsKeptWithTheLoss) {
  RecordMerger merger(1, 2, 0);
  StepRecord last = Record(1, 0);
  last.set_has_validation_loss(true);
  last.set_validation_accuracy(0.75);
  ASSERT_FALSE(merger.Add(last)->has_value());
  EXPECT_EQ(merger.Add(Record(0, 0)).value()->record.validation_accuracy(), 0.75);
  ASSERT_FALSE(merger.Add(Record(1, 1))->has_value());
  EXPECT_FALSE(merger.Add(Record(0, 1)).value()->record.has_validation_accuracy());
}

// The loss of a step is the sum of what each replica tells of its share of the batch.
TEST(RecordMerger, LossesOfReplicasAddUp) {
  RecordMerger merger(1, 2, 0);
  StepRecord first, second;
  for (StepRecord* r : {&first, &second}) {
    r->set_generation(1);
    r->set_has_loss(true);
    r->set_committed(true);
  }
  first.set_loss(1.5);
  second.set_rank(1);
  second.set_loss(0.75);
  ASSERT_TRUE(merger.Add(first).ok());
  EXPECT_EQ(merger.Add(second).value()->record.loss(), 2.25);
}

// A daemon was killed between its part of checkpoint 10 and its record of step 9.
TEST(RecordMerger, TheLastStepsOfARunAreMadeOfWhatWasTold) {
  Plan plan;
  plan.mutable_job()->mutable_recipe()->set_global_batch(4);
  for (int r = 0; r < 3; ++r) plan.add_ranks()->set_replica(r > 0 ? 1 : 0);
  for (int samples : {3, 1}) plan.add_replicas()->set_samples(samples);
  RecordMerger merger(1, 3, 8);
  const auto add = [&](int rank, int64_t step, double share) {
    StepRecord r = Record(rank, step);
    r.set_has_loss(share > 0);
    r.set_loss(share * 2);
    ASSERT_FALSE(merger.Add(r)->has_value());
  };
  add(1, 8, 0);  // nobody who knows a loss told
  add(0, 9, 0.75);
  add(1, 9, 0);
  add(0, 10, 0.75);  // past the checkpoint
  const std::vector<MergedStep> rest = merger.TakeRest(10, plan);
  ASSERT_EQ(rest.size(), 1u);
  EXPECT_EQ(rest[0].record.step(), 9);
  EXPECT_DOUBLE_EQ(rest[0].record.loss(), 2) << "1.5 of three of four samples";
  EXPECT_EQ(rest[0].stages.size(), 2u);
  EXPECT_TRUE(merger.TakeRest(10, plan).empty());
  EXPECT_EQ(merger.TakeRest(11, plan).size(), 1u);
}

TEST(RecordMerger, LazyErrorsOfAllBoundariesAreKept) {
  RecordMerger merger(1, 2, 0);
  StepRecord records[2] = {Record(0, 0), Record(1, 0)};
  for (int s = 0; s < 2; ++s) {
    LazyError* e = records[s].add_lazy_errors();
    e->set_link_id(s == 0 ? "b0" : "b1");
    e->set_cosine(0.25 * (s + 1));
  }
  ASSERT_FALSE(merger.Add(records[0])->has_value());
  const JobRecord merged = merger.Add(records[1]).value()->record;
  ASSERT_EQ(merged.lazy_errors_size(), 2);
  EXPECT_EQ(merged.lazy_errors(1).link_id(), "b1");
  EXPECT_EQ(merged.lazy_errors(1).cosine(), 0.5);
  records[0].mutable_lazy_errors(0)->set_relative_error(std::nan(""));
  EXPECT_FALSE(CheckStepRecord(records[0]).ok());
}

TEST(RecordMerger, StepsMayBecomeWholeOutOfOrder) {
  RecordMerger merger(1, 2, 10);
  for (int64_t step : {10, 11, 12}) EXPECT_FALSE(merger.Add(Record(0, step))->has_value());
  EXPECT_TRUE(merger.Add(Record(1, 12))->has_value());
  EXPECT_EQ(merger.next_step(), 10);
  EXPECT_TRUE(merger.Add(Record(1, 10))->has_value());
  EXPECT_EQ(merger.next_step(), 11);
  EXPECT_TRUE(merger.Add(Record(1, 11))->has_value());
  EXPECT_EQ(merger.next_step(), 13);
}

TEST(RecordMerger, MemoryIsBoundedWhenAStageNeverTells) {
  RecordMerger merger(1, 2, 0);
  for (int64_t step = 0; step < 3 * RecordMerger::kMaxPendingSteps; ++step)
    ASSERT_FALSE(merger.Add(Record(0, step))->has_value());
  EXPECT_EQ(merger.next_step(), 2 * RecordMerger::kMaxPendingSteps);
  RecordMerger gap(1, 1, 0);
  for (int64_t step = 1; step < 2 * RecordMerger::kMaxAhead; ++step)
    ASSERT_TRUE(gap.Add(Record(0, step))->has_value());
  EXPECT_EQ(gap.next_step(), 2 * RecordMerger::kMaxAhead) << "the gap is given up";
}

TEST(RecordMerger, ForeignAndBrokenRecordsAreRefused) {
  RecordMerger merger(3, 2, 0);
  EXPECT_FALSE(merger.Add(Record(0, 0, 2)).ok());
  EXPECT_FALSE(merger.Add(Record(2, 0, 3)).ok());
  EXPECT_FALSE(merger.Add(Record(-1, 0, 3)).ok());
  StepRecord nan = Record(0, 0, 3);
  nan.set_step_s(std::nan(""));
  EXPECT_FALSE(merger.Add(nan).ok());
  StepRecord negative = Record(0, -1, 3);
  EXPECT_FALSE(merger.Add(negative).ok());
  StepRecord reads = Record(0, 0, 3);
  reads.add_directions()->set_late_buffer_reads_in(-1);
  EXPECT_THAT(merger.Add(reads).status().message(), ::testing::HasSubstr("negative buffer reads"));
  StepRecord trains = Record(0, 0, 3);
  trains.add_directions()->set_train_s_in(std::nan(""));
  EXPECT_THAT(merger.Add(trains).status().message(), ::testing::HasSubstr("trains of 0 bytes"));
  StepRecord group = Record(0, 0, 3);
  group.add_groups()->set_wait_s(-1);
  EXPECT_THAT(merger.Add(group).status().message(), ::testing::HasSubstr("a figure of group"));
  for (int i = 0; i < kMaxDirections; ++i) group.add_groups();
  EXPECT_THAT(merger.Add(group).status().message(), ::testing::HasSubstr("groups; at most"));
  StepRecord many = Record(0, 0, 3);
  for (int i = 0; i <= kMaxDirections; ++i) many.add_directions();
  EXPECT_FALSE(merger.Add(many).ok());
}

TEST(AddBytes, TotalsFollowTheLinksOfThePlan) {
  Plan plan;
  for (const char* name : {"lab", "home"}) plan.add_ranks()->set_node_name(name);
  LinkPlan* link = plan.add_links();
  link->set_id("b0");
  link->set_upper(1);
  link->mutable_forward()->set_kind(CodecSpec::BF16);
  StepRecord r;
  for (bool forward : {false, true}) {
    auto* d = r.add_directions();
    d->set_link_id("b0");
    d->set_forward(forward);
    d->set_raw_bytes(10);
    d->set_wire_bytes(5);
  }
  r.add_directions()->set_link_id("unknown");
  std::vector<BoundaryTotals> totals;
  AddBytes(r, plan, false, &totals);
  AddBytes(r, plan, false, &totals);
  ASSERT_EQ(totals.size(), 2u);
  EXPECT_TRUE(totals[0].forward());
  EXPECT_EQ(totals[0].from_node(), "lab");
  EXPECT_EQ(totals[0].codec(), "bf16");
  EXPECT_EQ(totals[0].raw_bytes(), 20);
  EXPECT_EQ(totals[1].from_node(), "home");
  EXPECT_EQ(totals[1].wire_bytes(), 10);
  EXPECT_EQ(totals[0].from_step(), 0);
  totals.clear();
  plan.set_start_step(40);
  AddBytes(r, plan, false, &totals);
  plan.set_start_step(60);  // a resume of the same cut
  AddBytes(r, plan, false, &totals);
  EXPECT_EQ(totals[0].from_step(), 40);
  EXPECT_EQ(totals[0].raw_bytes(), 20);
}

// Bytes of a codec that was changed at a resume were booked under the new one.
TEST(AddBytes, EachCodecThatCarriedBytesHasARow) {
  Plan plan;
  for (const char* name : {"lab", "home"}) plan.add_ranks()->set_node_name(name);
  LinkPlan* link = plan.add_links();
  link->set_id("b0");
  link->set_upper(1);
  link->mutable_evaluation()->set_kind(CodecSpec::BF16);
  StepRecord r;
  auto* d = r.add_directions();
  d->set_link_id("b0");
  d->set_forward(true);
  d->set_wire_bytes(10);
  std::vector<BoundaryTotals> totals;
  const auto add = [&](CodecSpec::Kind codec, int64_t start, bool validated) {
    link->mutable_forward()->set_kind(codec);
    plan.set_start_step(start);
    AddBytes(r, plan, validated, &totals);
  };
  const auto row = [&](size_t i) {
    return absl::StrCat(totals.at(i).codec(), ": ", totals.at(i).wire_bytes(), " from ",
                        totals.at(i).from_step());
  };
  add(CodecSpec::NONE, 0, false);
  EXPECT_EQ(row(0), "none: 10 from 0");
  add(CodecSpec::NONE, 0, true);
  add(CodecSpec::NONE, 0, false);
  EXPECT_EQ(row(0), "none, validations bf16: 30 from 0") << "a validation's bytes are among them";
  add(CodecSpec::FP16, 40, false);
  add(CodecSpec::NONE, 60, false);  // the first one again
  ASSERT_EQ(totals.size(), 2u);
  EXPECT_EQ(row(0), "none, validations bf16: 40 from 0");
  EXPECT_EQ(row(1), "fp16: 10 from 40");
  link->mutable_evaluation()->set_kind(CodecSpec::FP16);
  add(CodecSpec::NONE, 80, true);
  EXPECT_EQ(row(2), "none, validations fp16: 10 from 80") << "the validations' codec was changed";
  // Bytes of one codec alone, whatever validations have.
  add(CodecSpec::FP16, 90, true);
  EXPECT_EQ(row(1), "fp16: 20 from 40");
}

TEST(AddBytes, RowsOfADirectionAreBounded) {
  Plan plan;
  for (const char* name : {"lab", "home"}) plan.add_ranks()->set_node_name(name);
  plan.add_links()->set_id("b0");
  plan.mutable_links(0)->set_upper(1);
  StepRecord r;
  r.add_directions()->set_link_id("b0");
  r.mutable_directions(0)->set_wire_bytes(10);
  std::vector<BoundaryTotals> totals;
  int64_t bytes = 0;
  for (int bits = 1; bits <= kMaxCodecRows + 3; ++bits, bytes += 10) {
    CodecSpec* codec = plan.mutable_links(0)->mutable_backward();
    codec->set_kind(CodecSpec::LOW_RANK);
    codec->set_rank(bits);
    AddBytes(r, plan, false, &totals);
  }
  ASSERT_EQ(totals.size(), static_cast<size_t>(kMaxCodecRows) + 1);
  EXPECT_EQ(totals.back().codec(), "others");
  EXPECT_EQ(totals.back().wire_bytes(), 30);
}

TEST(SameCut, IsOfTheLayersAlone) {
  Plan a;
  a.add_ranks()->set_end_layer(4);
  a.add_ranks()->set_first_layer(4);
  a.mutable_ranks(1)->set_end_layer(8);
  Plan b = a;
  b.mutable_ranks(0)->set_node_name("elsewhere");
  EXPECT_TRUE(SameCut(a, b));
  b.mutable_ranks(0)->set_end_layer(5);
  EXPECT_FALSE(SameCut(a, b));
  b = a;
  b.mutable_ranks()->RemoveLast();
  EXPECT_FALSE(SameCut(a, b));
  EXPECT_FALSE(SameCut(Plan(), a));
}

}  // namespace
}  // namespace isthmus::coordinator
