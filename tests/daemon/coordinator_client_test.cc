#include "daemon/coordinator_client.h"

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"
#include "proto/control_service.grpc.pb.h"
#include "tests/base/leaping_clock.h"
#include "tests/daemon/fake_coordinator.h"

namespace isthmus::daemon {
namespace {

class Listener : public CoordinatorListener {
 public:
  Register MakeRegister() override {
    Register message;
    message.mutable_node()->set_id("node-1");
    message.set_running_generation(5);
    return message;
  }
  void OnRegistered(const Registered& registered) override { links += registered.links_size(); }
  Heartbeat MakeHeartbeat() override {
    Heartbeat heartbeat;
    heartbeat.set_progress(++beats);
    return heartbeat;
  }
  void OnStart(const Plan& plan) override { generation = plan.generation(); }
  void OnStop(const StopSession& stop) override { stops += stop.graceful() ? 1 : 100; }
  void OnProbe(const ProbeRequestList& probe) override { peers += probe.peers_size(); }
  void OnMeasureCompute() override { ++measures; }
  void OnPutKept(const KeptPart& part) override { put_kept = part.step(); }
  void OnRemovedJob(const std::string& job_id) override { removed = !job_id.empty(); }
  void OnTraceSteps(const TraceSteps& trace) override { traces += trace.steps(); }

  std::atomic<int64_t> beats{0};
  std::atomic<uint64_t> generation{0};
  std::atomic<int> stops{0};
  std::atomic<int> peers{0};
  std::atomic<int> measures{0};
  std::atomic<int> links{0};
  std::atomic<int> traces{0};
  std::atomic<int64_t> put_kept{0};
  std::atomic<bool> removed{false};
};

class CoordinatorClientTest : public testing::Test {
 protected:
  void StartClient(const std::string& address) {
    CoordinatorClientOptions options;
    options.address = address;
    options.backoff = {absl::Milliseconds(5), absl::Milliseconds(50)};
    options.watchdog = &watchdog_;
    options.health = &health_;
    options.listener = &listener_;
    client_ = std::make_unique<CoordinatorClient>(options);
    client_->Start();
  }

  void TearDown() override {
    health_.Ending();
    client_.reset();
    EXPECT_TRUE(health_.ok()) << health_.Report();
  }

  static DaemonMessage Record(int64_t step) {
    DaemonMessage message;
    message.mutable_step()->set_step(step);
    return message;
  }

  Watchdog watchdog_;
  Health health_;
  Listener listener_;
  std::unique_ptr<CoordinatorClient> client_;
};

bool Beats(const std::vector<DaemonMessage>& messages, int count) {
  for (const DaemonMessage& message : messages) count -= message.has_heartbeat() ? 1 : 0;
  return count <= 0;
}

TEST_F(CoordinatorClientTest, RegistersBeatsAndTells) {
  FakeCoordinator coordinator;
  StartClient(coordinator.address());
  client_->Send(Record(3));
  EXPECT_TRUE(coordinator.WaitFor(
      [](const auto& messages) { return Beats(messages, 3) && HasStep(messages, 3); }));
  const auto messages = coordinator.messages();
  ASSERT_TRUE(messages[0].has_register_());
  EXPECT_EQ(messages[0].register_().node().id(), "node-1");
  EXPECT_EQ(messages[0].register_().running_generation(), 5u);
  EXPECT_TRUE(client_->connected());
  const LeapingWallClock clock;
  EXPECT_LT(client_->HeartbeatAge(), absl::Minutes(5));
}

// What a port of another daemon does: it has no such call, and gRPC no words for that.
class NoCoordinator : public Control::Service {
 public:
  grpc::Status Session(
      grpc::ServerContext* /*context*/,
      grpc::ServerReaderWriter<CoordinatorMessage, DaemonMessage>* /*stream*/) override {
    MutexLock lock(&mutex_);
    ++calls_;
    called_.SignalAll();
    return grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "");
  }
  bool WaitForCalls(int count) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    MutexLock lock(&mutex_);
    while (calls_ < count && called_.WaitUntil(&mutex_, until)) {
    }
    return calls_ >= count;
  }

 private:
  Mutex mutex_;
  CondVar called_;
  int calls_ ABSL_GUARDED_BY(mutex_) = 0;
};

TEST_F(CoordinatorClientTest, AServerThatIsNoCoordinatorIsNamedInTheLog) {
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  NoCoordinator other;
  builder.RegisterService(&other);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  testing::internal::CaptureStderr();
  StartClient(absl::StrCat("127.0.0.1:", port));
  // It tries again after it has complained of the first time.
  EXPECT_TRUE(other.WaitForCalls(2));
  health_.Ending();
  client_.reset();
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("no Isthmus coordinator of this version"), std::string::npos) << said;
  EXPECT_NE(said.find("--coordinator names that"), std::string::npos) << said;
}

