#include "coordinator/cli/testnet/testnet_plan.h"

#include <filesystem>

#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/temp_directory.h"

namespace isthmus::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const TestnetPrograms kPrograms = {"/bin/isthmus-wan", "/bin/isthmus-coordinator", "/bin/isthmusd",
                                   "/bin/isthmus"};
const TestnetNode kHubNode = {"hub", "10.77.0.1", ""};

TestnetOptions Options() {
  TestnetOptions options;
  options.nodes = 2;
  options.rate = "20Mbit";
  options.delay = "20ms";
  options.job_file = "job.yaml";
  options.data_dir = "/data";
  return options;
}

std::string Line(const TestnetCommand& command) {
  std::vector<std::string> words = command.argv;
  for (std::string& word : words) word = word.empty() ? "''" : word;
  return command.name + ": " + absl::StrJoin(words, " ");
}

TEST(TestnetPlan, WhatIsNotSaidIsUnlimitedAndAtOnce) {
  TestnetOptions options;
  options.nodes = 1;
  options.delay = "10ms";
  EXPECT_THAT(UniformLinks(options).csv, testing::HasSubstr("\n*,*,unlimited,10ms,,\n"));
  options.delay.clear();
  options.rate = "5Mbit";
  EXPECT_THAT(UniformLinks(options).csv, testing::HasSubstr("\n*,*,5Mbit,0,,\n"));
}

TEST(TestnetPlan, GoldenCommands) {
  TestnetOptions options = Options();
  EXPECT_EQ(Line(WanCommand(options, kPrograms, "/run")),
            "wan: /bin/isthmus-wan --links /run/links.csv --run-dir /run/wan --mtu 1500 --seed 1");
  EXPECT_EQ(Line(CoordinatorCommand(options, kPrograms, "/run", kHubNode)),
            "coordinator: /bin/isthmus-wan exec --run-dir /run/wan hub -- /bin/isthmus-coordinator "
            "--insecure "
            "--listen 10.77.0.1:7070 "
            "--state-dir /run/coordinator --http ''");
  EXPECT_EQ(
      Line(DaemonCommand(options, kPrograms, "/run", kHubNode, {"n0", "10.77.0.2", ""})),
      "n0: /bin/isthmus-wan exec --run-dir /run/wan n0 -- /bin/isthmusd --insecure --coordinator "
      "10.77.0.1:7070 --listen 10.77.0.2:7071 "
      "--name n0 --state-dir /run/n0 --data-dir /data --threads 1 --http ''");
  EXPECT_EQ(
      Line(CliCommand(kPrograms, "/run", kHubNode, SubmitArguments(options))),
      "cli: /bin/isthmus-wan exec --run-dir /run/wan hub -- /bin/isthmus --insecure --coordinator "
      "10.77.0.1:7070 submit job.yaml --watch");
  options.http = true;
  options.json = true;
  options.summary_file = "s.json";
  options.threads = 3;
  EXPECT_THAT(Line(CoordinatorCommand(options, kPrograms, "/run", kHubNode)),
              testing::EndsWith("--http 10.77.0.1:7080"));
  EXPECT_THAT(Line(DaemonCommand(options, kPrograms, "/run", kHubNode, {"n0", "10.77.0.2", ""})),
              testing::EndsWith("--threads 3 --http 10.77.0.2:7081"));
  EXPECT_THAT(
      Line(DaemonCommand(options, kPrograms, "/run", kHubNode, {"n0", "10.77.0.2", "5Mbit"})),
      testing::EndsWith("--http 10.77.0.2:7081 --uplink 5Mbit"));
  EXPECT_THAT(SubmitArguments(options),
              ElementsAre("submit", "job.yaml", "--watch", "--json", "--summary", "s.json"));
  options.job_file.settings = {"recipe.steps=5"};
  EXPECT_THAT(SubmitArguments(options),
              ElementsAre("submit", "job.yaml", "--watch", "--set", "recipe.steps=5", "--json",
                          "--summary", "s.json"));
}

