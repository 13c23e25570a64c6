#include "coordinator/cli/compare_command.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "coordinator/cli/exit_code.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/comparison_service.grpc.pb.h"
#include "tests/cli/app_fixture.h"

namespace isthmus::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

PlanComparison TwoPlans() {
  PlanComparison c;
  c.set_job("bible");
  c.set_daemons(2);
  ComparedPlan* equal = c.add_plans();
  equal->set_strategy("equal split");
  equal->set_tried(1);
  equal->set_refusal("memory: stage 0 needs\x1b[31m more");
  ComparedPlan* ours = c.add_plans();
  ours->set_strategy("planner");
  ours->set_tried(12);
  ours->set_step_s(2);
  ours->set_tokens_per_s(4310);
  ours->set_cost_s(2.1);
  ours->set_times_ours(1);
  ours->set_busiest_link("lab - home");
  ours->set_busiest_bytes(1 << 20);
  ours->set_busiest_share(0.5);
  for (const char* name : {"lab", "home"}) {
    ComparedStage* stage = ours->add_stages();
    stage->set_node_name(name);
    stage->set_layers(3);
  }
  ours->add_left_out("far");
  c.add_gains("codecs: without compression a step takes 4.00 s, 2.00 times as much");
  c.set_verdict("No other plan that was looked at is better than the planner's.");
  c.add_notes("of the job's phases the first one alone is compared");
  return c;
}

TEST(ComparisonViewTest, RowsReasonsAndGains) {
  const std::string text = ComparisonView(TwoPlans(), false);
  EXPECT_THAT(text, AllOf(HasSubstr("Plans of job bible beside each other, on 2 daemons, by one"),
                          HasSubstr("planner      2.00 s     4.31k        1.00  lab - home"),
                          HasSubstr(" 1 MiB  50.00 %"), HasSubstr("not possible"),
                          HasSubstr("  - not possible: memory: stage 0 needs?[31m more\n"),
                          HasSubstr("  - layers: lab 3, home 3\n  - leaves out far\n"),
                          HasSubstr("Times ours counts what the losses of codecs cost")));
  EXPECT_THAT(text, AllOf(HasSubstr("What the planner's choices save:\n  - codecs: without"),
                          HasSubstr("No other plan that was looked at"),
                          HasSubstr("note: of the job's phases"), Not(HasSubstr("measured"))));
  EXPECT_THAT(ComparisonView(TwoPlans(), true), HasSubstr("of the table (nothing was measured)"));
}

class CompareTest : public AppTest {
 protected:
  Result Compare(std::vector<std::string> more) {
    more.insert(more.begin(), {"plan", Job(), "--compare"});
    return RunCommand(std::move(more));
  }
  std::string Links() {
    const std::string path = dir_ + "/links.csv";
    std::ofstream(path) << "from,to,rate,delay,jitter,loss\nhome,lab,1Mbit,20ms,,\n";
    return path;
  }
};

TEST_F(CompareTest, OnTheHostsOfATableNobodyIsAsked) {
  const Result text = Compare({"--topology", Links()});
  EXPECT_EQ(text.code, kExitOk) << text.err;
  EXPECT_THAT(text.out, AllOf(HasSubstr("equal split"), HasSubstr("genetic"), HasSubstr("random"),
                              HasSubstr("no compression"), HasSubstr("nothing was measured"),
                              Not(HasSubstr("IF THERE WERE"))));
  const Result json = Compare({"--topology", Links(), "--json"});
  ASSERT_EQ(json.code, kExitOk) << json.err;
  const nlohmann::json parsed = nlohmann::json::parse(json.out);
  EXPECT_EQ(parsed["plans"].size(), 5u);
  EXPECT_EQ(parsed["plans"][4]["strategy"], "planner");
  EXPECT_GT(parsed["plans"][4]["step_s"].get<double>(), 0);
}

TEST_F(CompareTest, ANewJobAlone) {
  EXPECT_THAT(Compare({"--topology", Links(), "--resume"}).err,
              HasSubstr("leave out one of --compare and --resume"));
  EXPECT_NE(Compare({"--resume"}).code, kExitOk);
}

class FakeComparisons final : public Comparisons::Service {
 public:
  FakeComparisons() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~FakeComparisons() override {
    server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(1));
  }
  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

 private:
  grpc::Status ComparePlans(grpc::ServerContext*, const PlanRequest* request,
                            PlanComparison* reply) override {
    *reply = TwoPlans();
    reply->set_job(request->job().name());
    return grpc::Status::OK;
  }
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

TEST_F(CompareTest, TheCoordinatorComparesOnItsDaemons) {
  const FakeComparisons coordinator;
  const Result text = Compare({"--coordinator", coordinator.address()});
  EXPECT_EQ(text.code, kExitOk) << text.err;
  EXPECT_THAT(text.out, HasSubstr("Plans of job bible beside each other"));
  const Result none = Compare({"--coordinator", fake_.address()});  // an older one
  EXPECT_NE(none.code, kExitOk);
}

}  // namespace
}  // namespace isthmus::cli
