// Parts of the service without a server: readers that take nothing, what a planner may look at.
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/safetensors.h"
#include "coordinator/service/checkpoints.h"
#include "coordinator/service/fetches.h"
#include "coordinator/service/planner_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/coordinator/planner/topology.h"
#include "tests/temp_directory.h"

namespace isthmus::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

bool NotGone() { return false; }

class PartsTest : public ::testing::Test {
 protected:
  PartsTest() : files_(CheckpointStore::Open(scratch_.path() + "/checkpoints").value()) {}

  static PutCheckpointHeader Upload(int number) {
    PutCheckpointHeader header;
    header.set_job_id(absl::StrCat("bible-", number));
    header.set_stages(1);
    header.set_file("weights.safetensors");
    header.set_file_bytes(3);
    header.set_checksum(7);
    return header;
  }
  void Join(const std::string& name, uint64_t stream) {
    isthmus::Register request;
    *request.mutable_node() = MakeNode(name, 10);
    MutexLock lock(&cores_.mutex);
    ASSERT_EQ(cores_.members.Register(request, stream, SteadyNow(), SteadyNow()).kind,
              RegisterDecision::kAccepted);
  }

  TempDirectory scratch_;
  Cores cores_{{}, {}, {}, {}};
  const std::unique_ptr<CheckpointStore> files_;
};

TEST_F(PartsTest, AReaderThatTakesNothingIsEnded) {
  Checkpoints checkpoints(&cores_, files_.get(), absl::Minutes(1));
  const float value = 1;
  const std::string weights =
      WriteSafetensors({{"w", "F32", {1}, {reinterpret_cast<const char*>(&value), 4}}}, {}).value();
  PutCheckpointHeader header = Upload(1);
  header.set_file_bytes(static_cast<int64_t>(weights.size()));
  header.set_checksum(Hash64(weights));
  const auto part = checkpoints.BeginPart(header).value();
  ASSERT_TRUE(part->Append(weights).ok());
  ASSERT_TRUE(checkpoints.FinishPart(header, part.get(), absl::OkStatus()).value());

  Fetches fetches(&cores_, files_.get());
  FetchCheckpointRequest request;
  request.set_job_id("bible-1");
  request.set_what("weights");
  int cancels = 0;
  const auto open = [&] {
    return fetches.Open(
        request, NotGone, [](int) {}, [&] { ++cancels; });
  };
  auto fetch = open();
  ASSERT_TRUE(fetch.ok()) << fetch.status();
  fetches.Tick(SteadyNow() + kFetchStall / 2);
  EXPECT_EQ(cancels, 0);
  fetches.Tick(SteadyNow() + 2 * kFetchStall);
  EXPECT_EQ(cancels, 1);
  fetch->reset();
  request.set_job_id("none-1");
  EXPECT_TRUE(absl::IsNotFound(open().status()));
  fetches.Tick(SteadyNow() + 4 * kFetchStall);
  EXPECT_EQ(cancels, 1) << "the place of one that found nothing was given back";
  fetches.Stop();
  EXPECT_TRUE(absl::IsUnavailable(open().status()));
}

TEST_F(PartsTest, ThePlannerIsToldWhyADaemonIsNotThere) {
  Join("lab", 1);
  PlannerInput in;
  MutexLock lock(&cores_.mutex);
  AddTopology(&cores_, false, &in);
  EXPECT_EQ(in.topology.nodes_size(), 0);
  EXPECT_THAT(in.absent, ElementsAre(HasSubstr("registered and is not heard yet")));
  const std::string id = cores_.members.members().begin()->first;
  ASSERT_TRUE(cores_.members.OnHeartbeat(id, 1, Heartbeat(), SteadyNow()).ok());
  cores_.members.OnLeaving(id, "SIGTERM");
  in = PlannerInput();
  AddTopology(&cores_, true, &in);
  EXPECT_THAT(in.absent, ElementsAre(HasSubstr("is ending")));
}

TEST_F(PartsTest, TheWaitForDaemonsEndsWithTheCallerAndWithTheCoordinator) {
  Join("lab", 1);  // registered and never heard
  PlannerPatience patience;
  patience.daemons = patience.links = patience.data = absl::InfiniteDuration();
  int asked = 0;
  WaitForTopology(&cores_, patience, JobSpec(), [&] { return ++asked > 2; });
  EXPECT_GT(asked, 2);
  std::thread waits([&] { WaitForTopology(&cores_, patience, JobSpec(), NotGone); });
  {
    MutexLock lock(&cores_.mutex);
    cores_.stopping = true;
    cores_.changed.SignalAll();
  }
  waits.join();
}

}  // namespace
}  // namespace isthmus::coordinator