TEST_F(CoordinatorClientTest, PassesOnWhatTheCoordinatorSays) {
  FakeCoordinator coordinator;
  StartClient(coordinator.address());
  ASSERT_TRUE(coordinator.WaitFor([](const auto& messages) { return Beats(messages, 1); }));
  CoordinatorMessage start;
  start.mutable_start()->set_generation(9);
  CoordinatorMessage stop;
  stop.mutable_stop()->set_graceful(true);
  CoordinatorMessage put_kept;
  put_kept.mutable_put_kept()->set_step(30);
  CoordinatorMessage removed;
  removed.set_removed_job("job");
  CoordinatorMessage trace;
  trace.mutable_trace()->set_steps(7);
  CoordinatorMessage probe;
  probe.mutable_probe()->add_peers();
  for (const auto& message : {start, stop, put_kept, removed, trace, probe, CoordinatorMessage()})
    coordinator.Say(message);
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  while (listener_.peers == 0 && absl::Now() < deadline) std::this_thread::yield();
  EXPECT_EQ(listener_.generation, 9u);
  EXPECT_EQ(listener_.stops, 1);
  EXPECT_EQ(listener_.peers, 1);
  EXPECT_EQ(listener_.put_kept, 30);
  EXPECT_TRUE(listener_.removed);
  EXPECT_EQ(listener_.traces, 7);
}

// Each clock is read once, on the way: the answer passes what waits.
TEST_F(CoordinatorClientTest, AnswersAReadingOfTheClocks) {
  FakeCoordinator coordinator;
  StartClient(coordinator.address());
  ASSERT_TRUE(coordinator.WaitFor([](const auto& messages) { return Beats(messages, 1); }));
  CoordinatorMessage reading;
  reading.mutable_clock()->set_coordinator_ns(77);
  const int64_t before = absl::ToUnixNanos(SteadyNow());
  coordinator.Say(reading);
  ClockReading answer;
  ASSERT_TRUE(coordinator.WaitFor([&](const auto& messages) {
    for (const DaemonMessage& message : messages) {
      if (message.has_clock()) answer = message.clock();
    }
    return answer.coordinator_ns() != 0;
  }));
  EXPECT_EQ(answer.coordinator_ns(), 77u);
  EXPECT_GE(static_cast<int64_t>(answer.daemon_ns()), before);
  EXPECT_LE(static_cast<int64_t>(answer.daemon_ns()), absl::ToUnixNanos(SteadyNow()));
}

// A trace is for somebody who waits for it now: another connection has no use for it.
TEST_F(CoordinatorClientTest, WhatPassesIsSentOnceAndNotKept) {
  auto coordinator = std::make_unique<FakeCoordinator>();
  const int port = coordinator->port();
  StartClient(coordinator->address());
  ASSERT_TRUE(coordinator->WaitFor([](const auto& messages) { return Beats(messages, 1); }));
  const auto trace_of = [](int64_t step) {
    DaemonMessage message;
    message.mutable_trace()->set_step(step);
    return message;
  };
  const auto traces = [](const std::vector<DaemonMessage>& messages) {
    std::vector<int64_t> steps;
    for (const DaemonMessage& m : messages) {
      if (m.has_trace()) steps.push_back(m.trace().step());
    }
    return steps;
  };
  client_->SendPassing(trace_of(1));
  client_->Send(Record(1));
  ASSERT_TRUE(coordinator->WaitFor([](const auto& messages) { return HasStep(messages, 1); }));
  EXPECT_EQ(traces(coordinator->messages()), std::vector<int64_t>{1}) << "before the record";
  coordinator.reset();
  while (client_->connected()) std::this_thread::yield();
  client_->SendPassing(trace_of(2));
  coordinator = std::make_unique<FakeCoordinator>(port);
  ASSERT_TRUE(coordinator->WaitFor([](const auto& messages) { return HasStep(messages, 1); }));
  client_->SendPassing(trace_of(3));
  client_->Send(Record(4));
  ASSERT_TRUE(coordinator->WaitFor([](const auto& messages) { return HasStep(messages, 4); }));
  EXPECT_EQ(traces(coordinator->messages()), std::vector<int64_t>{3});
}

// F1: started before the coordinator, it joins when that comes. What happened before is told then.
TEST_F(CoordinatorClientTest, StartsBeforeTheCoordinator) {
  int port = 0;
  { port = FakeCoordinator().port(); }
  StartClient(absl::StrCat("127.0.0.1:", port));
  client_->Send(Record(1));
  FakeCoordinator coordinator(port);
  EXPECT_TRUE(coordinator.WaitFor([](const auto& messages) { return HasStep(messages, 1); }));
}

