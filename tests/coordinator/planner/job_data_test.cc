#include "coordinator/planner/job_data.h"

#include "coordinator/planner/planner.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/coordinator/planner/topology.h"

namespace isthmus::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

DataFile* Add(NodeInfo* node, const std::string& path, int64_t bytes,
              const std::string& format = "uint16", uint64_t contents = 1) {
  DataFile* f = node->add_data_files();
  f->set_path(path);
  f->set_bytes(bytes);
  f->set_format(format);
  f->set_contents(contents);
  f->set_tokens(format == "uint16" ? bytes / 2 : bytes);
  f->set_highest_id(400);
  return f;
}

JobSpec TokenJob(const std::string& path) {
  JobSpec job = MakeJob(4, 64, 100);
  job.mutable_data()->set_path(path);
  job.mutable_data()->set_format("tokens");
  job.mutable_model()->set_vocabulary(512);
  return job;
}

void ExpectRefused(const JobSpec& job, const NodeInfo& node, const std::string& words) {
  const absl::Status status = CountSamples(job, node).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(words));
}

TEST(JobData, SamplesAreCountedLikeTheCorpusDoes) {
  JobSpec job = MakeJob(2, 64, 100);
  NodeInfo node = MakeNode("a", 1, 1, 1, 100001);
  DataSize size = CountSamples(job, node).value();
  EXPECT_TRUE(size.known);
  EXPECT_EQ(size.train_samples + size.validation_samples, 1000);
  EXPECT_EQ(size.validation_samples, 50);
  EXPECT_DOUBLE_EQ(size.passes, 300 * 32 / 950.0);
  EXPECT_EQ(size.doubt, "");
  Add(&node, "shards/a.bin", 20002);
  Add(&node, "shards/b.bin", 21024)->set_tokens(10000);  // with a header
  Add(&node, "shards/readme", 20002, "bytes");
  Add(&node, "shards/older/c.bin", 20002);
  EXPECT_EQ(CountSamples(TokenJob("shards/"), node)->train_samples, 190)
      << "directly in the directory, as if they were one file";
  EXPECT_EQ(CountSamples(TokenJob("nowhere"), node).status().code(), absl::StatusCode::kNotFound);
}

TEST(JobData, RowsAreCountedAndFilesOfOthersRefused) {
  JobSpec job;
  job.mutable_data()->set_path("rows.bin");
  job.mutable_data()->set_validation_share(0.1);
  ModelSpec* m = job.mutable_model();
  m->set_family("mlp");
  m->set_inputs(63);
  m->set_classes(10);
  job.mutable_recipe()->set_global_batch(8);
  FillDefaults(&job);
  NodeInfo node = MakeNode("a", 1, 1, 1, 100001);
  DataFile* file = Add(&node, "rows.bin", 2 * 64 * 200);
  file->set_highest_id(255);
  const DataSize size = CountSamples(job, node).value();
  EXPECT_EQ(size.train_samples, 180);
  EXPECT_EQ(size.validation_samples, 20);
  file->set_highest_id(256);
  ExpectRefused(job, node, "it holds 256, and a row's values are below 256");
  file->set_highest_id(255);
  m->set_inputs(64);
  ExpectRefused(job, node, "no whole number of rows of 65");
}

// "The number of samples is not known" was said of files that were in a list cut off elsewhere.
TEST(JobData, WhatIsListedIsKnownThoughTheListIsNotComplete) {
  NodeInfo node = MakeNode("a", 1);
  Add(&node, "shards/a.bin", 100002);
  node.set_data_listed(false);
  EXPECT_TRUE(CountSamples(MakeJob(), node)->known);
  EXPECT_TRUE(CountSamples(TokenJob("./shards"), node)->known);
  EXPECT_FALSE(CountSamples(TokenJob("elsewhere"), node)->known);
  for (int i = 0; i < 254; ++i) Add(&node, absl::StrCat("more/", i), 1, "bytes");
  EXPECT_TRUE(CountSamples(MakeJob(), node)->known);
  EXPECT_FALSE(CountSamples(TokenJob("shards"), node)->known) << "shards may be missing in it";
  node.clear_data_files();
  EXPECT_FALSE(CountSamples(MakeJob(), node)->known);
}

