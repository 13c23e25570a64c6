#include "daemon/checkpoint_client.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/hash.h"
#include "base/safetensors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/base/leaping_clock.h"
#include "tests/daemon/fake_coordinator.h"
#include "tests/temp_directory.h"
#include "worker/session.h"

namespace isthmus::daemon {
namespace {

std::string Bytes(size_t size) {
  std::string bytes(size, '\0');
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(i * 7 + i / 300);
  return bytes;
}

PutCheckpointHeader Header(const std::string& bytes = "") {
  PutCheckpointHeader header;
  header.set_file_bytes(static_cast<int64_t>(bytes.size()));
  header.set_checksum(Hash64(bytes));
  header.set_job_id("job");
  header.set_step(100);
  header.set_stage(1);
  header.set_stages(2);
  header.set_file("weights.safetensors");
  return header;
}

class CheckpointClientTest : public testing::Test {
 protected:
  std::unique_ptr<CheckpointClient> Client(const std::string& address) {
    CheckpointClientOptions options;
    options.coordinator = address;
    options.backoff = {absl::Milliseconds(2), absl::Milliseconds(20)};
    options.give_up_after = absl::Seconds(1);
    options.scratch_dir = scratch_.path();
    options.free_bytes = free_bytes_;
    options.watchdog = &watchdog_;
    options.uplink = uplink_.get();
    return std::make_unique<CheckpointClient>(options);
  }
  Watchdog watchdog_;
  std::unique_ptr<UplinkGate> uplink_;
  TempDirectory scratch_;
  int64_t free_bytes_ = 0;
};

// What came, of one file or more.
absl::StatusOr<std::string> Fetched(CheckpointClient* client,
                                    const FetchCheckpointRequest& request) {
  const auto files = client->Fetch(request);
  if (!files.ok()) return files.status();
  std::string all;
  for (const auto& file : *files) all += ReadAll(*file, 1 << 30).value();
  return all;
}

TEST_F(CheckpointClientTest, APartWaitsForTheUplinkAndIsWholeOrCancelled) {
  FakeCoordinator coordinator;
  const std::string bytes = Bytes(size_t{1} << 20);
  uplink_ = std::make_unique<UplinkGate>(2'000'000'000);
  ASSERT_TRUE(Client(coordinator.address())->Put(Header(bytes), MemorySource(bytes)).ok());
  EXPECT_EQ(coordinator.files()["100/1/weights.safetensors"], bytes);
  uplink_ = std::make_unique<UplinkGate>(1000);  // seconds a piece
  const auto client = Client(coordinator.address());
  absl::Status put;
  std::thread thread([&] { put = client->Put(Header(bytes), MemorySource(bytes)); });
  while (client->bytes_moved() == 0) std::this_thread::yield();
  client->Cancel(absl::CancelledError("the session ends"));
  thread.join();
  EXPECT_EQ(put.message(), "the session ends");
  EXPECT_LT(client->bytes_moved(), 1 << 20);
}

TEST_F(CheckpointClientTest, PutsAndFetchesAllSizes) {
  FakeCoordinator coordinator;
  const auto client = Client(coordinator.address());
  for (size_t size :
       {size_t{0}, size_t{1}, size_t{256} << 10, (size_t{256} << 10) + 1, size_t{5} << 20}) {
    const std::string bytes = Bytes(size);
    ASSERT_TRUE(client->Put(Header(bytes), MemorySource(bytes)).ok()) << size;
    EXPECT_EQ(coordinator.files()["100/1/weights.safetensors"], bytes);
    coordinator.PutAnswer(bytes);
    const auto fetched = Fetched(client.get(), FetchCheckpointRequest());
    ASSERT_TRUE(fetched.ok()) << fetched.status();
    EXPECT_EQ(*fetched, bytes);
  }
}

// The writer hashed them already: gigabytes, on the host that computes.
TEST_F(CheckpointClientTest, BytesGoUnderTheChecksumOfTheirHeader) {
  FakeCoordinator coordinator;
  const auto client = Client(coordinator.address());
  PutCheckpointHeader header = Header("abc");
  header.set_checksum(header.checksum() + 1);
  const absl::Status damaged = client->Put(header, MemorySource("abc"));
  EXPECT_EQ(damaged.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(damaged.message(), ::testing::HasSubstr("this host keeps of it is not what was"));
  EXPECT_THAT(damaged.message(), ::testing::HasSubstr("attempt 1")) << "another try is of no use";
  EXPECT_TRUE(client->Put(Header("abc"), MemorySource("abc")).ok());
}

// The disk of a kept file, or a stage, that can't be read: trying again is of no use.
TEST_F(CheckpointClientTest, WhatCanNotBeReadIsNotTriedAgain) {
  class Broken : public ByteSource {
   public:
    int64_t bytes() const override { return int64_t{10} << 20; }
    absl::Status ReadAt(int64_t offset, size_t count, char* out) const override {
      ++reads;
      std::fill_n(out, count, 'x');
      return offset > 0 ? absl::DataLossError("the disk is broken") : absl::OkStatus();
    }
    mutable int reads = 0;
  };
  FakeCoordinator coordinator;
  const auto client = Client(coordinator.address());
  const Broken broken;
  PutCheckpointHeader header = Header();
  header.set_file_bytes(broken.bytes());
  const absl::Status status = client->Put(header, broken);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(status.message().find("the disk is broken"), absl::string_view::npos) << status;
  EXPECT_EQ(broken.reads, 2);
  EXPECT_TRUE(coordinator.files().empty());
  EXPECT_TRUE(std::filesystem::is_empty(scratch_.path()));
}

TEST_F(CheckpointClientTest, TriesAgainWhileTheCoordinatorIsAway) {
  FakeCoordinator coordinator;
  const auto client = Client(coordinator.address());
  coordinator.FailBulk(3, absl::UnavailableError("restarting"));
  EXPECT_TRUE(client->Put(Header("abc"), MemorySource("abc")).ok());
  EXPECT_EQ(coordinator.files().size(), 1u);
  coordinator.FailBulk(3, absl::UnavailableError("restarting"));
  coordinator.PutAnswer("xyz");
  EXPECT_EQ(Fetched(client.get(), FetchCheckpointRequest()).value(), "xyz");
}

TEST_F(CheckpointClientTest, TriesAgainForAsLongAsTheSteadyClockSays) {
  FakeCoordinator coordinator;
  const auto client = Client(coordinator.address());
  coordinator.FailBulk(3, absl::UnavailableError("restarting"));
  const LeapingWallClock clock;
  const absl::Status put = client->Put(Header("abc"), MemorySource("abc"));
  EXPECT_TRUE(put.ok()) << put;
}

TEST_F(CheckpointClientTest, DoesNotRepeatWhatIsRefused) {
  FakeCoordinator coordinator;
  const auto client = Client(coordinator.address());
  coordinator.FailBulk(1, absl::FailedPreconditionError("generation 3 is out of date"));
  const absl::Status status = client->Put(Header("abc"), MemorySource("abc"));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(), absl::StrCat("coordinator ", coordinator.address(),
                                           ", attempt 1: generation 3 is out of date"))
      << "what was put is said by who wanted it";
  EXPECT_TRUE(coordinator.files().empty());
}

TEST_F(CheckpointClientTest, GivesUpInTheEnd) {
  const auto client = Client("127.0.0.1:1");
  EXPECT_EQ(client->Put(Header("abc"), MemorySource("abc")).code(), absl::StatusCode::kUnavailable);
}

TEST_F(CheckpointClientTest, ADamagedOrTooBigAnswerIsAnError) {
  FakeCoordinator coordinator;
  const auto client = Client(coordinator.address());
  coordinator.PutAnswer(Bytes(300'000), true);
  EXPECT_EQ(Fetched(client.get(), FetchCheckpointRequest()).status().code(),
            absl::StatusCode::kDataLoss);
  coordinator.PutAnswer(Bytes(300'000));
  EXPECT_TRUE(Fetched(client.get(), FetchCheckpointRequest()).ok());
  free_bytes_ = int64_t{1} << 60;
  const absl::Status full =
      Fetched(Client(coordinator.address()).get(), FetchCheckpointRequest()).status();
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(full.message().find("has 300000 bytes"), absl::string_view::npos) << full;
  EXPECT_NE(full.message().find(scratch_.path()), absl::string_view::npos) << full;
}

std::string Tensors(std::vector<std::pair<std::string, std::string>> named) {
  std::vector<SafetensorsItem> items;
  for (const auto& [name, bytes] : named) items.push_back({name, "F32", {1}, bytes});
  return WriteSafetensors(std::move(items), {}).value();
}

// A part that lies on this host, and that the coordinator has the same of, is not fetched; a
// damaged one, one of another cut and one that the coordinator has otherwise are.
TEST_F(CheckpointClientTest, WhatIsOnThisDiskIsNotFetched) {
  FakeCoordinator coordinator;
  TempDirectory directory;
  PartDir parts(directory.path());
  CheckpointClientOptions options;
  options.coordinator = coordinator.address();
  options.watchdog = &watchdog_;
  options.parts = &parts;
  options.scratch_dir = directory.path() + "/spill";
  options.free_bytes = 0;
  CheckpointClient client(options);
  const std::string own = Tensors({{"a", "1111"}, {"b", "2222"}});
  PutCheckpointHeader header = Header(own);
  ASSERT_TRUE(client.Keep(header, MemorySource(own)).ok());
  const std::string tied = Tensors({{"wte", "3333"}, {"wte.exp_avg", "4444"}});
  header.set_file(worker::TiedFile(Hash64(own)));
  header.set_checksum(Hash64(tied));
  ASSERT_TRUE(client.Keep(header, MemorySource(tied)).ok());
  ASSERT_TRUE(client.Put(Header(own), MemorySource(own)).ok());
  const int64_t sent = client.bytes_moved();
  EXPECT_EQ(sent, static_cast<int64_t>(own.size()));

  coordinator.PutAnswer("fetched");
  FetchCheckpointRequest request;
  request.set_job_id("job");
  request.set_step(100);
  request.set_what("weights");
  request.add_tensors("b");
  EXPECT_EQ(Fetched(&client, request).value(), own);
  request.add_tensors("wte");
  EXPECT_EQ(Fetched(&client, request).value(), own + tied) << "each tensor is in one of them";
  EXPECT_EQ(client.bytes_moved(), sent);
  request.set_tensors(0, "c");
  EXPECT_EQ(Fetched(&client, request).value(), "fetched") << "another cut";
  {  // sound, but of the weights of another commit
    PartDir elsewhere(directory.path() + "/elsewhere");
    CheckpointClientOptions with = options;
    with.parts = &elsewhere;
    CheckpointClient other(with);
    PutCheckpointHeader foreign = Header(own);
    ASSERT_TRUE(other.Keep(foreign, MemorySource(own)).ok());
    foreign.set_checksum(Hash64(tied));
    foreign.set_file(worker::TiedFile(Hash64("other weights")));
    ASSERT_TRUE(other.Keep(foreign, MemorySource(tied)).ok());
    request.set_tensors(0, "b");
    EXPECT_EQ(Fetched(&other, request).value(), "fetched");
  }
  request.set_tensors(0, "a");
  ASSERT_TRUE(client.Put(Header("of another run"), MemorySource("of another run")).ok());
  EXPECT_EQ(Fetched(&client, request).value(), "fetched") << "the coordinator's is another one";
  ASSERT_TRUE(client.Put(Header(own), MemorySource(own)).ok());
  EXPECT_NE(Fetched(&client, request).value(), "fetched");
  for (const auto& file : std::filesystem::recursive_directory_iterator(directory.path())) {
    if (!file.is_regular_file()) continue;
    std::fstream damaged(file.path(), std::ios::in | std::ios::out | std::ios::binary);
    damaged.seekp(-1, std::ios::end);
    damaged.put('x');
  }
  EXPECT_EQ(Fetched(&client, request).value(), "fetched") << "the file is damaged";
}

// A daemon that takes over a stage whose copy it keeps fetches nothing either.
TEST_F(CheckpointClientTest, ACopyOfAnothersPartIsNotFetched) {
  FakeCoordinator coordinator;
  TempDirectory directory;
  PartDir parts(directory.path());
  CheckpointClientOptions options;
  options.coordinator = coordinator.address();
  options.watchdog = &watchdog_;
  options.parts = &parts;
  options.scratch_dir = directory.path() + "/spill";
  options.free_bytes = 0;
  CheckpointClient client(options);
  const std::string own = Tensors({{"a", "1111"}}), copy = Tensors({{"b", "2222"}});
  PutCheckpointHeader of_copy = Header(copy);
  of_copy.set_stage(0);
  ASSERT_TRUE(client.Keep(Header(own), MemorySource(own)).ok());
  ASSERT_TRUE(client.Keep(of_copy, MemorySource(copy)).ok());
  ASSERT_TRUE(client.Put(Header(own), MemorySource(own)).ok());
  ASSERT_TRUE(client.Put(of_copy, MemorySource(copy)).ok());
  FetchCheckpointRequest request;
  request.set_job_id("job");
  request.set_step(100);
  request.set_what("weights");
  request.add_tensors("a");
  EXPECT_EQ(Fetched(&client, request).value(), own);
  request.set_tensors(0, "b");
  EXPECT_EQ(Fetched(&client, request).value(), copy);
}

// Each attempt sends the same bytes again: only the furthest counts.
TEST_F(CheckpointClientTest, ProgressIsWhatNoAttemptHadMoved) {
  FakeCoordinator coordinator;
  const auto client = Client(coordinator.address());
  const std::string bytes = Bytes(1'000'000);
  coordinator.FailBulk(3, absl::UnavailableError("restarting"));
  ASSERT_TRUE(client->Put(Header(bytes), MemorySource(bytes)).ok());
  EXPECT_EQ(client->bytes_moved(), 1'000'000);
  coordinator.PutAnswer(bytes);
  ASSERT_TRUE(Fetched(client.get(), FetchCheckpointRequest()).ok());
  EXPECT_EQ(client->bytes_moved(), 2'000'000);
}

TEST_F(CheckpointClientTest, CancelEndsWaitsNowAndLater) {
  CheckpointClientOptions options;
  options.coordinator = "127.0.0.1:1";
  options.backoff = {absl::Hours(1), absl::Hours(1)};
  options.give_up_after = absl::Hours(10);
  options.watchdog = &watchdog_;
  CheckpointClient client(options);
  absl::Status status;
  std::thread putting([&] { status = client.Put(Header("abc"), MemorySource("abc")); });
  client.Cancel(absl::CancelledError("stop"));
  putting.join();
  EXPECT_EQ(status.message(), "stop");
  EXPECT_EQ(Fetched(&client, FetchCheckpointRequest()).status().message(), "stop");
}

}  // namespace
}  // namespace isthmus::daemon
