#include "daemon/part_sender.h"

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "gtest/gtest.h"
#include "tests/daemon/fake_coordinator.h"
#include "tests/temp_directory.h"

namespace isthmus::daemon {
namespace {

class PartSenderTest : public testing::Test {
 protected:
  ~PartSenderTest() override { health_.Ending(); }

  std::unique_ptr<PartSender> Sender(absl::Duration backoff = absl::Milliseconds(2)) {
    CheckpointClientOptions options;
    options.coordinator = coordinator_.address();
    options.backoff = {backoff, backoff};
    options.watchdog = &watchdog_;
    return std::make_unique<PartSender>(&parts_, options, &health_);
  }
  void Keep(int64_t step, bool whole = true, int stage = 1) {
    for (const char* file : {"weights.safetensors", "optimizer.safetensors", "state.json"}) {
      const std::string bytes = absl::StrCat(file, " of ", step);
      PutCheckpointHeader header;
      header.set_job_id("job");
      header.set_generation(7);
      header.set_step(step);
      header.set_stage(stage);
      header.set_stages(2);
      header.set_file(file);
      header.set_file_bytes(static_cast<int64_t>(bytes.size()));
      header.set_checksum(Hash64(bytes));
      ASSERT_TRUE(parts_.Keep(header, MemorySource(bytes)).ok());
      if (!whole) return;
    }
  }
  static KeptPart Part(int64_t step, uint64_t generation = 7) {
    KeptPart part;
    part.set_job_id("job");
    part.set_step(step);
    part.set_generation(generation);
    part.set_stage(1);
    part.set_stages(2);
    return part;
  }
  static bool Eventually(const std::function<bool()>& condition) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!condition() && std::chrono::steady_clock::now() < until) std::this_thread::yield();
    return condition();
  }
  bool Sent(size_t files) {
    return Eventually([&] { return coordinator_.files().size() >= files; });
  }

  TempDirectory directory_;
  PartDir parts_{directory_.path() + "/checkpoints", {0, {}, 0}};
  Watchdog watchdog_;
  Health health_;
  FakeCoordinator coordinator_;
};

// Of a checkpoint it keeps its own part and a copy of another daemon's: each is asked for by
// itself.
TEST_F(PartSenderTest, PutsTheStageThatIsAskedFor) {
  Keep(20);
  Keep(20, true, 0);
  const auto sender = Sender();
  KeptPart copy = Part(20);
  copy.set_stage(0);
  sender->Ask(copy);
  ASSERT_TRUE(Sent(3));
  EXPECT_EQ(coordinator_.files().count("20/0/state.json"), 1u);
  EXPECT_EQ(coordinator_.files().count("20/1/state.json"), 0u);
  sender->Ask(Part(20));
  EXPECT_TRUE(Sent(6));
}

TEST_F(PartSenderTest, PutsWhatIsAskedFor) {
  Keep(10);
  Keep(20);
  const auto sender = Sender();
  coordinator_.FailBulk(2, absl::UnavailableError("restarting"));
  sender->Ask(Part(20));
  ASSERT_TRUE(Sent(3));
  EXPECT_EQ(coordinator_.files()["20/1/weights.safetensors"], "weights.safetensors of 20");
  EXPECT_EQ(coordinator_.files()["20/1/state.json"], "state.json of 20");
  sender->Ask(Part(10));
  EXPECT_TRUE(Sent(6)) << "again, after it had nothing to do";
}

// Local steps: a further replica's two files, under its number.
TEST_F(PartSenderTest, PutsWhatAReplicaKeeps) {
  for (const char* file : {"optimizer.safetensors", "state.json"}) {
    PutCheckpointHeader header;
    header.set_job_id("job");
    header.set_generation(7);
    header.set_step(30);
    header.set_stage(1);
    header.set_stages(2);
    header.set_replica(3);
    header.set_file(file);
    ASSERT_TRUE(parts_.Keep(header, MemorySource(file)).ok());
  }
  ASSERT_EQ(parts_.Whole().parts_size(), 1);
  const auto sender = Sender();
  KeptPart of_replica = Part(30);
  of_replica.set_replica(3);
  sender->Ask(of_replica);
  ASSERT_TRUE(Sent(2));
  EXPECT_EQ(coordinator_.headers()["30/1/state.json"].replica(), 3);
  sender->Stop();
  EXPECT_EQ(parts_.Whole().parts_size(), 1) << "all of it was there";
}

// What it has not got whole, or has of another run, is left; the next one is sent.
TEST_F(PartSenderTest, WhatIsNotHereIsLeft) {
  Keep(10, false);
  Keep(20);
  const auto sender = Sender();
  sender->Ask(Part(5));
  sender->Ask(Part(20, 8));
  coordinator_.FailBulk(1, absl::FailedPreconditionError("there is no such job"));
  sender->Ask(Part(10));
  sender->Ask(Part(20));
  ASSERT_TRUE(Sent(3));
  EXPECT_EQ(coordinator_.files().count("10/1/weights.safetensors"), 0u);
}

// What was told and can't be read was asked for again every minute, and a resume waited for it.
TEST_F(PartSenderTest, WhatCanNotBeReadIsToldNoLonger) {
  Keep(10);
  Keep(20);
  for (const auto& file : std::filesystem::recursive_directory_iterator(directory_.path())) {
    if (file.path().string().find("/10-g7-s1of2/state.json.") != std::string::npos)
      std::filesystem::remove(file.path());
  }
  ASSERT_EQ(parts_.Whole().parts_size(), 2);
  const auto sender = Sender();
  sender->Ask(Part(10));
  EXPECT_TRUE(Eventually([&] { return parts_.Whole().parts_size() == 1; }));
  EXPECT_EQ(parts_.Whole().parts(0).step(), 20);
  coordinator_.FailBulk(1, absl::NotFoundError("the coordinator says so"));
  sender->Ask(Part(20));
  ASSERT_TRUE(Eventually([&] { return coordinator_.failures_left() == 0; }));
  sender->Stop();
  EXPECT_EQ(parts_.Whole().parts_size(), 1) << "it is here, whatever the coordinator has";
}

TEST_F(PartSenderTest, ASessionThatBeginsBreaksItOff) {
  Keep(10);
  Keep(20);
  const auto sender = Sender(absl::Hours(1));
  coordinator_.FailBulk(1, absl::UnavailableError("away"));
  sender->Ask(Part(10));
  ASSERT_TRUE(Eventually([&] { return coordinator_.failures_left() == 0; }));
  sender->Ask(Part(20));
  sender->BreakOff("a session begins");
  sender->Ask(Part(20));
  EXPECT_TRUE(Sent(3)) << "not after an hour";
}

TEST_F(PartSenderTest, EndsWhileItWaits) {
  Keep(10);
  const auto sender = Sender(absl::Hours(1));
  coordinator_.FailBulk(1000, absl::UnavailableError("away"));
  for (int i = 0; i < 100; ++i) sender->Ask(Part(10 + i));  // more than it holds
  sender->Stop();
  EXPECT_TRUE(coordinator_.files().empty());
}

}  // namespace
}  // namespace isthmus::daemon
