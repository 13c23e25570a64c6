#include "coordinator/cli/view/views.h"

#include <algorithm>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/codec/codec_text.h"
#include "proto/job/job_defaults.h"
#include "proto/plan/schedule.h"

namespace isthmus::cli {
namespace {

using testing::HasSubstr;

PlanReply TwoStages() {
  PlanReply reply;
  Plan* plan = reply.mutable_plan();
  JobSpec* job = plan->mutable_job();
  job->set_name("bible");
  job->mutable_model()->set_layers(4);
  job->mutable_model()->set_hidden(128);
  job->mutable_model()->set_context(128);
  job->mutable_recipe()->set_global_batch(16);
  job->mutable_recipe()->set_micro_batch(4);
  FillDefaults(job);
  plan->set_predicted_step_s(0.5);
  plan->set_first_visits(0.25);
  for (int i = 0; i < 2; ++i) {
    RankPlan* stage = plan->add_ranks();
    stage->set_stage(i);
    stage->set_node_name(i == 0 ? "alpha" : "beta");
    stage->set_address("10.0.0.1:7071");
    stage->set_first_layer(i == 0 ? 0 : 3);
    stage->set_end_layer(i == 0 ? 3 : 4);
    stage->set_predicted_step_s(0.2);
    stage->set_memory_bytes(100 << 20);
  }
  LinkPlan* link = plan->add_links();
  link->set_id("b0");
  link->set_upper(1);
  *link->mutable_forward() = ParseCodec("delta(quant(4))").value();
  *link->mutable_backward() = ParseCodec("quant(8)").value();
  link->set_window_bytes(262144);
  link->set_rate_up_bits_per_s(20e6);
  link->set_round_trip_s(0.04);
  plan->add_explanation("4 bits: 20 Mbit/s carry them in 0.1 s");
  reply.add_schedule_grid("0 F0 F1 B0 B1");
  reply.add_warnings("small memory");
  return reply;
}

TEST(Views, PlanOfAnEpilogue) {
  PlanReply reply = TwoStages();
  const auto lists = BuildSchedule("1f1b", 2, 4).value();
  for (int s = 0; s < 2; ++s)
    *reply.mutable_plan()->mutable_ranks(s)->mutable_train() = {lists[s].begin(), lists[s].end()};
  reply.mutable_plan()->mutable_links(0)->set_epilogue(true);
  const std::string text = PlanView(reply);
  EXPECT_THAT(text, HasSubstr("quant(8) (epilogue)"));
  EXPECT_THAT(text, HasSubstr("b0 backward: WIRE and TIME are means: 1 of 4 gradients of a step go "
                              "by quant(8), the others as fp32\n"));
}

// All of a stage's layers were said to be held by who has a slice of them.
TEST(Views, WhoTrainsASubnetworkHoldsASlice) {
  PlanReply reply = TwoStages();
  isthmus::Plan* plan = reply.mutable_plan();
  plan->add_replicas()->set_slice(1);
  plan->add_replicas();
  plan->mutable_ranks(0)->set_end_layer(4);
  plan->mutable_ranks(1)->set_first_layer(0);
  plan->mutable_ranks(1)->set_replica(1);
  plan->mutable_deal()->add_shares(0.25);
  plan->mutable_deal()->add_shares(0.75);
  EXPECT_THAT(PlanView(reply), HasSubstr("embedding, 75 % of blocks 0-3, head"));
  EXPECT_THAT(PlanView(reply), HasSubstr("embedding, 25 % of blocks 0-3, head"));
  plan->mutable_deal()->set_whole_layers(1);
  EXPECT_THAT(PlanView(reply), HasSubstr("embedding, block 0, 25 % of blocks 1-2, block 3, head"));
  plan->mutable_job()->mutable_model()->set_family("mlp");
  plan->mutable_deal()->set_whole_layers(0);
  EXPECT_THAT(PlanView(reply), HasSubstr("  25 % of layers 0-3, output"));
}

TEST(Views, Plan) {
  const std::string text = PlanView(TwoStages());
  EXPECT_THAT(
      text, HasSubstr("Plan of job bible: 2 stages, 1f1b, predicted 0.5 s a step (4.1k tokens/s)"));
  EXPECT_THAT(text, HasSubstr("    0  alpha  10.0.0.1:7071  embedding, blocks 0-2"));
  EXPECT_THAT(text, HasSubstr("block 3, head"));
  EXPECT_THAT(text, HasSubstr("b0    alpha  beta   forward    20 Mbit/s       40 ms  256 KiB  "
                              "delta(quant(4))    256 KiB"));
  EXPECT_THAT(text,
              HasSubstr("b0    beta   alpha  backward     unknown       40 ms  256 KiB  quant(8)"));
  EXPECT_THAT(text, HasSubstr("delta(quant(4))    256 KiB    88.8 KiB")) << "the mean";
  EXPECT_THAT(text, HasSubstr("b0 forward: WIRE and TIME are means: 256 KiB on a first visit of a "
                              "sample, 33 KiB after; 25 % of visits are first ones\n"));
  EXPECT_THAT(text, HasSubstr("  - 4 bits: 20 Mbit/s carry them in 0.1 s\n"));
  EXPECT_THAT(text, HasSubstr("  0 F0 F1 B0 B1\n"));
  EXPECT_THAT(text, HasSubstr("warning: small memory\n"));
}

TEST(Views, PlanSurvivesNonsense) {
  PlanReply reply = TwoStages();
  reply.mutable_plan()->mutable_links(0)->set_upper(77);
  reply.mutable_plan()->mutable_links(0)->set_lower(-5);
  reply.mutable_plan()->mutable_links(0)->set_epilogue(true);
  reply.mutable_plan()->mutable_links(0)->mutable_forward()->set_bits(99);
  EXPECT_THAT(PlanView(reply), HasSubstr("rank 77"));
  EXPECT_THAT(PlanView(PlanReply()), HasSubstr("0 stages"));
}

TEST(Views, Nodes) {
  ListNodesReply reply;
  EXPECT_THAT(NodesView(reply), HasSubstr("No daemon has joined"));
  NodeStatus* node = reply.add_nodes();
  node->mutable_node()->set_id("id-1");
  node->mutable_node()->set_name("al\x1bpha");
  node->mutable_node()->set_threads(2);
  node->mutable_node()->set_block_flops(2e9);
  node->mutable_node()->set_block_forward_s(0.1);
  node->set_alive(true);
  node->mutable_path()->set_up_bits_per_s(4e5);
  node->mutable_path()->set_down_bits_per_s(2e7);
  node->add_warnings("reference BLAS");
  LinkMeasurement* link = reply.add_links();
  link->set_from_id("id-1");
  link->set_to_id("gone");
  link->set_error("connection refused");
  NodeInfo* card = reply.add_nodes()->mutable_node();
  card->set_device("cuda:0 GPU-1");
  card->set_device_model("NVIDIA H200");
  card->set_device_memory_bytes(int64_t{140} << 30);
  const std::string text = NodesView(reply);
  EXPECT_THAT(text, HasSubstr("cuda:0 (NVIDIA H200, 140 GiB)"));
  EXPECT_THAT(text, HasSubstr("al?pha  alive"));
  EXPECT_THAT(text, HasSubstr("up 400 kbit/s, down 20 Mbit/s"));
  EXPECT_THAT(text, HasSubstr("20.0"));
  EXPECT_THAT(text, HasSubstr("al?pha  gone  unknown     unknown     -  connection refused"));
  EXPECT_THAT(text, HasSubstr("warning: al?pha: reference BLAS"));
}

TEST(Views, DaemonsOfOneCardAreNamed) {
  ListNodesReply reply;
  for (const char* device :
       {"cuda:0 GPU-1", "cuda:1 GPU-2", "cuda:0 GPU-1", "cuda:0", "cpu", "cuda:0"}) {
    NodeStatus* node = reply.add_nodes();
    node->mutable_node()->set_name(absl::StrCat("n", reply.nodes_size()));
    node->mutable_node()->set_device(device);
    node->set_alive(true);
  }
  EXPECT_THAT(NodesView(reply), HasSubstr("\none card: n1, n3 compute on GPU-1: a job that takes"));
  reply.mutable_nodes(2)->set_alive(false);
  EXPECT_THAT(NodesView(reply), testing::Not(HasSubstr("one card: ")));
}

TEST(Views, ADaemonThatLeftIsNotLostAndAReplicaIsNamed) {
  ListNodesReply reply;
  for (int i = 0; i < 4; ++i) {
    NodeStatus* node = reply.add_nodes();
    node->mutable_node()->set_name(std::string(1, static_cast<char>('a' + i)));
    node->set_heartbeat_age_s(5);
    node->set_left(i == 1);
    node->set_alive(i > 1);
    if (i <= 1) continue;
    node->set_job_id("bible-1");
    node->set_stage(0);
    node->set_replica(i - 2);
  }
  const std::string text = NodesView(reply);
  EXPECT_THAT(text, HasSubstr("a     lost, last heard 5 s ago"));
  EXPECT_THAT(text, HasSubstr("b     left, last heard 5 s ago"));
  reply.mutable_nodes(0)->set_heartbeat_age_s(-1);
  EXPECT_THAT(NodesView(reply), HasSubstr("a     lost, not heard since the coordinator started"));
  EXPECT_THAT(text, HasSubstr("bible-1 stage 0 of replica 0"));
  EXPECT_THAT(text, HasSubstr("bible-1 stage 0 of replica 1"));
  reply.mutable_nodes()->RemoveLast();
  EXPECT_THAT(NodesView(reply), testing::Not(HasSubstr("of replica")));
}

TEST(Views, JobsAndStatus) {
  ListJobsReply reply;
  EXPECT_THAT(JobListView(reply), HasSubstr("No jobs"));
  JobStatus* job = reply.add_jobs();
  job->set_job_id("bible-1");
  job->set_name("bible");
  job->set_state(JOB_PAUSED);
  job->set_reason("beta lost");
  job->set_step(50);
  job->set_steps(200);
  job->set_loss(3.25);
  job->set_checkpoint_step(-1);
  EXPECT_THAT(JobListView(reply), HasSubstr("bible-1  bible  paused  50/200 (25 %)  3.2500"));
  job->add_warnings("checkpoints are not stored: x");
  EXPECT_THAT(JobListView(reply), HasSubstr("\nwarning: bible-1: checkpoints are not stored: x\n"));
  EXPECT_THAT(JobStatusView(*job, {}), HasSubstr("\nwarning: checkpoints are not stored: x\n"));
  *job->mutable_plan() = TwoStages().plan();
  const std::string status = JobStatusView(*job, {});
  EXPECT_THAT(status, HasSubstr("paused at step 50 of 200: beta lost"));
  EXPECT_THAT(status, HasSubstr("newest checkpoint            none"));
  EXPECT_THAT(status, HasSubstr("embedding, blocks 0-2"));
  EXPECT_THAT(status, testing::Not(HasSubstr("Links: ")));
  job->set_following("link b0 (a -> b) carries 9.6 Mbit/s: today's plan stays");
  job->set_moves(2);
  EXPECT_THAT(JobStatusView(*job, {}),
              HasSubstr("\nLinks: link b0 (a -> b) carries 9.6 Mbit/s: today's plan stays\n"
                        "It took another plan for its links 2 times\n"));
}

TEST(Views, CheckpointsOfARunThatWasLeftAreMarked) {
  ListCheckpointsReply reply;
  reply.add_checkpoints()->set_step(10);
  reply.add_checkpoints()->set_step(20);
  reply.mutable_checkpoints(1)->set_left_behind(true);
  const std::string text = CheckpointsView(reply, true);
  EXPECT_THAT(text, HasSubstr("10   0 B  sound\n"));
  EXPECT_THAT(text, HasSubstr("20   0 B  sound; left behind: the job went on from an older one"));
}

TEST(Views, CheckpointsOfAJobWithPhasesNameThemAll) {
  ListCheckpointsReply reply;
  for (int step : {10, 20, 30}) reply.add_checkpoints()->set_step(step);
  EXPECT_THAT(CheckpointsView(reply, true), Not(HasSubstr("phase")));
  reply.mutable_checkpoints(1)->set_phase_end(true);
  reply.mutable_checkpoints(2)->set_phase(1);
  const std::string text = CheckpointsView(reply, true);
  EXPECT_THAT(text, HasSubstr("10   0 B  sound, phase 1\n"));
  EXPECT_THAT(text, HasSubstr("20   0 B  sound, end of phase 1\n"));
  EXPECT_THAT(text, HasSubstr("30   0 B  sound, phase 2\n"));
}

TEST(Views, CheckpointsThatOnlyDaemonsKeepNameThem) {
  ListCheckpointsReply reply;
  CheckpointInfo& kept = *reply.add_checkpoints();
  kept.set_step(30);
  for (const char* name : {"lab", "attic"}) kept.add_kept_by(name);
  const std::string text = CheckpointsView(reply, true);
  EXPECT_THAT(text, HasSubstr("30     -  not stored here yet; its parts lie on the disks of lab, "
                              "attic\n"));
}

TEST(Views, RecordColumnsStandUnderTheirHeader) {
  JobRecord record;
  record.set_step(12);
  record.set_loss(3.25);
  record.set_key_frames(16);
  record.set_committed(true);
  EXPECT_EQ(RecordLine(record).size(), RecordHeader().size());
  EXPECT_EQ(AsCounted(record).step(), record.step() + 1);
  record.set_committed(false);
  EXPECT_THAT(RecordLine(record), testing::EndsWith("skipped\n"));
}

TEST(Views, AJobOnOneOfSeveralDaemonsSaysWhy) {
  JobSpec job;
  Plan plan;
  plan.add_ranks();
  plan.add_explanation("model: 8 layers");
  plan.add_explanation("1 stage on n0: 0.35 s a step");
  plan.add_explanation("2 stages on n0, n1: 0.72 s a step");
  plan.add_explanation("chosen: 1 stage");
  EXPECT_EQ(OneStageNote(job, plan),
            "one daemon trains it alone, and nothing crosses the network, since that is the "
            "fastest:\n"
            "  1 stage on n0: 0.35 s a step\n"
            "  2 stages on n0, n1: 0.72 s a step\n"
            "to train over the network all the same: --set strategy.stages=2\n");
  job.mutable_strategy()->set_stages(1);  // as asked
  EXPECT_EQ(OneStageNote(job, plan), "");
  job.mutable_strategy()->set_stages(0);
  plan.add_ranks();
  EXPECT_EQ(OneStageNote(job, plan), "");
}

// A cause may have 500 characters and lines of its own: `status` shows it, a table does not.
TEST(JobListView, LongReasonsAreCutToARow) {
  ListJobsReply reply;
  JobStatus* job = reply.add_jobs();
  job->set_job_id("bible-1");
  job->set_reason(std::string(300, 'x') + "\nmore");
  const std::string text = JobListView(reply);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2);
  EXPECT_THAT(text, testing::HasSubstr(std::string(77, 'x') + "...\n"));
  job->set_reason("waiting for daemons");
  EXPECT_THAT(JobListView(reply), testing::HasSubstr("waiting for daemons\n"));
  job->set_reason(std::string(300, 'x') + "; waiting for daemons: b is drained");
  job->set_waits_for("waiting for daemons: b is drained");
  EXPECT_THAT(JobListView(reply), testing::HasSubstr("  waiting for daemons: b is drained\n"));
}

}  // namespace
}  // namespace isthmus::cli
