// Parts of the service without a server: readers that take nothing, what a planner may look at.
#include <filesystem>
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
#include "coordinator/service/recorder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/coordinator/planner/topology.h"
#include "tests/coordinator/service/refusing_store.h"
#include "tests/temp_directory.h"

namespace isthmus::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

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
  void Join(const std::string& name, uint64_t stream, int64_t card_bytes = 0) {
    isthmus::Register request;
    *request.mutable_node() = MakeNode(name, 10);
    request.mutable_node()->set_device_memory_bytes(card_bytes);
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

// The job went on from an earlier step while the part was on its way: it was taken for the newest
// checkpoint, and the job went on from weights that it had left behind.
TEST_F(PartsTest, APartOfAGenerationThatIsOverIsRefusedAtItsEndToo) {
  Plan plan;
  plan.set_job_id("bible-1");
  plan.set_generation(1);
  *plan.mutable_job() = MakeJob();
  plan.add_ranks()->set_node_id("n0");
  PutCheckpointHeader header = Upload(1);
  header.set_generation(1);
  header.set_step(20);
  Checkpoints checkpoints(&cores_, files_.get(), absl::Minutes(1));
  {
    MutexLock lock(&cores_.mutex);
    ASSERT_TRUE(cores_.jobs.Add("bible-1", 1, MakeJob(), false, 77).ok());
    ASSERT_TRUE(cores_.jobs.Start("bible-1", plan, SteadyNow()).ok());
  }
  const auto part = checkpoints.BeginPart(header).value();
  ASSERT_TRUE(part->Append("abc").ok());
  {
    MutexLock lock(&cores_.mutex);
    ASSERT_TRUE(cores_.jobs.Stop("bible-1", true, SteadyNow()).ok());
    ASSERT_TRUE(absl::IsAborted(cores_.jobs.Start("bible-1", plan, SteadyNow()).status()))
        << "its number is used up";
    plan.set_generation(2);
    ASSERT_TRUE(cores_.jobs.Start("bible-1", plan, SteadyNow()).ok());
  }
  const absl::Status late = checkpoints.FinishPart(header, part.get(), absl::OkStatus()).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(late)) << late;
  EXPECT_THAT(std::string(late.message()), HasSubstr("the job is at generation 2"));
  EXPECT_THAT(files_->Steps("bible-1"), IsEmpty());
}

// A full disk is why users remove jobs. The database could not be written, so the files stayed, and
// the job was forgotten until the next start.
class RemovalTest : public PartsTest {
 protected:
  RemovalTest() : store_(Store::Open(scratch_.path()).value()) {}

  std::unique_ptr<Recorder> Record() {
    auto recorder =
        std::make_unique<Recorder>(&cores_, &store_, absl::Milliseconds(1),
                                   [this](const StoreBatch& batch) { checkpoints_.Sweep(batch); });
    recorder->Start();
    return recorder;
  }
  // A job that has ended, with a checkpoint.
  void AddEnded(Recorder* recorder) {
    {
      MutexLock lock(&cores_.mutex);
      ASSERT_TRUE(cores_.jobs.Add("bible-1", 1, MakeJob(), false, 77).ok());
      ASSERT_TRUE(cores_.jobs.Stop("bible-1", true, SteadyNow()).ok());
    }
    ASSERT_TRUE(WriteCheckpoint());
    ASSERT_TRUE(recorder->Sync().ok());
  }
  bool WriteCheckpoint() {
    const std::string weights = WriteSafetensors({{"w", "F32", {1}, "1234"}}, {}).value();
    PutCheckpointHeader header = Upload(1);
    header.set_file_bytes(static_cast<int64_t>(weights.size()));
    header.set_checksum(Hash64(weights));
    auto part = files_->Begin(header);
    return part.ok() && (*part)->Append(weights).ok() && (*part)->Finish().value_or(false);
  }
  absl::StatusOr<RemoveJobReply> Remove(Recorder* recorder, bool keep = false) {
    RemoveJobRequest request;
    request.set_job("bible-1");
    request.set_keep_checkpoints(keep);
    return checkpoints_.RemoveJob(request, recorder);
  }
  bool Known() {
    MutexLock lock(&cores_.mutex);
    return cores_.jobs.Find("bible-1") != nullptr;
  }
  // What a coordinator that starts now knows of it: the job, and its checkpoints.
  std::pair<bool, bool> AfterARestart() {
    const auto files = CheckpointStore::Open(scratch_.path() + "/checkpoints").value();
    Cores after{{}, {}, {}, {}};
    Recorder recorder(&after, &store_, absl::Hours(1), [](const StoreBatch&) {});
    EXPECT_TRUE(recorder.Load(files.get()).ok());
    MutexLock lock(&after.mutex);
    return {after.jobs.Find("bible-1") != nullptr, !files->Steps("bible-1").empty()};
  }