TEST(TestnetPlan, ThePatienceGrowsWithTheLinks) {
  TestnetOptions options = Options();
  EXPECT_THAT(WaitArguments(options, 2),
              ElementsAre("nodes", "--json", "--wait", "2", "--timeout", "180"));
  EXPECT_EQ(WaitArguments(options, 8).back(), "396");
  options.ready_timeout_s = 7;
  EXPECT_EQ(WaitArguments(options, 8).back(), "7");
}

TEST(TestnetPlan, UniformLinksLeaveTheHubUnlimited) {
  const TestnetLinks links = UniformLinks(Options());
  EXPECT_THAT(links.daemons, ElementsAre("n0", "n1"));
  EXPECT_EQ(links.csv,
            "from,to,rate,delay,jitter,loss\n"
            "hub,n0,unlimited,0,,\n"
            "hub,n1,unlimited,0,,\n"
            "*,*,20Mbit,20ms,,\n");
}

TEST(TestnetPlan, DaemonsMayShareAnUplinkAndADownlink) {
  TestnetOptions options = Options();
  options.uplink = "5Mbit";
  EXPECT_THAT(UniformLinks(options).csv,
              testing::EndsWith("*,*,20Mbit,20ms,,\nn0,@up,5Mbit,,,\nn1,@up,5Mbit,,,\n"));
  options.downlink = "9Mbit";
  EXPECT_THAT(UniformLinks(options).csv, HasSubstr("n1,@up,5Mbit,,,\nn1,@down,9Mbit,,,\n"));
  EXPECT_THAT(UniformLinks(options).csv, testing::Not(HasSubstr("hub,@")));
  EXPECT_THAT(UniformLinks(options).daemons, ElementsAre("n0", "n1"));
  EXPECT_EQ(UplinkOf(UniformLinks(options), "n1"), "5Mbit");
  EXPECT_EQ(UplinkOf(UniformLinks(options), "hub"), "");
  options.links = "regions";
  options.rate = options.delay = "";
  EXPECT_THAT(std::string(CheckTestnetOptions(options).message()), HasSubstr("--uplink"));
}

constexpr char kTable[] =
    "from,to,rate,delay,jitter,loss\n"
    "home,lab,20Mbit,12ms,1ms,0%\n"
    "home,cloud,20Mbit,18ms,1ms,0%\n"
    "lab,home,100Mbit,12ms,1ms,0%\n"
    "lab,cloud,200Mbit,10ms,0,0%\n"
    "cloud,home,100Mbit,18ms,1ms,0%\n"
    "cloud,lab,200Mbit,10ms,0,0%\n";

TEST(TestnetPlan, TheFirstNodesOfATable) {
  const TestnetLinks two = LinksOfTable(kTable, 2).value();
  EXPECT_THAT(two.daemons, ElementsAre("home", "lab"));
  EXPECT_EQ(two.csv,
            "from,to,rate,delay,jitter,loss\n"
            "hub,home,unlimited,0,,\n"
            "hub,lab,unlimited,0,,\n"
            "home,lab,20Mbit,12ms,1ms,0%\n"
            "lab,home,100Mbit,12ms,1ms,0%\n");
  EXPECT_EQ(LinksOfTable(kTable, 0)->daemons.size(), 3u);
  EXPECT_THAT(std::string(LinksOfTable(kTable, 4).status().message()), HasSubstr("has 3"));
  EXPECT_FALSE(LinksOfTable("from,to,rate,delay,jitter,loss\n", 0).ok());
  EXPECT_THAT(LinksOfTable("from,to,rate,delay,jitter,loss\n", 1)->daemons, ElementsAre("n0"));
}

TEST(TestnetPlan, ATableMayNameTheHub) {
  const std::string table = std::string(kTable) + "hub,home,1Mbit,5ms,,\n# a comment\n";
  EXPECT_TRUE(TableNamesHub(table));
  EXPECT_FALSE(TableNamesHub(kTable));
  const TestnetLinks links = LinksOfTable(table, 2).value();
  EXPECT_THAT(links.daemons, ElementsAre("home", "lab"));
  EXPECT_THAT(links.csv, HasSubstr("hub,home,1Mbit,5ms,,\n"));
  EXPECT_THAT(links.csv, testing::Not(HasSubstr("unlimited")));
}