// F36: the coordinator dies and comes back; nothing told is lost, also what it had not stored.
TEST_F(CoordinatorClientTest, ComesBackAndTellsAgain) {
  auto coordinator = std::make_unique<FakeCoordinator>();
  const int port = coordinator->port();
  StartClient(coordinator->address());
  client_->Send(Record(1));
  ASSERT_TRUE(coordinator->WaitFor([](const auto& messages) { return HasStep(messages, 1); }));
  coordinator.reset();
  for (int step = 2; step < 50; ++step) client_->Send(Record(step));
  coordinator = std::make_unique<FakeCoordinator>(port);
  EXPECT_TRUE(coordinator->WaitFor([](const auto& messages) {
    for (int step = 1; step < 50; ++step) {
      if (!HasStep(messages, step)) return false;
    }
    return true;
  }));
  EXPECT_TRUE(coordinator->messages()[0].has_register_());
}

// F31: streams that break again and again.
TEST_F(CoordinatorClientTest, SurvivesBrokenStreams) {
  FakeCoordinator coordinator;
  StartClient(coordinator.address());
  for (int i = 1; i <= 5; ++i) {
    client_->Send(Record(i));
    ASSERT_TRUE(coordinator.WaitFor([i](const auto& messages) { return HasStep(messages, i); }))
        << i;
    coordinator.BreakSessions();
    const absl::Time deadline = absl::Now() + absl::Seconds(30);
    while (coordinator.registrations() <= i && absl::Now() < deadline) std::this_thread::yield();
  }
  EXPECT_GE(coordinator.registrations(), 6);
}

TEST_F(CoordinatorClientTest, ARefusalIsFinalAndTold) {
  FakeCoordinator coordinator;
  coordinator.set_refuse("this identity is alive elsewhere");
  StartClient(coordinator.address());
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  while (client_->refused().ok() && absl::Now() < deadline) std::this_thread::yield();
  EXPECT_EQ(client_->refused().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(client_->refused().message().find("alive elsewhere"), absl::string_view::npos);
  EXPECT_EQ(coordinator.registrations(), 1);
  health_.Ending();
}

// What the table of calls, or the list of revoked certificates, does not let in.
class LetsNobodyIn : public Control::Service {
 public:
  grpc::Status Session(grpc::ServerContext*,
                       grpc::ServerReaderWriter<CoordinatorMessage, DaemonMessage>*) override {
    ++calls;
    return grpc::Status(grpc::StatusCode::UNAUTHENTICATED, "the certificate is revoked");
  }
  std::atomic<int> calls{0};
};

TEST_F(CoordinatorClientTest, AStreamThatIsNotLetInIsFinalAndTold) {
  LetsNobodyIn service;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  const auto server = builder.BuildAndStart();
  StartClient(absl::StrCat("127.0.0.1:", port));
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  while (client_->refused().ok() && absl::Now() < deadline) std::this_thread::yield();
  EXPECT_NE(client_->refused().message().find("the certificate is revoked"),
            absl::string_view::npos);
  EXPECT_EQ(service.calls, 1);
  health_.Ending();
  client_.reset();
  server->Shutdown();
}

TEST_F(CoordinatorClientTest, StopSendsWhatIsQueuedFirst) {
  FakeCoordinator coordinator;
  StartClient(coordinator.address());
  ASSERT_TRUE(coordinator.WaitFor([](const auto& messages) { return Beats(messages, 1); }));
  for (int step = 0; step < 200; ++step) client_->Send(Record(step));
  health_.Ending();
  client_->Stop(absl::Seconds(20));
  EXPECT_TRUE(HasStep(coordinator.messages(), 199));
}

TEST_F(CoordinatorClientTest, StopIsPromptWhileNobodyIsThere) {
  StartClient("127.0.0.1:1");
  health_.Ending();
  const absl::Time start = absl::Now();
  client_->Stop(absl::Seconds(1));
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
}

TEST_F(CoordinatorClientTest, NewsOfTheHeartbeatGoBeforeWhatIsSentLater) {
  FakeCoordinator coordinator;
  coordinator.set_heartbeat_ms(60'000);
  StartClient(coordinator.address());
  const auto beats = [](const std::vector<DaemonMessage>& messages) {
    int count = 0;
    for (const DaemonMessage& message : messages) count += message.has_heartbeat();
    return count;
  };
  ASSERT_TRUE(coordinator.WaitFor([&](const auto& messages) { return beats(messages) == 1; }));
  client_->BeatNow();
  DaemonMessage later;
  later.mutable_probe_result();
  client_->Send(later);
  ASSERT_TRUE(
      coordinator.WaitFor([](const auto& messages) { return messages.back().has_probe_result(); }));
  EXPECT_EQ(beats(coordinator.messages()), 2);
}

}  // namespace
}  // namespace isthmus::daemon
