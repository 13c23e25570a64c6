#include "coordinator/cli/view/summary.h"

#include <nlohmann/json.hpp>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace isthmus::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

JobStatus Finished() {
  JobStatus s;
  s.set_job_id("bible-1");
  s.set_name("bible");
  s.set_state(JOB_FINISHED);
  s.set_step(300);
  s.set_steps(300);
  s.set_first_loss(5.5451);
  s.set_loss(2.3211);
  s.set_has_validation_loss(true);
  s.set_validation_loss(2.4);
  s.set_tokens(614400);
  s.set_tokens_per_s(4000);
  s.set_checkpoint_step(300);
  BoundaryTotals* b = s.add_boundaries();
  b->set_link_id("b0");
  b->set_forward(true);
  b->set_from_node("n0");
  b->set_to_node("n1");
  b->set_codec("delta(quant(4))");
  b->set_raw_bytes(8000);
  b->set_wire_bytes(1000);
  b = s.add_boundaries();
  b->set_link_id("b0");
  b->set_raw_bytes(8000);
  b->set_wire_bytes(3000);
  return s;
}

std::vector<JobRecord> Records() {
  std::vector<JobRecord> records(20);
  for (int i = 0; i < 20; ++i) {
    records[i].set_step(280 + i);
    records[i].set_loss(i < 10 ? 9 : 2.5);
    records[i].set_committed(true);
    records[i].set_tokens(2048);
    records[i].set_step_s(0.5);
  }
  return records;
}

TEST(Summary, MeansOfTheRecords) {
  const Summary summary = MakeSummary(Finished(), Records());
  EXPECT_DOUBLE_EQ(summary.loss_last_mean, 2.5);
  EXPECT_DOUBLE_EQ(summary.tokens_per_s, 4000) << "as status, watch and metrics say";
  EXPECT_EQ(summary.raw_bytes, 16000);
  EXPECT_EQ(summary.wire_bytes, 4000);
  const Summary without = MakeSummary(Finished(), {});
  EXPECT_DOUBLE_EQ(without.loss_last_mean, 2.3211);
  EXPECT_DOUBLE_EQ(without.tokens_per_s, 4000);
}

TEST(Summary, SkippedStepsDoNotCountForTheLoss) {
  std::vector<JobRecord> records = Records();
  records.back().set_committed(false);
  records.back().set_loss(1e9);
  EXPECT_LT(MakeSummary(Finished(), records).loss_last_mean, 4);
}

TEST(Summary, Table) {
  const std::string text = SummaryTable(MakeSummary(Finished(), Records()));
  EXPECT_THAT(text, HasSubstr("Job bible (bible-1) finished at step 300 of 300\n"));
  EXPECT_THAT(text, HasSubstr("loss, first step             5.5451\n"));
  EXPECT_THAT(text, HasSubstr("validation loss              2.4000\n"));
  EXPECT_THAT(
      text,
      HasSubstr("b0        forward    n0    n1  delta(quant(4))  7.81 KiB    1000 B   8.00\n"));
  EXPECT_THAT(
      text,
      HasSubstr("all                                             15.6 KiB  3.91 KiB   4.00\n"));
}

TEST(Summary, TheTableNamesThePhase) {
  Summary summary = MakeSummary(Finished(), Records());
  summary.status.set_phases(3);
  summary.status.set_phase(1);
  EXPECT_THAT(SummaryTable(summary),
              HasSubstr("Job bible (bible-1) finished at step 300 of 300, phase 2 of 3\n"));
}

TEST(Summary, BytesOfANewCutSaySo) {
  JobStatus status = Finished();
  EXPECT_THAT(SummaryTable(MakeSummary(status, {})), Not(HasSubstr("counted from")));
  for (BoundaryTotals& b : *status.mutable_boundaries()) b.set_from_step(120);
  EXPECT_THAT(SummaryTable(MakeSummary(status, {})),
              HasSubstr("Bytes are counted from step 120 on, where the layers were cut anew."));
  const auto json = nlohmann::json::parse(SummaryJson(MakeSummary(status, {})));
  EXPECT_EQ(json["boundaries"][1]["from_step"], 120);
}