TEST(TestnetPlan, RowsOfUplinksStayWithTheirNodes) {
  const std::string table =
      std::string(kTable) + "home,@up,2Mbit,,,\ncloud,@down,3Mbit,,,\nhub,@up,4Mbit,,,\n";
  EXPECT_FALSE(TableNamesHub(table)) << "the hub's links are not in it";
  const TestnetLinks links = LinksOfTable(table, 2).value();
  EXPECT_THAT(links.daemons, ElementsAre("home", "lab"));
  EXPECT_THAT(links.csv, testing::EndsWith("home,@up,2Mbit,,,\nhub,@up,4Mbit,,,\n"));
  EXPECT_EQ(LinksOfTable(table, 0)->daemons.size(), 3u);
}

// isthmus-wan takes more rates than isthmusd: a daemon that was told one of those didn't start.
TEST(TestnetPlan, ADaemonIsToldAnUplinkThatItTakes) {
  for (const auto& [rate, told] : {std::pair<const char*, const char*>("20Mbit/s", "20Mbit"),
                                   {" 20000000bit ", "20Mbit"},
                                   {"1.5Gbit", "1500Mbit"},
                                   {"1234567bit", "1234567bit"},
                                   {"1.001Mbit", "1001kbit"},
                                   {"500kbit", "500kbit"},
                                   {"100Gbit", "100Gbit"},
                                   {"499kbit", ""},
                                   {"64kbit", ""},
                                   {"200Gbit", ""},
                                   {"0", ""},
                                   {"unlimited", ""}}) {
    TestnetOptions options = Options();
    options.uplink = rate;
    EXPECT_EQ(UplinkOf(UniformLinks(options), "n1"), told) << rate;
  }
}

TEST(TestnetPlan, OptionsThatExcludeEachOther) {
  EXPECT_TRUE(CheckTestnetOptions(Options()).ok());
  TestnetOptions options = Options();
  options.links = "regions";
  EXPECT_EQ(CheckTestnetOptions(options).code(), absl::StatusCode::kInvalidArgument);
  options = Options();
  options.nodes = 0;
  EXPECT_EQ(CheckTestnetOptions(options).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CheckTestnetOptions(TestnetOptions()).code(), absl::StatusCode::kInvalidArgument);
}

// "the job goes on" was said, though its daemons end with the network.
TEST(TestnetPlan, AJobThatIsCutOffSaysWhatIsKeptAndHowToGoOn) {
  const TempDirectory dir;
  EXPECT_EQ(NewestCheckpoint(dir.path()), -1);
  EXPECT_THAT(CutOffWords("run/coordinator", -1), HasSubstr("nothing of it is kept"));
  for (const char* name : {"step-00000020", "step-00000100", "partial-00000120-g1-of2", "step-x"})
    std::filesystem::create_directories(dir.path() + "/checkpoints/bible-1/" + name);
  EXPECT_EQ(NewestCheckpoint(dir.path()), 100);
  const std::string words = CutOffWords("run/coordinator", 100);
  EXPECT_THAT(words, HasSubstr("its checkpoint of step 100 is kept in run/coordinator"));
  EXPECT_THAT(words, HasSubstr("isthmus-coordinator --state-dir run/coordinator"));
  EXPECT_THAT(words, HasSubstr("isthmus submit JOB.yaml --resume"));
}

TEST(TestnetPlan, WanNodes) {
  const auto nodes = ParseWanNodes(
      R"({"pid": 1, "nodes": [{"name": "hub", "address": "10.77.0.1", "ns_path": "/x"}]})");
  ASSERT_TRUE(nodes.ok()) << nodes.status();
  EXPECT_EQ(nodes->at(0).name, "hub");
  EXPECT_EQ(nodes->at(0).address, "10.77.0.1");
  for (const char* bad : {"", "[]", "{}", R"({"nodes": 3})", R"({"nodes": [3]})",
                          R"({"nodes": [{"name": 1, "address": 2}]})"}) {
    EXPECT_FALSE(ParseWanNodes(bad).ok()) << bad;
  }
}

}  // namespace
}  // namespace isthmus::cli
