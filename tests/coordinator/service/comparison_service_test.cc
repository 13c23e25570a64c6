// Plans beside each other over the wire, on the daemons that are there.
#include "coordinator/service/comparison_service.h"

#include "gmock/gmock.h"
#include "proto/comparison_service.grpc.pb.h"
#include "tests/coordinator/service/service_fixture.h"

namespace isthmus::coordinator {
namespace {

using ::testing::HasSubstr;

class ComparisonServiceTest : public ServiceTest {
 protected:
  absl::StatusOr<PlanComparison> Compare(const JobSpec& job, bool resume = false) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    PlanRequest request;
    *request.mutable_job() = job;
    request.set_resume(resume);
    PlanComparison reply;
    const absl::Status status =
        rpc::FromGrpc(Comparisons::NewStub(channel_)->ComparePlans(&context, request, &reply));
    if (!status.ok()) return status;
    return reply;
  }
};

TEST_F(ComparisonServiceTest, ComparesOnTheDaemonsThatAreThereAndStartsNothing) {
  const auto a = Daemon("a"), b = Daemon("b");
  ASSERT_TRUE(Eventually([&] { return Nodes().links_size() == 2; }));
  const absl::StatusOr<PlanComparison> compared = Compare(TwoStages());
  ASSERT_TRUE(compared.ok()) << compared.status();
  ASSERT_EQ(compared->plans_size(), 5);
  EXPECT_EQ(compared->daemons(), 2);
  EXPECT_EQ(compared->plans(4).strategy(), "planner");
  EXPECT_EQ(compared->plans(4).stages_size(), 2);
  EXPECT_TRUE(
      (Call<ListJobsRequest, ListJobsReply>(&Jobs::Stub::List, ListJobsRequest())->jobs().empty()));
}

TEST_F(ComparisonServiceTest, BusyDaemonsCountWhereOthersDoNotDo) {
  const auto a = Daemon("a"), b = Daemon("b");
  StartTwo(a.get(), b.get(), TwoStages(1000));
  JobSpec other = TwoStages();
  other.set_name("other");
  const absl::StatusOr<PlanComparison> compared = Compare(other);
  ASSERT_TRUE(compared.ok()) << compared.status();
  ASSERT_EQ(compared->notes_size(), 1);
  EXPECT_THAT(compared->notes(0), HasSubstr("daemons that are busy now"));
}

TEST_F(ComparisonServiceTest, Refusals) {
  EXPECT_THAT(std::string(Compare(TwoStages(), true).status().message()),
              HasSubstr("leave out one of --compare and --resume"));
  JobSpec wide = TwoStages();
  wide.mutable_strategy()->set_stages(3);
  EXPECT_FALSE(Compare(wide).ok()) << "no daemon is there";
}

}  // namespace
}  // namespace isthmus::coordinator