TEST(JobData, ShardsThatAreCalledValAreTheValidationSet) {
  NodeInfo node = MakeNode("a", 1);
  Add(&node, "owt/train.bin", 200002);
  Add(&node, "owt/val.bin", 2002);
  const DataSize size = CountSamples(TokenJob("owt"), node).value();
  EXPECT_EQ(size.train_samples, 1000);
  EXPECT_EQ(size.validation_samples, 10);
  EXPECT_EQ(size.validation_files, "val.bin");
  EXPECT_EQ(CountSamples(TokenJob("owt/val.bin"), node).status().code(),
            absl::StatusCode::kInvalidArgument)
      << "one file: its last share is for validation";
  Add(&node, "val/val.bin", 200002);
  ExpectRefused(TokenJob("val"), node, "holds validation shards alone (val.bin)");
}

TEST(JobData, TheWordsSayWhatTokensAreReadAs) {
  NodeInfo node = MakeNode("a", 1);
  EXPECT_EQ(CountSamples(MakeJob(), node)->read_as, "") << "text is what it is";
  Add(&node, "one.bin", 200002);
  EXPECT_EQ(CountSamples(TokenJob("one.bin"), node)->read_as,
            "1 shard of 16-bit tokens, 100001 tokens in all");
  Add(&node, "wide.bin", 400004, "uint32")->set_tokens(100001);
  EXPECT_EQ(CountSamples(TokenJob("wide.bin"), node)->read_as,
            "1 shard of 32-bit tokens, 100001 tokens in all");
  Add(&node, "both/a.bin", 200002);
  Add(&node, "both/b.bin", 200002);
  Add(&node, "both/c.bin", 400004, "uint32")->set_tokens(100001);
  Add(&node, "both/val.bin", 2002);
  EXPECT_EQ(CountSamples(TokenJob("both"), node)->read_as,
            "2 shards of 16-bit tokens and 1 of 32-bit tokens, 300003 tokens in all");
  Add(&node, "new/a.bin", 200002, "");
  EXPECT_EQ(CountSamples(TokenJob("new"), node)->read_as,
            "1 shard of tokens of a width that no daemon has told yet, 100001 tokens in all");
  PlannerInput in;
  in.job_id = "tokens-1";
  in.generation = 1;
  in.job = TokenJob("both");
  in.job.mutable_strategy()->set_stages(1);
  *in.topology.add_nodes() = node;
  const auto planned = MakePlan(in);
  ASSERT_TRUE(planned.ok()) << planned.status();
  EXPECT_THAT(planned->plan.explanation(),
              Contains(HasSubstr("data: 2 shards of 16-bit tokens and 1 of 32-bit tokens, 300003 "
                                 "tokens in all; 3000 training samples; 300 steps are")));
}

