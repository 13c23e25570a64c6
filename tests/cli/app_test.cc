// The whole command line against a fake coordinator: what is asked of it, what is printed, exit
// codes.
#include "coordinator/cli/app.h"

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/safetensors.h"
#include "coordinator/cli/commands.h"
#include "coordinator/cli/exit_code.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cli/app_fixture.h"
#include "tests/cli/model/small_gpt2.h"

namespace isthmus::cli {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

TEST_F(AppTest, HelpTeaches) {
  EXPECT_THAT(RunCommand({"--help"}).out, HasSubstr("First steps:"));
  EXPECT_EQ(RunCommand({"--help"}).code, 0);
  for (const char* command : {"nodes", "plan", "submit", "list", "status", "watch", "logs", "stop",
                              "export", "generate", "check", "version", "testnet"}) {
    const Result result = RunCommand({command, "--help"});
    EXPECT_EQ(result.code, 0) << command;
    EXPECT_THAT(result.out, HasSubstr("--json")) << command;
    EXPECT_THAT(result.out, Not(HasSubstr("First steps:"))) << command;
    EXPECT_EQ(RunCommand({"help", command}).code, 0) << command;
  }
  for (const char* command : {"nodes", "plan", "submit", "generate"})
    EXPECT_THAT(RunCommand({command, "--help"}).out, HasSubstr("ISTHMUS_COORDINATOR")) << command;
  EXPECT_THAT(RunCommand({"help", "job"}).out, HasSubstr("global_batch"));
  EXPECT_THAT(RunCommand({"job-reference"}).out, HasSubstr("global_batch"));
  EXPECT_THAT(RunCommand({"job-template"}).out, HasSubstr("global_batch"));
  EXPECT_THAT(RunCommand({"version"}).out, HasSubstr("isthmus "));
  EXPECT_THAT(RunCommand({"--version"}).out, HasSubstr("isthmus "));
  EXPECT_TRUE(nlohmann::json::parse(RunCommand({"version", "--json"}).out).contains("version"));
}

TEST_F(AppTest, WrongUsageIsTwo) {
  EXPECT_EQ(RunCommand({}).code, kExitUsage);
  const Result typo = RunCommand({"sumbit", "x"});
  EXPECT_EQ(typo.code, kExitUsage);
  EXPECT_THAT(typo.err, HasSubstr("did you mean 'submit'?"));
  EXPECT_EQ(RunCommand({"submit"}).code, kExitUsage);
  EXPECT_EQ(RunCommand({"submit", Job(), "--frob"}).code, kExitUsage);
  EXPECT_EQ(RunCommand({"help", "frobnicate"}).code, kExitUsage);
  EXPECT_EQ(RunCommand({"frobnicate", "--help"}).code, kExitUsage);
  EXPECT_EQ(RunCommand({"nodes", "--coordinator", "nonsense"}).code, kExitUsage);
  EXPECT_EQ(Run({"submit", Job(), "--summary", "x.json"}).code, kExitUsage);
  EXPECT_EQ(RunCommand({"submit", dir_ + "/none.yaml"}).code, kExitUsage);
  EXPECT_EQ(RunCommand({"testnet", Job()}).code, kExitUsage);
}

TEST_F(AppTest, ErrorsOfTheFileComeBeforeThoseOfTheNetwork) {
  std::ofstream(Job()) << "nam: x\n";
  const Result result = RunCommand({"plan", Job(), "--coordinator", "127.0.0.1:1"});
  EXPECT_EQ(result.code, kExitUsage);
  EXPECT_THAT(result.err, HasSubstr("job.yaml:1:1: nam: unknown key; did you mean 'name'?"));
}

TEST_F(AppTest, NodesPlanListStatusStop) {
  fake_.nodes.add_nodes()->mutable_node()->set_name("alpha");
  fake_.jobs.add_jobs()->set_job_id("bible-1");
  fake_.plan.mutable_plan()->add_ranks()->set_node_name("alpha");
  EXPECT_THAT(Run({"nodes"}).out, HasSubstr("alpha"));
  EXPECT_EQ(nlohmann::json::parse(Run({"nodes", "--json"}).out)["nodes"][0]["node"]["name"],
            "alpha");
  EXPECT_THAT(Run({"plan", Job()}).out, HasSubstr("alpha"));
  EXPECT_EQ(
      nlohmann::json::parse(Run({"plan", Job(), "--json"}).out)["plan"]["ranks"][0]["node_name"],
      "alpha");
  EXPECT_THAT(Run({"list"}).out, HasSubstr("bible-1"));
  EXPECT_EQ(nlohmann::json::parse(Run({"list", "--json"}).out)["jobs"][0]["job_id"], "bible-1");
  EXPECT_THAT(Run({"status", "bible"}).out, HasSubstr("running"));
  EXPECT_EQ(nlohmann::json::parse(Run({"status", "bible", "--json"}).out)["state"], "running");
  EXPECT_THAT(Run({"stop", "bible", "--now", "--no-wait"}).out, HasSubstr("bible-1 running"));
  EXPECT_TRUE(fake_.asked().stop_request.now());
  EXPECT_EQ(fake_.asked().stop_request.job(), "bible");
}

TEST_F(AppTest, SubmitSendsTheJobAndPrintsItsId) {
  fake_.submitted.add_warnings("a warning");
  const Result result = Run({"submit", Job(), "--resume", "--wait"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out,
              HasSubstr("submitted bible-1: it waits; `isthmus status bible-1` says for what\n"));
  EXPECT_THAT(result.err, HasSubstr("warning: a warning"));
  EXPECT_TRUE(fake_.asked().submit_request.resume());
  EXPECT_TRUE(fake_.asked().submit_request.wait_for_nodes());
  EXPECT_EQ(fake_.asked().submit_request.job().recipe().steps(), 10);
  EXPECT_EQ(fake_.asked().submit_request.job().recipe().schedule(), "cosine");
  EXPECT_EQ(nlohmann::json::parse(Run({"submit", Job(), "--json"}).out)["job_id"], "bible-1");
}

TEST_F(AppTest, StepNamesTheCheckpointOfAResume) {
  EXPECT_EQ(Run({"submit", Job(), "--resume"}).code, kExitOk);
  EXPECT_FALSE(fake_.asked().submit_request.has_resume_step());
  EXPECT_EQ(Run({"submit", Job(), "--resume", "--step", "200"}).code, kExitOk);
  EXPECT_EQ(fake_.asked().submit_request.resume_step(), 200);
  EXPECT_EQ(Run({"plan", Job(), "--resume", "--step", "0"}).code, kExitOk);
  EXPECT_TRUE(fake_.asked().plan_request.resume());
  EXPECT_TRUE(fake_.asked().plan_request.has_resume_step());
  for (const char* command : {"submit", "plan"}) {
    const Result alone = Run({command, Job(), "--step", "200"});
    EXPECT_EQ(alone.code, kExitUsage);
    EXPECT_THAT(alone.err, HasSubstr("add --resume"));
    EXPECT_EQ(Run({command, Job(), "--resume", "--step", "-1"}).code, kExitUsage);
  }
}

TEST_F(AppTest, SubmitWatchEndsWithTheSummary) {
  fake_.streams = {{Records(0, 5, JOB_RUNNING), Records(5, 10, JOB_FINISHED)}};
  const std::string summary = dir_ + "/summary.json";
  const Result result = Run({"submit", Job(), "--watch", "--summary", summary});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("step 10/10  loss 4.6000"));
  EXPECT_THAT(result.out, HasSubstr("loss, first step           5.5000"));
  EXPECT_THAT(result.out, HasSubstr("summary: " + summary));
  std::ifstream in(summary);
  const auto json = nlohmann::json::parse(in);
  EXPECT_EQ(json["state"], "finished");
  EXPECT_NEAR(json["tokens_per_s"].get<double>(), 1000, 1e-6);
  EXPECT_EQ(fake_.asked().watch_requests[0].job(), "bible-1");
}

TEST_F(AppTest, WatchJsonPrintsOnlyTheSummaryOnStdout) {
  fake_.streams = {{Records(0, 10, JOB_FINISHED)}};
  const Result result = Run({"watch", "bible", "--json"});
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(nlohmann::json::parse(result.out)["step"], 10);
  EXPECT_THAT(result.err, HasSubstr("step 10/10"));
}

TEST_F(AppTest, TheEndWaitsForTheLastRecords) {
  // The status runs ahead of the records.
  WatchReply ahead = Records(0, 5, JOB_RUNNING);
  ahead.mutable_status()->set_state(JOB_FINISHED);
  ahead.mutable_status()->set_step(10);
  fake_.streams = {{ahead, Records(5, 10, JOB_FINISHED)}};
  EXPECT_THAT(Run({"watch", "bible"}).out, HasSubstr("step 10/10"));
}

TEST_F(AppTest, WatchGoesOnWhereABrokenStreamEnded) {
  fake_.streams = {{Records(0, 5, JOB_RUNNING)}, {Records(5, 10, JOB_FINISHED)}};
  fake_.broken_streams = 1;
  const Result result = Run({"watch", "bible"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("lost the coordinator"));
  EXPECT_THAT(result.out, HasSubstr("answers again"));
  ASSERT_EQ(fake_.asked().watch_requests.size(), 2u);
  EXPECT_EQ(fake_.asked().watch_requests[1].from_step(), 5);
}

TEST_F(AppTest, ASignalEndsTheWatchingWith130) {
  fake_.streams = {{Records(
      0, 5, JOB_RUNNING)}};  // ends without an end of the job: the watcher asks again and again
  fake_.on_watch = [] { kill(getpid(), SIGINT); };
  const Result result = Run({"watch", "bible"});
  EXPECT_EQ(result.code, kExitInterrupted);
  EXPECT_THAT(result.err, HasSubstr("the job goes on"));
}

TEST_F(AppTest, Logs) {
  fake_.streams = {{Records(0, 3, JOB_RUNNING)}};
  const Result text = Run({"logs", "bible"});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("TOKENS/S"));
  EXPECT_THAT(text.out, HasSubstr("5.3000"));
  EXPECT_FALSE(fake_.asked().watch_requests[0].follow());
  std::istringstream lines(Run({"logs", "bible", "--json", "--from", "2"}).out);
  std::string line;
  int count = 0;
  while (std::getline(lines, line)) EXPECT_EQ(nlohmann::json::parse(line)["step"], ++count);
  EXPECT_EQ(count, 3);
  EXPECT_EQ(fake_.asked().watch_requests[1].from_step(), 1);
  fake_.Forget();
  fake_.streams = {{Records(0, 10, JOB_FINISHED)}};
  EXPECT_EQ(Run({"logs", "bible", "-f"}).code, 0);
  EXPECT_TRUE(fake_.asked().watch_requests[0].follow());
}

TEST_F(AppTest, ExportWritesADirectory) {
  *fake_.status.mutable_plan()->mutable_job()->mutable_model() = SmallGpt2Model();
  fake_.weights = SmallGpt2Weights("transformer.");
  const Result result = Run({"export", "bible", dir_ + "/model", "--step", "40"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("at step 40"));
  EXPECT_EQ(fake_.asked().fetch_request.step(), 40);
  EXPECT_EQ(fake_.asked().fetch_request.what(), "weights");
  EXPECT_TRUE(fs::exists(dir_ + "/model/model.safetensors"));
  std::ifstream config(dir_ + "/model/config.json");
  EXPECT_EQ(nlohmann::json::parse(config)["n_layer"], 2);

  const Result again = Run({"export", "bible", dir_ + "/model"});
  EXPECT_EQ(again.code, kExitUsage);
  EXPECT_THAT(again.err, HasSubstr("--force"));
  EXPECT_EQ(nlohmann::json::parse(
                Run({"export", "bible", dir_ + "/model", "--force", "--json"}).out)["step"],
            40);
}

TEST_F(AppTest, CheckpointsAndRm) {
  fake_.removed.set_job_id("bible-1");
  fake_.removed.set_freed_bytes(3 << 20);
  CheckpointInfo* newest = fake_.checkpoints.add_checkpoints();
  newest->set_step(40);
  newest->set_bytes(3 << 20);
  newest->set_damage("state.json is damaged");
  fake_.checkpoints.add_checkpoints()->set_step(20);
  const Result list = Run({"checkpoints", "bible"});
  EXPECT_EQ(list.code, kExitOk) << list.err;
  for (const char* words : {"40", "3 MiB", "state.json is damaged", "--verify", "--step STEP"})
    EXPECT_THAT(list.out, HasSubstr(words));
  EXPECT_FALSE(fake_.asked().checkpoints_request.verify());
  const Result verified = Run({"checkpoints", "bible", "--verify"});
  EXPECT_EQ(verified.code, kExitFailure) << "one is damaged";
  EXPECT_THAT(verified.out, HasSubstr("sound"));
  EXPECT_TRUE(fake_.asked().checkpoints_request.verify());
  const auto json = nlohmann::json::parse(Run({"checkpoints", "bible", "--json"}).out);
  EXPECT_EQ(json["checkpoints"][1]["step"], 20);

  EXPECT_THAT(Run({"rm", "bible"}).out, HasSubstr("removed bible-1 and its checkpoints: 3 MiB"));
  EXPECT_FALSE(fake_.asked().remove_request.keep_checkpoints());
  EXPECT_THAT(Run({"rm", "bible", "--keep-checkpoints"}).out, HasSubstr("its checkpoints stay"));
  EXPECT_TRUE(fake_.asked().remove_request.keep_checkpoints());
  EXPECT_EQ(fake_.asked().remove_request.job(), "bible");
  EXPECT_EQ(nlohmann::json::parse(Run({"rm", "bible", "--json"}).out)["freed_bytes"], 3 << 20);
}

TEST_F(AppTest, AnExportThatWaitsSaysBehindHowMany) {
  fake_.status.mutable_plan()->mutable_job()->mutable_model()->set_layers(2);
  fake_.weights = WriteSafetensors({{"h", "F32", {1}, "1234"}}, {}).value();
  fake_.waits_behind = 3;
  const Result result = Run({"export", "bible", dir_ + "/model"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("serves as many exports as it may; 3 are before this one"));
}

TEST_F(AppTest, AnExportWithoutItsAutoencodersSaysSo) {
  *fake_.status.mutable_plan()->mutable_job()->mutable_model() = SmallGpt2Model();
  fake_.status.mutable_plan()->add_links()->mutable_forward()->set_kind(CodecSpec::AUTOENCODER);
  fake_.weights = SmallGpt2Weights("transformer.");
  const Result result = Run({"export", "bible", dir_ + "/model"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("without the autoencoders"));
}

TEST_F(AppTest, ADamagedExportLeavesNothing) {
  *fake_.status.mutable_plan()->mutable_job()->mutable_model() = SmallGpt2Model();
  fake_.weights = SmallGpt2Weights("transformer.");
  fake_.damage = true;
  const Result result = Run({"export", "bible", dir_ + "/model"});
  EXPECT_EQ(result.code, kExitFailure);
  EXPECT_THAT(result.err, HasSubstr("damaged"));
  EXPECT_FALSE(fs::exists(dir_ + "/model"));
  EXPECT_EQ(std::distance(fs::directory_iterator(dir_), fs::directory_iterator()),
            1);  // job.yaml alone
}

TEST_F(AppTest, AnExportHasATokenizer) {
  JobSpec* job = fake_.status.mutable_plan()->mutable_job();
  *job->mutable_model() = SmallGpt2Model();
  job->mutable_data()->set_format("bytes");
  fake_.weights = SmallGpt2Weights("transformer.");
  const Result bytes = Run({"export", "bible", dir_ + "/bytes", "--json"});
  EXPECT_EQ(bytes.code, 0) << bytes.err;
  EXPECT_EQ(nlohmann::json::parse(bytes.out)["tokenizer"], "bytes");
  EXPECT_TRUE(fs::exists(dir_ + "/bytes/tokenizer.json"));
  EXPECT_TRUE(fs::exists(dir_ + "/bytes/generation_config.json"));

  job->mutable_data()->set_format("tokens");
  const Result none = Run({"export", "bible", dir_ + "/none"});
  EXPECT_EQ(none.code, 0) << none.err;
  EXPECT_THAT(none.out, HasSubstr("no tokenizer"));
  EXPECT_THAT(none.out, HasSubstr("--tokenizer DIR"));
  EXPECT_FALSE(fs::exists(dir_ + "/none/tokenizer.json"));

  const Result asked = Run({"export", "bible", dir_ + "/asked", "--tokenizer", dir_ + "/bytes"});
  EXPECT_EQ(asked.code, 0) << asked.err;
  EXPECT_THAT(asked.out, HasSubstr("copied from " + dir_ + "/bytes"));
  EXPECT_TRUE(fs::exists(dir_ + "/asked/tokenizer.json"));
  EXPECT_EQ(Run({"export", "bible", dir_ + "/bad", "--tokenizer", dir_}).code, kExitUsage);
}

TEST_F(AppTest, SetGoesOverTheFile) {
  EXPECT_EQ(Run({"submit", Job(), "--set", "recipe.steps=77", "--set=seed=5"}).code, 0);
  EXPECT_EQ(fake_.asked().submit_request.job().recipe().steps(), 77);
  EXPECT_EQ(fake_.asked().submit_request.job().seed(), 5u);
  const Result wrong = Run({"plan", Job(), "--set", "recipe.steps=many"});
  EXPECT_EQ(wrong.code, kExitUsage);
  EXPECT_THAT(wrong.err, HasSubstr("--set recipe.steps=many: recipe.steps: 'many' is not a whole"));
}

TEST_F(AppTest, LogsAsCsv) {
  fake_.streams = {{Records(0, 2, JOB_FINISHED)}};
  const Result result = Run({"logs", "bible", "--csv"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, testing::StartsWith("step,loss,"));
  EXPECT_THAT(result.out, HasSubstr("\n2,5.4,"));
}

TEST_F(AppTest, LogsOfAJobThatIsNotThereHaveNoHeader) {
  fake_.refuse = {grpc::StatusCode::NOT_FOUND, "there is no job frob"};
  const Result result = Run({"logs", "frob"});
  EXPECT_NE(result.code, 0);
  EXPECT_EQ(result.out, "");
}

TEST_F(AppTest, GenerateExportsAJobFirst) {
  fake_.refuse = {grpc::StatusCode::NOT_FOUND, "there is no job frob"};
  const Result result = Run({"generate", "frob", "Once"});
  EXPECT_EQ(result.code, kExitUsage);
  EXPECT_THAT(result.err, HasSubstr("there is no job frob"));
}

}  // namespace
}  // namespace isthmus::cli
