#include "daemon/session_metrics.h"

#include <string>

#include "base/metrics.h"
#include "gtest/gtest.h"

namespace isthmus::daemon {
namespace {

bool Shows(const std::string& text) {
  return ("\n" + RenderMetrics()).find("\n" + text) != std::string::npos;
}

TEST(SessionMetrics, AStepBecomesCountersAndGauges) {
  SessionMetrics metrics;
  EXPECT_TRUE(Shows("isthmus_steps_total{outcome=\"skipped\"} ")) << RenderMetrics();
  StepRecord record;
  record.set_job_id("bible-1");
  record.set_step_s(2);
  record.set_compute_s(1.5);
  record.set_recv_wait_s(0.25);
  record.set_has_loss(true);
  record.set_loss(3.5);
  record.set_tokens(1000);
  record.set_committed(true);
  record.set_key_frames(4);
  record.set_buffer_memory_bytes(77);
  DirectionBytes* direction = record.add_directions();
  direction->set_link_id("b0");
  direction->set_forward(true);
  direction->set_raw_bytes(400);
  direction->set_wire_bytes(50);
  direction->set_late_buffer_reads(3);
  direction->set_late_buffer_reads_in(5);
  GroupRecord* group = record.add_groups();
  group->set_group_id("stage 0");
  group->set_reduce_s(0.5);
  group->set_wait_s(0.125);
  group->set_raw_bytes(4000);
  group->set_wire_bytes(600);
  metrics.ReportStep(record);
  metrics.ReportStep(record);
  for (const char* line :
       {"isthmus_stage_time_seconds_total{part=\"compute\"} 3\n",
        "isthmus_stage_time_seconds_total{part=\"recv_wait\"} 0.5\n",
        "isthmus_step_seconds_total 4\n", "isthmus_steps_total{outcome=\"committed\"} 2\n",
        "isthmus_bubble_ratio{job=\"bible-1\"} 0.25\n", "isthmus_loss{job=\"bible-1\"} 3.5\n",
        "isthmus_tokens_total 2000\n", "isthmus_key_frames_total 8\n",
        "isthmus_buffer_bytes{job=\"bible-1\",tier=\"memory\"} 77\n",
        "isthmus_boundary_raw_bytes_total{direction=\"forward\",link=\"b0\"} 800\n",
        "isthmus_boundary_wire_bytes_total{direction=\"forward\",link=\"b0\"} 100\n",
        "isthmus_group_reduce_seconds{group=\"stage 0\",job=\"bible-1\"} 0.5\n",
        "isthmus_group_wait_seconds{group=\"stage 0\",job=\"bible-1\"} 0.125\n",
        "isthmus_group_raw_bytes{group=\"stage 0\",job=\"bible-1\"} 4000\n",
        "isthmus_group_wire_bytes{group=\"stage 0\",job=\"bible-1\"} 600\n",
        "isthmus_group_raw_bytes_total{group=\"stage 0\"} 8000\n",
        "isthmus_group_wire_bytes_total{group=\"stage 0\"} 1200\n",
        "isthmus_late_buffer_reads_total{direction=\"forward\",link=\"b0\"} 6\n",
        "isthmus_late_buffer_reads_total{direction=\"backward\",link=\"b0\"} 10\n"}) {
    EXPECT_TRUE(Shows(line)) << line << RenderMetrics();
  }
}

// Between two rounds of local steps they were 0, which is what most scrapes saw.
TEST(SessionMetrics, GaugesOfAGroupAreOfItsLastReduction) {
  SessionMetrics metrics;
  StepRecord record;
  record.set_job_id("rounds-1");
  GroupRecord* group = record.add_groups();
  group->set_group_id("round");
  metrics.ReportStep(record);
  EXPECT_FALSE(Shows("isthmus_group_wire_bytes{group=\"round\"")) << "nothing was reduced yet";
  EXPECT_TRUE(Shows("isthmus_group_wire_bytes_total{group=\"round\"} 0\n"));
  group->set_reduce_s(0.5);
  group->set_wait_s(0.25);
  group->set_raw_bytes(400);
  group->set_wire_bytes(60);
  metrics.ReportStep(record);
  *group = GroupRecord();
  group->set_group_id("round");
  metrics.ReportStep(record);
  for (const char* line : {"isthmus_group_reduce_seconds{group=\"round\",job=\"rounds-1\"} 0.5\n",
                           "isthmus_group_wait_seconds{group=\"round\",job=\"rounds-1\"} 0.25\n",
                           "isthmus_group_raw_bytes{group=\"round\",job=\"rounds-1\"} 400\n",
                           "isthmus_group_wire_bytes{group=\"round\",job=\"rounds-1\"} 60\n",
                           "isthmus_group_raw_bytes_total{group=\"round\"} 400\n",
                           "isthmus_group_wire_bytes_total{group=\"round\"} 60\n"}) {
    EXPECT_TRUE(Shows(line)) << line << RenderMetrics();
  }
  metrics.ReportRunning({}, absl::Seconds(1));
  EXPECT_EQ(RenderMetrics().find("rounds-1"), std::string::npos) << RenderMetrics();
}

TEST(SessionMetrics, LazyErrorsGoWithTheirJob) {
  SessionMetrics metrics;
  StepRecord record;
  record.set_job_id("lazy-1");
  LazyError* e = record.add_lazy_errors();
  e->set_link_id("b3");
  e->set_cosine(-0.125);
  e->set_relative_error(0.5);
  metrics.ReportStep(record);
  EXPECT_TRUE(Shows("isthmus_lazy_error_cosine{job=\"lazy-1\",link=\"b3\"} -0.125\n"));
  EXPECT_TRUE(Shows("isthmus_lazy_error_ratio{job=\"lazy-1\",link=\"b3\"} 0.5\n"));
  record.set_job_id("lazy-2");
  record.clear_lazy_errors();
  metrics.ReportStep(record);
  EXPECT_FALSE(Shows("isthmus_lazy_error_cosine{job=\"lazy-1\""));
}

TEST(SessionMetrics, APeerThatIsGoneIsNoLongerShown) {
  const std::string peer = "gone";
  LinkMeasurement measured;
  measured.set_rate_bits_per_s(5e6);
  measured.set_round_trip_s(0.02);
  ReportMeasurement(peer, measured);
  EXPECT_TRUE(Shows("isthmus_link_round_trip_seconds{peer=\"gone\"} 0.02"));
  measured.set_error("no connection");
  ReportMeasurement(peer, measured);
  EXPECT_FALSE(Shows("isthmus_link_rate_bytes_per_second{peer=\"gone\"}"));
}

// They stayed, and an alert on the loss of a job long gone with them.
TEST(SessionMetrics, GaugesOfAJobGoWithItsSession) {
  SessionMetrics metrics;
  StepRecord record;
  record.set_job_id("first-1");
  record.set_step_s(1);
  record.set_has_loss(true);
  record.set_has_validation_loss(true);
  record.set_validation_accuracy(0.75);
  GroupRecord* group = record.add_groups();
  group->set_group_id("tied");
  group->set_wire_bytes(9);
  metrics.ReportStep(record);
  EXPECT_TRUE(Shows("isthmus_validation_accuracy{job=\"first-1\"} 0.75\n"));
  EXPECT_TRUE(Shows("isthmus_validation_loss{job=\"first-1\"} 0\n"));
  SessionRunner::Running running;
  running.job_id = "first-1";
  metrics.ReportRunning(running, absl::Seconds(1));
  EXPECT_TRUE(Shows("isthmus_learning_rate{job=\"first-1\"} 0\n"));
  record.set_job_id("second-2");
  metrics.ReportStep(record);
  EXPECT_EQ(RenderMetrics().find("first-1"), std::string::npos) << RenderMetrics();
  metrics.ReportRunning({}, absl::Seconds(1));
  EXPECT_EQ(RenderMetrics().find("second-2"), std::string::npos) << RenderMetrics();
}

TEST(SessionMetrics, WhatRunsIsShown) {
  SessionMetrics metrics;
  SessionRunner::Running running;
  metrics.ReportRunning(running, absl::Seconds(2));
  EXPECT_TRUE(Shows("isthmus_session_running 0\n"));
  EXPECT_TRUE(Shows("isthmus_stage -1\n"));
  EXPECT_TRUE(Shows("isthmus_heartbeat_age_seconds 2\n"));
  EXPECT_TRUE(
      Shows("# HELP isthmus_heartbeat_age_seconds Since the last heartbeat was sent to the "
            "coordinator.\n"));
  running.job_id = "job";
  running.generation = 12;
  running.stage = 2;
  metrics.ReportRunning(running, absl::InfiniteDuration());
  EXPECT_TRUE(Shows("isthmus_generation 12\n"));
  EXPECT_TRUE(Shows("isthmus_stage 2\n"));
  EXPECT_TRUE(Shows("isthmus_heartbeat_age_seconds +Inf\n"));
}

}  // namespace
}  // namespace isthmus::daemon