TEST(JobData, WhatCanNotBeReadAsTheJobSaysIsRefusedInWords) {
  NodeInfo node = MakeNode("a", 1);
  Add(&node, "wide.bin", 200002, "int64")->set_problem("offset 0: these look like 64-bit ids");
  ExpectRefused(TokenJob("wide.bin"), node,
                "'wide.bin' on daemon a, offset 0: these look like 64-bit ids");
  Add(&node, "set/train.bin", 200002);
  Add(&node, "set/hellaswag_val.bin", 2000, "llm.c")->set_problem("offset 0: a choice set");
  ExpectRefused(TokenJob("set"), node, "'set/hellaswag_val.bin' on daemon a, offset 0: a choice");
  Add(&node, "big.bin", 200002)->set_highest_id(520);
  ExpectRefused(TokenJob("big.bin"), node, "token 520 is beyond model.vocabulary (512)");
  JobSpec larger = TokenJob("big.bin");
  larger.mutable_model()->set_vocabulary(521);
  EXPECT_TRUE(CountSamples(larger, node).ok());
  Add(&node, "packed.txt", 200000, "gzip")->set_problem("offset 0: compressed");
  Add(&node, "odd.bin", 200001, "bytes")->set_problem("offset 200000: odd");
  ExpectRefused(TokenJob("odd.bin"), node, "offset 200000: odd");
  JobSpec text = MakeJob();
  text.mutable_data()->set_path("packed.txt");
  ExpectRefused(text, node, "offset 0: compressed");
  text.mutable_data()->set_path("odd.bin");
  EXPECT_TRUE(CountSamples(text, node).ok()) << "as bytes it is good";
  text.mutable_data()->set_path("set");
  ExpectRefused(text, node, "is a directory, and data.format is bytes");
  text.mutable_data()->set_path("set/train.bin");
  EXPECT_THAT(CountSamples(text, node)->doubt, HasSubstr("looks like uint16 token ids"));
}

TEST(JobData, IdsOf32BitsAreCountedAndCheckedToo) {
  NodeInfo node = MakeNode("a", 1);
  DataFile* file = Add(&node, "wide.bin", 400004, "uint32");
  file->set_tokens(100001);
  file->set_highest_id(100000);
  JobSpec job = TokenJob("wide.bin");
  ExpectRefused(job, node, "token 100000 is beyond model.vocabulary (512)");
  job.mutable_model()->set_vocabulary(100001);
  EXPECT_EQ(CountSamples(job, node)->train_samples + CountSamples(job, node)->validation_samples,
            100000 / job.model().context());
}

TEST(JobData, WhatWasNotLookedAtIsADoubtAndNoRefusal) {
  NodeInfo node = MakeNode("a", 1);
  Add(&node, "new.bin", 200002, "", 0)->set_highest_id(0);
  EXPECT_EQ(CountSamples(TokenJob("new.bin"), node)->train_samples, 950);
  EXPECT_THAT(CountSamples(TokenJob("new.bin"), node)->doubt, HasSubstr("has not told yet"));
}

TEST(JobData, DifferentDataOnTwoDaemonsNameBoth) {
  NodeInfo a = MakeNode("anna", 1), b = MakeNode("ben", 1);
  JobSpec job = MakeJob();
  EXPECT_TRUE(SameData(job, a, b).ok());
  b.mutable_data_files(0)->set_contents(7);
  EXPECT_EQ(SameData(job, a, b).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(SameData(job, a, b).message()),
              HasSubstr("daemons anna and ben hold different data at 'text.txt': 'text.txt' has "
                        "4194304 bytes on both, but others on each"));
  b.set_version("another");
  EXPECT_TRUE(SameData(job, a, b).ok()) << "another version may look at other blocks";
  b.mutable_data_files(0)->set_bytes(5000000);
  EXPECT_THAT(std::string(SameData(job, a, b).message()),
              HasSubstr("4194304 bytes on anna, 5000000 bytes on ben"));
  b.clear_data_files();
  EXPECT_TRUE(SameData(job, a, b).ok()) << "who has none has no others";

  Add(&a, "owt/train.bin", 2000);
  Add(&b, "owt/x_000.bin", 1000);
  Add(&b, "owt/x_001.bin", 1000, "uint16", 2);
  EXPECT_TRUE(SameData(TokenJob("owt"), a, b).ok()) << "the same tokens, cut in another way";
  Add(&b, "owt/val.bin", 1000);
  EXPECT_THAT(std::string(SameData(TokenJob("owt"), a, b).message()),
              HasSubstr("0 tokens on anna, 500 tokens on ben"));
}

