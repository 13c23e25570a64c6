// The daemon as a whole against a fake coordinator, with fake sessions.
#include "daemon/daemon.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/metrics.h"
#include "daemon/state/part_dir.h"
#include "gtest/gtest.h"
#include "tests/daemon/fake_coordinator.h"
#include "tests/daemon/fake_session.h"

namespace isthmus::daemon {
namespace {

class DaemonTest : public testing::Test {
 protected:
  DaemonTest() {
    char name[] = "/tmp/isthmus-daemon-XXXXXX";
    path_ = mkdtemp(name);
    std::filesystem::create_directory(path_ + "/data");
    std::ofstream(path_ + "/data/text.txt") << "hello";
  }
  ~DaemonTest() override {
    daemon_.reset();
    std::filesystem::remove_all(path_);
  }

  void StartDaemon(const std::string& coordinator) {
    DaemonOptions options;
    options.coordinator = coordinator;
    options.listen = "127.0.0.1:0";
    options.http = "127.0.0.1:0";
    options.name = "alpha";
    options.data_dir = data_dir_.empty() ? path_ + "/data" : data_dir_;
    options.version = "9.9";
    options.device_uuid = "GPU-1";
    options.backoff = {absl::Milliseconds(5), absl::Milliseconds(50)};
    options.make_session = MakeFakeSession;
    options.open_corpus = OpenFakeCorpus;
    options.measure_compute =
        [this](const std::function<bool()>& cancelled) -> absl::StatusOr<ComputeTimes> {
      ++measured_;
      while (measures_for_good_ && !cancelled()) std::this_thread::yield();
      return Times(0.25, 0.5);
    };
    auto state = StateDir::Open(path_ + "/state");
    ASSERT_TRUE(state.ok());
    daemon_ = std::make_unique<Daemon>(std::move(options), *std::move(state));
    const absl::Status listening = daemon_->Listen();
    ASSERT_TRUE(listening.ok()) << listening;
    daemon_->Join(Times(0.5, 1.0));
  }

  static ComputeTimes Times(double forward_s, double backward_s) {
    ComputeTimes times;
    times.set_block_forward_s(forward_s);
    times.set_block_backward_s(backward_s);
    times.set_block_flops(1e9);
    return times;
  }

  Plan MakePlan(uint64_t generation) const {
    Plan plan;
    plan.set_job_id("job");
    plan.set_generation(generation);
    plan.add_ranks()->set_node_id(daemon_->node_id());
    return plan;
  }