  RefusingStore store_;
  Checkpoints checkpoints_{&cores_, files_.get(), absl::Minutes(1)};
};

TEST_F(RemovalTest, TheFilesGoFirstAndTheDatabaseFollowsWhenItCan) {
  const auto recorder = Record();
  AddEnded(recorder.get());
  store_.full = true;
  absl::StatusOr<RemoveJobReply> reply;
  std::thread removes([&] { reply = Remove(recorder.get()); });
  const std::string aside = scratch_.path() + "/checkpoints/.removing-bible-1";
  while (store_.refused == 0 || !std::filesystem::is_empty(aside)) std::this_thread::yield();
  EXPECT_FALSE(Known());
  EXPECT_THAT(files_->Steps("bible-1"), IsEmpty());
  EXPECT_EQ(AfterARestart(), std::make_pair(false, false)) << "killed before it is in the database";
  store_.full = false;  // the files' room
  removes.join();
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_GT(reply->freed_bytes(), 100);
  EXPECT_THAT(files_->SetAsideBefore(), IsEmpty());
  EXPECT_THAT(store_.Load()->removed, ElementsAre("bible-1"));
}

TEST_F(RemovalTest, WhereThereAreNoFilesToRemoveARefusalChangesNothing) {
  const auto recorder = Record();
  AddEnded(recorder.get());
  store_.full = true;
  const absl::Status refused = Remove(recorder.get(), /*keep=*/true).status();
  EXPECT_THAT(std::string(refused.message()), HasSubstr("the disk is full"));
  EXPECT_TRUE(Known());
  EXPECT_EQ(AfterARestart(), std::make_pair(true, true));
  store_.full = false;
  ASSERT_TRUE(Remove(recorder.get(), true).ok());
  EXPECT_FALSE(Known());
  EXPECT_EQ(AfterARestart(), std::make_pair(false, true));
  EXPECT_GT(Remove(recorder.get())->freed_bytes(), 3) << "by the id, later";
}

TEST_F(RemovalTest, AJobWhoseFilesAreReadStaysWhatItIs) {
  const auto recorder = Record();
  AddEnded(recorder.get());
  FetchCheckpointRequest request;
  request.set_job_id("bible-1");
  request.set_what("weights");
  int64_t step = 0;
  auto reader = files_->Read(request, NotGone, &step);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_THAT(std::string(Remove(recorder.get()).status().message()), HasSubstr("are being read"));
  EXPECT_TRUE(Known());
  EXPECT_EQ(AfterARestart(), std::make_pair(true, true));
  reader->reset();
  EXPECT_TRUE(Remove(recorder.get()).ok());
}