TEST(JobData, TheNextWordsOfDaemonsMayTellMore) {
  const JobSpec job = MakeJob();
  NodeInfo a = MakeNode("a", 1), b = MakeNode("b", 1);
  a.set_version("1");
  EXPECT_FALSE(DataMayCome(job, {&a, &b}, "1"));
  a.mutable_data_files(0)->clear_format();
  EXPECT_TRUE(DataMayCome(job, {&a, &b}, "1")) << "it has not been looked at";
  EXPECT_FALSE(DataMayCome(job, {&a, &b}, "2")) << "an older daemon never tells";
  a.clear_data_files();
  EXPECT_FALSE(DataMayCome(job, {&a, &b}, "1")) << "b has it";
  EXPECT_TRUE(DataMayCome(job, {&a}, "1")) << "it may just have been put there";
  EXPECT_FALSE(DataMayCome(job, {}, "1"));
}

class JobDataPlanTest : public ::testing::Test {
 protected:
  JobDataPlanTest() {
    in_.job_id = "bible-1";
    in_.job = MakeJob();
    in_.job.mutable_strategy()->set_stages(4);
    for (const char* name : {"anna", "ben", "cleo", "dora"})
      *in_.topology.add_nodes() = MakeNode(name, 10);
    JoinAll(&in_.topology, 100, 20);
  }
  NodeInfo* node(int i) { return in_.topology.mutable_nodes(i); }
  void OtherContents(int i, uint64_t contents) {
    node(i)->mutable_data_files(0)->set_contents(contents);
  }
  PlannerInput in_;
};

TEST_F(JobDataPlanTest, EndsThatHoldDifferentDataAreRefusedByName) {
  for (const NodeInfo& n : in_.topology.nodes()) in_.job.mutable_strategy()->add_nodes(n.name());
  OtherContents(1, 5);
  EXPECT_TRUE(MakePlan(in_).ok()) << "a stage in the middle reads nothing";
  OtherContents(3, 5);
  const absl::Status status = MakePlan(in_).status();
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("daemons anna and dora hold different data"));
}

TEST_F(JobDataPlanTest, DaemonsWithTheSameDataAreTheEnds) {
  OtherContents(0, 5);
  OtherContents(1, 6);
  const PlannedJob planned = MakePlan(in_).value();
  for (int end : {0, 3})
    EXPECT_THAT(planned.plan.ranks(end).node_name(), testing::AnyOf("cleo", "dora"));
  EXPECT_THAT(planned.warnings, Contains(HasSubstr("daemon anna can't be the first or the last")));
  EXPECT_THAT(planned.warnings, Contains(HasSubstr("daemon ben can't be the first or the last")));
  OtherContents(2, 7);
  EXPECT_THAT(std::string(MakePlan(in_).status().message()),
              AllOf(HasSubstr("hold different data at 'text.txt'"), HasSubstr("anna")));
}

TEST_F(JobDataPlanTest, OneDaemonWithTheDataIsNotEnough) {
  for (int i : {0, 1, 2}) node(i)->clear_data_files();
  const absl::Status status = MakePlan(in_).status();
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("of the free daemons only dora has it: daemon anna has no 'text.txt'"));
  in_.job.mutable_strategy()->set_stages(1);
  EXPECT_TRUE(MakePlan(in_).ok());
}

TEST_F(JobDataPlanTest, ThePlanSaysWhatIsTheValidationSet) {
  in_.job = TokenJob("owt");
  in_.job.mutable_strategy()->set_stages(2);
  for (int i = 0; i < 4; ++i) {
    Add(node(i), "owt/train.bin", 200002);
    Add(node(i), "owt/val.bin", 2002);
  }
  const PlannedJob planned = MakePlan(in_).value();
  EXPECT_THAT(planned.plan.explanation(),
              Contains(HasSubstr("the validation set is val.bin, 10 samples: it is not trained on, "
                                 "and data.validation_share does not apply")));
  EXPECT_EQ(planned.plan.train_samples(), 1000);
  EXPECT_THAT(planned.warnings, Not(Contains(HasSubstr("data"))));
}

}  // namespace
}  // namespace isthmus::coordinator