  std::string path_, data_dir_;
  std::atomic<int> measured_{0};
  std::atomic<bool> measures_for_good_{false};  // until it is cancelled
  std::unique_ptr<Daemon> daemon_;
};

bool Registered(const std::vector<DaemonMessage>& messages) { return !messages.empty(); }

TEST_F(DaemonTest, TellsWhatItIs) {
  FakeCoordinator coordinator;
  StartDaemon(coordinator.address());
  ASSERT_TRUE(coordinator.WaitFor(Registered));
  const Register registered = coordinator.messages()[0].register_();
  const NodeInfo& node = registered.node();
  EXPECT_EQ(node.id(), daemon_->node_id());
  EXPECT_EQ(node.name(), "alpha");
  EXPECT_EQ(node.address(), absl::StrCat("127.0.0.1:", daemon_->port()));
  EXPECT_EQ(node.metrics_address(), absl::StrCat("127.0.0.1:", daemon_->http_port()));
  EXPECT_EQ(node.block_forward_s(), 0.5);
  EXPECT_EQ(node.block_backward_s(), 1.0);
  EXPECT_EQ(node.block_flops(), 1e9);
  EXPECT_GE(node.threads(), 1);
  EXPECT_GT(node.memory_bytes(), 0);
  EXPECT_GT(node.disk_bytes(), 0);
  EXPECT_EQ(node.version(), "9.9");
  EXPECT_EQ(node.device(), "cpu GPU-1") << "and its card";
  EXPECT_TRUE(node.data_listed());
  ASSERT_EQ(node.data_files_size(), 1);
  EXPECT_EQ(node.data_files(0).path(), "text.txt");
  EXPECT_EQ(node.data_files(0).bytes(), 5);
  EXPECT_NE(registered.instance(), "");
}

// A name in Latin-1 kept the host out for ever, and lost it when it came while a job trained.
TEST_F(DaemonTest, FilesThatComeAreToldWithTheirContentsAndOddNamesDoNotMatter) {
  FakeCoordinator coordinator;
  std::ofstream(path_ +
                "/data/B\xfc"
                "cher.txt")
      << "text";
  StartDaemon(coordinator.address());
  ASSERT_TRUE(coordinator.WaitFor(Registered));
  EXPECT_EQ(coordinator.messages()[0].register_().node().data_files_size(), 1);
  std::ofstream(path_ + "/data/neu\xfc.txt") << "text";
  std::ofstream(path_ + "/data/new.txt") << std::string(500, 'a');
  ASSERT_TRUE(coordinator.WaitFor([](const auto& messages) {
    for (const DaemonMessage& message : messages) {
      for (const DataFile& file : message.heartbeat().data().files()) {
        if (file.path() == "new.txt" && file.format() == "bytes" && file.contents() != 0)
          return true;
      }
    }
    return false;
  }));
}

TEST_F(DaemonTest, AFailureNamesItsPathThoughThatIsNotUtf8) {
  FakeCoordinator coordinator;
  data_dir_ = path_ +
              "/B\xfc"
              "cher";
  std::filesystem::create_directory(data_dir_);
  StartDaemon(coordinator.address());
  ASSERT_TRUE(coordinator.WaitFor(Registered));
  CoordinatorMessage start;
  *start.mutable_start() = MakePlan(4);
  start.mutable_start()->mutable_job()->mutable_data()->set_path("missing");
  coordinator.Say(start);
  ASSERT_TRUE(coordinator.WaitFor(
      [](const auto& messages) { return HasEvent(messages, SessionEvent::FAILED); }));
  std::string text;
  for (const DaemonMessage& message : coordinator.messages())
    absl::StrAppend(&text, message.session().message());
  EXPECT_NE(text.find("/B\xef\xbf\xbd"
                      "cher/missing"),
            std::string::npos)
      << text;
}

TEST_F(DaemonTest, RunsAPlanMeasuresItselfAndShowsMetrics) {
  FakeCoordinator coordinator;
  StartDaemon(coordinator.address());
  ASSERT_TRUE(coordinator.WaitFor(Registered));
  CoordinatorMessage start;
  *start.mutable_start() = MakePlan(4);
  coordinator.Say(start);
  ASSERT_TRUE(coordinator.WaitFor([](const auto& messages) {
    return HasEvent(messages, SessionEvent::RUNNING) && HasStep(messages, 0);
  }));
  ASSERT_TRUE(coordinator.WaitFor([](const auto& messages) {
    return messages.back().has_heartbeat() && messages.back().heartbeat().generation() == 4 &&
           messages.back().heartbeat().progress() == 10;
  }));
  CoordinatorMessage probe;
  NodeInfo* self = probe.mutable_probe()->add_peers();
  self->set_id(daemon_->node_id());
  self->set_name("beta");
  self->set_address(absl::StrCat("127.0.0.1:", daemon_->port()));
  coordinator.Say(probe);
  ASSERT_TRUE(coordinator.WaitFor([](const auto& messages) {
    for (const DaemonMessage& message : messages) {
      if (message.has_probe_result()) return message.probe_result().links(0).rate_bits_per_s() > 0;
    }
    return false;
  }));
  CoordinatorMessage stop;
  stop.mutable_stop()->set_graceful(true);
  coordinator.Say(stop);
  EXPECT_TRUE(coordinator.WaitFor(
      [](const auto& messages) { return HasEvent(messages, SessionEvent::FINISHED); }));
  const std::string metrics = RenderMetrics();
  for (const char* name : {"isthmus_steps_total{outcome=\"skipped\"} 1",
                           "isthmus_build_info{device=\"cpu\",version=\"9.9\"} 1",
                           "isthmus_link_rate_bytes_per_second{peer=\"beta\"}",
                           "isthmus_stage_time_seconds_total{part=\"compute\"}"}) {
    EXPECT_NE(metrics.find(name), std::string::npos) << name << "\n" << metrics;
  }
}

TEST_F(DaemonTest, MeasuresItsComputeAgainWhenItIsAskedAndHasNoSession) {
  FakeCoordinator coordinator;
  StartDaemon(coordinator.address());
  ASSERT_TRUE(coordinator.WaitFor(Registered));
  const auto answers = [](const std::vector<DaemonMessage>& messages) {
    std::vector<double> forward_s;
    for (const DaemonMessage& m : messages)
      if (m.has_compute()) forward_s.push_back(m.compute().block_forward_s());
    return forward_s;
  };
  CoordinatorMessage ask;
  ask.mutable_measure_compute();
  coordinator.Say(ask);
  ASSERT_TRUE(coordinator.WaitFor(
      [&](const auto& messages) { return answers(messages) == std::vector<double>{0.25}; }));
  CoordinatorMessage start;
  *start.mutable_start() = MakePlan(4);
  coordinator.Say(start);
  ASSERT_TRUE(coordinator.WaitFor(
      [](const auto& messages) { return HasEvent(messages, SessionEvent::RUNNING); }));
  coordinator.Say(ask);
  ASSERT_TRUE(coordinator.WaitFor([&](const auto& messages) {
    return answers(messages) == std::vector<double>{0.25, 0};
  }));
  EXPECT_EQ(measured_, 1) << "not beside a session";
}

TEST_F(DaemonTest, EndsWhileItMeasuresItsCompute) {
  measures_for_good_ = true;
  FakeCoordinator coordinator;
  StartDaemon(coordinator.address());
  ASSERT_TRUE(coordinator.WaitFor(Registered));
  CoordinatorMessage ask;
  ask.mutable_measure_compute();
  coordinator.Say(ask);
  while (measured_ == 0) std::this_thread::yield();
  EXPECT_TRUE(daemon_->Shutdown(absl::Seconds(30)));
}

// F36 and the rule that training goes on without the coordinator.
TEST_F(DaemonTest, ASessionOutlivesTheCoordinatorAndIsToldToTheNextOne) {
  auto coordinator = std::make_unique<FakeCoordinator>();
  const int port = coordinator->port();
  StartDaemon(coordinator->address());
  ASSERT_TRUE(coordinator->WaitFor(Registered));
  CoordinatorMessage start;
  *start.mutable_start() = MakePlan(4);
  coordinator->Say(start);
  ASSERT_TRUE(coordinator->WaitFor(
      [](const auto& messages) { return HasEvent(messages, SessionEvent::RUNNING); }));
  const std::string instance = coordinator->messages()[0].register_().instance();
  coordinator.reset();
  coordinator = std::make_unique<FakeCoordinator>(port);
  ASSERT_TRUE(coordinator->WaitFor(Registered));
  const Register again = coordinator->messages()[0].register_();
  EXPECT_EQ(again.node().id(), daemon_->node_id());
  EXPECT_EQ(again.running_generation(), 4u);
  EXPECT_EQ(again.running_job_id(), "job");
  EXPECT_EQ(again.instance(), instance);
}

// Both killed within 30 ms: the last step was missing in the job's log.
TEST_F(DaemonTest, ItsLastRecordsAreToldAgainByTheNextProcess) {
  const auto record = [](const std::vector<DaemonMessage>& messages) {
    return std::any_of(messages.begin(), messages.end(), [](const DaemonMessage& m) {
      return m.step().job_id() == "job" && m.step().generation() == 4;
    });
  };
  auto coordinator = std::make_unique<FakeCoordinator>();
  StartDaemon(coordinator->address());
  ASSERT_TRUE(coordinator->WaitFor(Registered));
  CoordinatorMessage start;
  *start.mutable_start() = MakePlan(4);
  coordinator->Say(start);
  ASSERT_TRUE(coordinator->WaitFor(record));
  daemon_.reset();
  coordinator = std::make_unique<FakeCoordinator>();
  StartDaemon(coordinator->address());
  EXPECT_TRUE(coordinator->WaitFor(record));
  EXPECT_EQ(coordinator->messages()[0].register_().running_generation(), 0u);
}

TEST_F(DaemonTest, TellsTheCoordinatorWhyASessionEndsWithTheDaemon) {
  FakeCoordinator coordinator;
  StartDaemon(coordinator.address());
  ASSERT_TRUE(coordinator.WaitFor(Registered));
  CoordinatorMessage start;
  *start.mutable_start() = MakePlan(4);
  coordinator.Say(start);
  ASSERT_TRUE(coordinator.WaitFor(
      [](const auto& messages) { return HasEvent(messages, SessionEvent::RUNNING); }));
  EXPECT_TRUE(daemon_->Shutdown(absl::Seconds(30)));
  EXPECT_TRUE(HasEvent(coordinator.messages(), SessionEvent::FAILED));
  EXPECT_NE(coordinator.messages().back().session().message().find("daemon alpha is ending"),
            std::string::npos);
}

// The path of checkpoints is measured at the first registration, and told at each one.
TEST_F(DaemonTest, MeasuresItsPathToTheCoordinatorOnce) {
  const auto told = [](const std::vector<DaemonMessage>& messages) {
    int times = 0;
    for (const DaemonMessage& message : messages) {
      const CoordinatorPath& path = message.heartbeat().path();
      times += path.up_bits_per_s() > 3.9e6 && path.up_bits_per_s() < 4.1e6 &&
               path.down_bits_per_s() > 0 && path.round_trip_s() > 0;
    }
    return times;
  };
  FakeCoordinator coordinator;
  coordinator.FailBulk(1, absl::ResourceExhaustedError("others measure"));
  StartDaemon(coordinator.address());
  ASSERT_TRUE(coordinator.WaitFor(Registered));
  coordinator.BreakSessions();  // the next registration looks again
  ASSERT_TRUE(coordinator.WaitFor([&](const auto& messages) { return told(messages) == 1; }));
  const int64_t bytes = coordinator.probe_bytes();
  EXPECT_LT(bytes, 16 << 20);
  coordinator.BreakSessions();
  ASSERT_TRUE(coordinator.WaitFor([&](const auto& messages) { return told(messages) == 2; }));
  EXPECT_EQ(coordinator.probe_bytes(), bytes);
}

// It was killed between keeping its part and putting it: the part is told, put when it is asked
// for, and goes when its job was removed.
TEST_F(DaemonTest, OffersThePartsThatItKeeps) {
  PutCheckpointHeader header;
  header.set_job_id("job-7");
  header.set_generation(4);
  header.set_step(30);
  header.set_stages(2);
  header.set_file_bytes(3);
  header.set_checksum(Hash64("abc"));
  {
    PartDir parts(path_ + "/state/checkpoints", {0, {}, 0});
    for (const char* file : {"weights.safetensors", "optimizer.safetensors", "state.json"}) {
      header.set_file(file);
      ASSERT_TRUE(parts.Keep(header, MemorySource("abc")).ok());
    }
  }
  std::filesystem::create_directories(path_ + "/state/codec-state/job-7");
  FakeCoordinator coordinator;
  StartDaemon(coordinator.address());
  ASSERT_TRUE(coordinator.WaitFor(Registered));
  const Register registered = coordinator.messages()[0].register_();
  ASSERT_EQ(registered.kept().parts_size(), 1);
  EXPECT_EQ(registered.kept().parts(0).step(), 30);
  CoordinatorMessage say;
  *say.mutable_put_kept() = registered.kept().parts(0);
  coordinator.Say(say);
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (coordinator.files().size() < 3 && std::chrono::steady_clock::now() < until)
    std::this_thread::yield();
  EXPECT_EQ(coordinator.files()["30/0/state.json"], "abc");
  say.set_removed_job("job-7");
  coordinator.Say(say);
  EXPECT_TRUE(coordinator.WaitFor([](const auto& messages) {
    return std::any_of(messages.begin(), messages.end(), [](const DaemonMessage& message) {
      return message.heartbeat().has_kept() && message.heartbeat().kept().parts().empty();
    });
  }));
  EXPECT_FALSE(std::filesystem::exists(path_ + "/state/checkpoints/job-7"));
  EXPECT_FALSE(std::filesystem::exists(path_ + "/state/codec-state/job-7"));
}

// The log said FINISHED for jobs that were stopped half way.
TEST(EventWords, AreOfTheSessionNotOfTheJob) {
  SessionEvent event;
  event.set_state(SessionEvent::FINISHED);
  event.set_step(7);
  EXPECT_EQ(EventWords(event), "this host's session ended in good order after step 7");
  event.set_state(SessionEvent::CHECKPOINTED);
  EXPECT_EQ(EventWords(event), "this host's part of checkpoint 7 is stored");
  event.set_state(SessionEvent::FAILED);
  event.set_message("link b0 broke");
  EXPECT_EQ(EventWords(event), "session ended: link b0 broke");
}

TEST_F(DaemonTest, LeavesInGoodOrder) {
  FakeCoordinator coordinator;
  StartDaemon(coordinator.address());
  ASSERT_TRUE(coordinator.WaitFor(Registered));
  EXPECT_TRUE(daemon_->idle());
  CoordinatorMessage start;
  *start.mutable_start() = MakePlan(4);
  coordinator.Say(start);
  ASSERT_TRUE(coordinator.WaitFor(
      [](const auto& messages) { return HasEvent(messages, SessionEvent::RUNNING); }));
  EXPECT_FALSE(daemon_->idle());
  daemon_->Leave(absl::Seconds(5), "SIGTERM");
  ASSERT_TRUE(coordinator.WaitFor(
      [](const auto& messages) { return HasEvent(messages, SessionEvent::FINISHED); }));
  bool left = false;
  for (const DaemonMessage& message : coordinator.messages()) {
    if (message.has_session() && message.session().state() == SessionEvent::FINISHED) {
      EXPECT_TRUE(left) << "the coordinator learns first why it ends";
    }
    if (!message.has_leaving()) continue;
    left = true;
    EXPECT_EQ(message.leaving().grace_ms(), 5000);
    EXPECT_EQ(message.leaving().reason(), "SIGTERM");
  }
  *start.mutable_start() = MakePlan(5);
  coordinator.Say(start);
  EXPECT_TRUE(coordinator.WaitFor([](const auto& messages) {
    return std::any_of(messages.begin(), messages.end(), [](const DaemonMessage& message) {
      return message.session().message() == "the daemon is ending";
    });
  }));
}

TEST_F(DaemonTest, MissingDataIsAFaultOfThatSessionAlone) {
  FakeCoordinator coordinator;
  StartDaemon(coordinator.address());
  ASSERT_TRUE(coordinator.WaitFor(Registered));
  CoordinatorMessage start;
  *start.mutable_start() = MakePlan(4);
  start.mutable_start()->mutable_job()->mutable_data()->set_path("missing");
  coordinator.Say(start);
  ASSERT_TRUE(coordinator.WaitFor(
      [](const auto& messages) { return HasEvent(messages, SessionEvent::FAILED); }));
  *start.mutable_start() = MakePlan(5);
  coordinator.Say(start);
  EXPECT_TRUE(coordinator.WaitFor(
      [](const auto& messages) { return HasEvent(messages, SessionEvent::RUNNING); }));
}

TEST_F(DaemonTest, ARefusalIsSeen) {
  FakeCoordinator coordinator;
  coordinator.set_refuse("no");
  StartDaemon(coordinator.address());
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (daemon_->refused().ok() && std::chrono::steady_clock::now() < deadline)
    std::this_thread::yield();
  EXPECT_EQ(daemon_->refused().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(DaemonTest, EndsPromptlyWhileNobodyIsThere) {
  StartDaemon("127.0.0.1:1");
  const auto start = std::chrono::steady_clock::now();
  EXPECT_TRUE(daemon_->Shutdown(absl::Seconds(5)));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(8));
}

}  // namespace
}  // namespace isthmus::daemon