TEST(Summary, BytesOfPhasesAreOfTheLastOneAndSaySo) {
  JobStatus status = Finished();
  status.set_phases(3);
  EXPECT_THAT(SummaryTable(MakeSummary(status, {})),
              HasSubstr("Bytes are of phase 1 of 3 alone: "));
  status.set_phase(2);
  for (BoundaryTotals& b : *status.mutable_boundaries()) b.set_from_step(200);
  const std::string text = SummaryTable(MakeSummary(status, {}));
  EXPECT_THAT(text,
              HasSubstr("Bytes are of phase 3 of 3 alone, after step 200: each phase, and each "
                        "other cut of its layers, has a count of its own.\n"));
  EXPECT_THAT(text, Not(HasSubstr("cut anew")));
}

TEST(Summary, ACodecOfAResumeHasItsOwnRowAndSaysFromWhere) {
  JobStatus status = Finished();
  BoundaryTotals* b = status.add_boundaries();
  *b = status.boundaries(0);
  b->set_codec("quant(6)");
  b->set_from_step(40);
  const std::string text = SummaryTable(MakeSummary(status, {}));
  EXPECT_THAT(text, HasSubstr("delta(quant(4)) "));
  EXPECT_THAT(text, HasSubstr("quant(6) from step 40 "));
  EXPECT_THAT(text, Not(HasSubstr("counted from")));
}

TEST(Summary, ACodecOfValidationsIsNamedBelowTheTable) {
  JobStatus status = Finished();
  EXPECT_THAT(SummaryTable(MakeSummary(status, {})), Not(HasSubstr("Validation passes")));
  status.mutable_boundaries(0)->set_codec("delta(quant(4), cold=bf16), validations fp16");
  const std::string text = SummaryTable(MakeSummary(status, {}));
  EXPECT_THAT(text, HasSubstr(" delta(quant(4), cold=bf16)  "));
  EXPECT_THAT(text, HasSubstr("Validation passes are counted with forward, and went as fp16.\n"));
  const auto json = nlohmann::json::parse(SummaryJson(MakeSummary(status, {})))["boundaries"];
  EXPECT_EQ(json[0]["codec"], "delta(quant(4), cold=bf16)");
  EXPECT_EQ(json[0]["validation_codec"], "fp16");
  EXPECT_FALSE(json[1].contains("validation_codec"));
}

TEST(Summary, JsonHasTheSameFigures) {
  const auto json = nlohmann::json::parse(SummaryJson(MakeSummary(Finished(), Records())));
  EXPECT_EQ(json["job_id"], "bible-1");
  EXPECT_EQ(json["state"], "finished");
  EXPECT_EQ(json["loss_first"], 5.5451);
  EXPECT_EQ(json["loss_last"], 2.3211);
  EXPECT_EQ(json["validation_loss"], 2.4);
  EXPECT_EQ(json["tokens_per_s"], 4000.0);
  EXPECT_EQ(json["ratio"], 4.0);
  EXPECT_EQ(json["boundaries"].size(), 2u);
  EXPECT_EQ(json["boundaries"][0]["direction"], "forward");
  EXPECT_EQ(json["boundaries"][0]["ratio"], 8.0);
  EXPECT_EQ(json["boundaries"][1]["direction"], "backward");
}

TEST(Summary, OneStageHasNoRatio) {
  JobStatus status = Finished();
  status.clear_boundaries();
  status.set_has_validation_loss(false);
  const auto json = nlohmann::json::parse(SummaryJson(MakeSummary(status, {})));
  EXPECT_TRUE(json["ratio"].is_null());
  EXPECT_TRUE(json["validation_loss"].is_null());
}

TEST(Summary, AJobWithoutAStepHasNoLoss) {
  JobStatus status;
  status.set_state(JOB_FAILED);
  EXPECT_THAT(SummaryTable(MakeSummary(status, {})),
              testing::ContainsRegex("loss, last step +-\n"));
  EXPECT_TRUE(nlohmann::json::parse(SummaryJson(MakeSummary(status, {})))["loss_last"].is_null());
}

TEST(Summary, States) {
  EXPECT_EQ(StateName(JOB_RUNNING), "running");
  EXPECT_TRUE(IsEnd(JOB_PAUSED));
  EXPECT_TRUE(IsEnd(JOB_STOPPED));
  EXPECT_FALSE(IsEnd(JOB_STOPPING));
  EXPECT_FALSE(IsEnd(JOB_PENDING));
}

}  // namespace
}  // namespace isthmus::cli
