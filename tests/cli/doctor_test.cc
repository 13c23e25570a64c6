#include "coordinator/cli/doctor/doctor.h"

#include <cstdio>
#include <cstdlib>

#include "absl/time/clock.h"
#include "coordinator/cli/exit_code.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/cli/fake_coordinator.h"

namespace isthmus::cli {
namespace {

using testing::HasSubstr;

void AddNode(ListNodesReply* reply, const std::string& name, double gflops = 60) {
  NodeStatus* node = reply->add_nodes();
  node->set_alive(true);
  node->mutable_node()->set_id("id-" + name);
  node->mutable_node()->set_name(name);
  node->mutable_node()->set_address(name + ":7071");
  node->mutable_node()->set_version("1.0");
  node->mutable_node()->set_device("cpu");
  node->mutable_node()->set_threads(2);
  node->mutable_node()->set_block_flops(1e9);
  node->mutable_node()->set_block_forward_s(1 / gflops);
}

void AddLink(ListNodesReply* reply, const std::string& from, const std::string& to,
             const std::string& error = "") {
  LinkMeasurement* link = reply->add_links();
  link->set_from_id("id-" + from);
  link->set_to_id("id-" + to);
  link->set_error(error);
}

Finding Of(const std::vector<Finding>& findings, const std::string& what) {
  for (const Finding& f : findings) {
    if (f.what == what) return f;
  }
  ADD_FAILURE() << "nothing of " << what;
  return {};
}

TEST(Doctor, TwoDaemonsThatReachOneAnotherAreWell) {
  ListNodesReply nodes;
  AddNode(&nodes, "berlin");
  AddNode(&nodes, "paris");
  AddLink(&nodes, "berlin", "paris");
  AddLink(&nodes, "paris", "berlin");
  const auto findings = JudgeNodes(nodes, "1.0");
  EXPECT_EQ(Worst(findings), Finding::kOk) << RenderFindings(findings);
  EXPECT_THAT(Of(findings, "way to paris").text, HasSubstr("reached from all 1 others"));
  EXPECT_THAT(Of(findings, "compute of berlin").text, HasSubstr("60 GFLOP/s with 2 threads"));
}

TEST(Doctor, ADaemonThatOthersDoNotReachIsAFailureWithItsCure) {
  ListNodesReply nodes;
  for (const char* name : {"berlin", "paris", "rome"}) AddNode(&nodes, name);
  AddLink(&nodes, "berlin", "paris", "connection refused");
  AddLink(&nodes, "rome", "paris");
  AddLink(&nodes, "paris", "berlin");
  const auto findings = JudgeNodes(nodes, "1.0");
  EXPECT_EQ(Of(findings, "way to paris").level, Finding::kFail);
  EXPECT_THAT(Of(findings, "way to paris").text,
              HasSubstr("paris:7071 can't be reached from berlin: connection refused"));
  EXPECT_THAT(Of(findings, "way to paris").cure, HasSubstr("--advertise"));
  EXPECT_EQ(Of(findings, "way to berlin").level, Finding::kWarn);
  EXPECT_THAT(Of(findings, "way to berlin").text, HasSubstr("not been measured from rome"));
}

TEST(Doctor, SlowLostAndOtherVersionsAreNamed) {
  ListNodesReply nodes;
  AddNode(&nodes, "slow", 3);
  AddNode(&nodes, "gone");
  nodes.mutable_nodes(1)->set_alive(false);
  nodes.mutable_nodes(0)->add_warnings("its disk is nearly full");
  const auto findings = JudgeNodes(nodes, "2.0");
  EXPECT_THAT(Of(findings, "compute of slow").cure, HasSubstr("libopenblas0-pthread"));
  EXPECT_THAT(Of(findings, "daemons").text, HasSubstr("; lost: gone"));
  nodes.mutable_nodes(1)->set_left(true);
  EXPECT_EQ(Of(JudgeNodes(nodes, "2.0"), "daemons").text, "1 alive; left in good order: gone");
  EXPECT_THAT(Of(findings, "versions").text, HasSubstr("slow 1.0"));
  EXPECT_EQ(Of(findings, "warning of slow").text, "its disk is nearly full");
}

TEST(Doctor, DrainedDaemonsAreNamedWithTheirCure) {
  ListNodesReply nodes;
  for (const char* name : {"berlin", "paris"}) AddNode(&nodes, name);
  nodes.mutable_nodes(1)->set_drained(true);
  const Finding found = Of(JudgeNodes(nodes, "1.0"), "daemons");
  EXPECT_EQ(found.level, Finding::kWarn);
  EXPECT_EQ(found.text, "2 alive; drained, get no job: paris");
  EXPECT_THAT(found.cure, HasSubstr("isthmus drain NODE --undo"));
}

TEST(Doctor, WithoutDaemonsItSaysHowToStartThem) {
  EXPECT_THAT(Of(JudgeNodes({}, "1.0"), "daemons").cure, HasSubstr("start isthmusd"));
}

class RunDoctorTest : public testing::Test {
 protected:
  int Run(const std::string& address, bool json) {
    char* text;
    size_t size;
    FILE* out = open_memstream(&text, &size);
    Console console(out, stderr);
    ClientOptions options;
    options.address = address;
    const int code = RunDoctor(options, json, &console);
    std::fclose(out);
    out_.assign(text, size);
    std::free(text);
    return code;
  }
  FakeCoordinator fake_;
  std::string out_;
};

TEST_F(RunDoctorTest, LooksAtThisMachineAndTheCluster) {
  AddNode(&fake_.nodes, "berlin");
  fake_.nodes.mutable_nodes(0)->mutable_node()->set_version(ISTHMUS_VERSION);
  fake_.clock_ms = absl::ToUnixMillis(absl::Now() + absl::Hours(1));
  EXPECT_NE(Run(fake_.address(), true), kExitUnreachable);
  const auto json = nlohmann::json::parse(out_);
  std::map<std::string, std::string> levels;
  for (const auto& check : json["checks"]) levels[check["what"]] = check["level"];
  for (const char* what : {"open files", "threads", "clock", "disk", "programs"})
    EXPECT_EQ(levels.count(what), 1u) << what;
  EXPECT_EQ(levels["coordinator"], "ok");
  EXPECT_EQ(levels["clock of the coordinator"], "warn");  // an hour ahead
  EXPECT_EQ(levels["compute of berlin"], "ok");
}

TEST_F(RunDoctorTest, AnOlderCoordinatorTellsNoClock) {
  Run(fake_.address(), false);
  EXPECT_THAT(out_, HasSubstr("ok    coordinator"));
  EXPECT_THAT(out_, testing::Not(HasSubstr("clock of the coordinator")));
}

TEST_F(RunDoctorTest, ACoordinatorThatDoesNotAnswerIsFour) {
  EXPECT_EQ(Run("127.0.0.1:1", false), kExitUnreachable);
  EXPECT_THAT(out_, HasSubstr("fail  coordinator"));
  EXPECT_THAT(out_, HasSubstr("open files"));
}

}  // namespace
}  // namespace isthmus::cli