TEST_F(PartsTest, ThePlannerIsToldWhyADaemonIsNotThere) {
  Join("lab", 1);
  PlannerInput in;
  MutexLock lock(&cores_.mutex);
  AddTopology(&cores_, false, &in);
  EXPECT_EQ(in.topology.nodes_size(), 0);
  ASSERT_EQ(in.absent.size(), 1u);
  EXPECT_THAT(in.absent[0].why, HasSubstr("registered and is not heard yet"));
  EXPECT_EQ(in.absent[0].name, "lab");
  EXPECT_TRUE(in.absent[0].comes);
  const std::string id = cores_.members.members().begin()->first;
  ASSERT_TRUE(cores_.members.OnHeartbeat(id, 1, Heartbeat(), SteadyNow()).ok());
  cores_.members.OnLeaving(id, "SIGTERM");
  in = PlannerInput();
  AddTopology(&cores_, true, &in);
  ASSERT_EQ(in.absent.size(), 1u);
  EXPECT_THAT(in.absent[0].why, HasSubstr("is ending"));
  EXPECT_FALSE(in.absent[0].comes);
}

TEST_F(PartsTest, ThePlannerIsToldWhatABusyDaemonIsToTake) {
  Join("lab", 1, 77 + 400);
  MutexLock lock(&cores_.mutex);
  const std::string id = cores_.members.members().begin()->first;
  ASSERT_TRUE(cores_.members.OnHeartbeat(id, 1, Heartbeat(), SteadyNow()).ok());
  Plan plan;
  plan.set_job_id("bible-1");
  plan.set_generation(1);
  *plan.mutable_job() = MakeJob();
  plan.add_ranks()->set_node_id(id);
  plan.mutable_ranks(0)->set_memory_bytes(77);
  plan.add_ranks()->set_node_id("another");
  LinkPlan* link = plan.add_links();
  link->set_upper(1);
  link->mutable_forward()->set_kind(CodecSpec::DELTA);
  ASSERT_TRUE(cores_.jobs.Add("bible-1", 1, MakeJob(), false, 77).ok());
  ASSERT_TRUE(cores_.jobs.Start("bible-1", plan, SteadyNow()).ok());
  PlannerInput in;
  AddTopology(&cores_, false, &in);
  ASSERT_EQ(in.absent.size(), 1u);
  EXPECT_THAT(in.absent[0].why, HasSubstr("lab runs job bible-1"));
  EXPECT_EQ(in.absent[0].planned_bytes, 77 + 100) << "with a quarter of the rest for buffers";
}

TEST_F(PartsTest, APlanWaitsForTheLinksThatItsJobNeeds) {
  Join("lab", 1);
  Join("home", 2);
  {
    MutexLock lock(&cores_.mutex);
    uint64_t stream = 0;
    for (const char* name : {"lab", "home"}) {
      const std::string id = MakeNode(name, 10).id();
      ASSERT_TRUE(cores_.members.OnHeartbeat(id, ++stream, Heartbeat(), SteadyNow()).ok());
    }
  }
  PlannerPatience patience;
  patience.daemons = patience.data = absl::ZeroDuration();
  patience.links = absl::InfiniteDuration();
  const auto waits = [&](int stages, int replicas, int layers) {
    JobSpec job;
    job.mutable_model()->set_layers(layers);
    job.mutable_strategy()->set_stages(stages);
    job.mutable_strategy()->set_replicas(replicas);
    int asked = 0;  // once for each of three waits, and again while one of them lasts
    WaitForTopology(&cores_, patience, job, [&] { return ++asked > 4; });
    return asked > 4;
  };
  EXPECT_FALSE(waits(1, 1, 4)) << "one daemon has no link";
  EXPECT_FALSE(waits(0, 1, 1)) << "one layer is one stage";
  EXPECT_TRUE(waits(0, 1, 4));
  EXPECT_TRUE(waits(2, 1, 4));
  EXPECT_TRUE(waits(1, 2, 4)) << "replicas of one stage exchange gradients";
  EXPECT_TRUE(waits(1, 0, 1)) << "as many replicas as pay";
  EXPECT_FALSE(waits(2, 2, 4)) << "there are two daemons: it is refused, whatever their links are";
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
