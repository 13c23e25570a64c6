// The whole coordinator over loopback, for tests with fake daemons: a server on port 0, the stubs
// of a client, and what most tests do first. Thread: one owner.
#ifndef ISTHMUS_TESTS_COORDINATOR_SERVICE_SERVICE_FIXTURE_H_
#define ISTHMUS_TESTS_COORDINATOR_SERVICE_SERVICE_FIXTURE_H_

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/rpc/channel.h"
#include "base/safetensors.h"
#include "coordinator/service/coordinator.h"
#include "coordinator/service/services.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "gtest/gtest.h"
#include "proto/control_service.grpc.pb.h"
#include "proto/data/data_position.h"
#include "proto/job/checkpoint_state.h"
#include "tests/coordinator/planner/topology.h"
#include "tests/coordinator/service/fake_daemon.h"
#include "tests/temp_directory.h"

namespace isthmus::coordinator {

class ServiceTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kContents = 4 << 20;  // of MakeNode's text: checkpoints are of it

  void SetUp() override { Open(); }
  void TearDown() override { Close(); }

  void Open() {
    CoordinatorOptions options;
    options.state_dir = scratch_.path() + "/state";
    options.membership.lease = options.jobs.lease = absl::Seconds(4);
    options.membership.heartbeat = absl::Milliseconds(200);
    options.membership.silence = absl::Seconds(2);
    options.jobs.confirm = absl::Seconds(5);
    options.jobs.unheard = absl::Seconds(5);
    options.compute.settle = absl::Milliseconds(50);
    options.tick = absl::Milliseconds(20);
    options.flush_every = flush_every_;
    options.try_pending = try_pending_;
    options.parts_patience = absl::Milliseconds(200);
    options.traces = traces_;
    options.run_multilevel = run_multilevel_;
    options.patience.links = absl::Seconds(20);
    options.patience.data = wait_for_data_;
    options.patience.daemons = wait_for_daemons_;
    options.tls = tls_;
    options.insecure = insecure_;
    options.reread_revoked = absl::Milliseconds(20);
    coordinator_ = Coordinator::Open(options).value();
    server_ = Server::Start(absl::StrCat("127.0.0.1:", port_), coordinator_.get()).value();
    port_ = server_->port();
    channel_ = rpc::MakeChannel(address(), to_);
    jobs_ = Jobs::NewStub(channel_);
    bulk_ = Bulk::NewStub(channel_);
  }
  void Close() {
    if (coordinator_ == nullptr) return;
    coordinator_->Stop();
    server_->Stop(absl::Seconds(5));
    server_.reset();
    coordinator_.reset();
  }

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }
  std::unique_ptr<FakeDaemon> Daemon(const std::string& name,
                                     const std::function<void(FakeDaemon::Options*)>& change = {}) {
    FakeDaemon::Options options;
    options.address = address();
    options.node = MakeNode(name, 10);
    options.node.set_metrics_address(name + ":7081");
    if (change) change(&options);
    return std::make_unique<FakeDaemon>(std::move(options));
  }

  template <typename Request, typename Answer, typename Method>
  absl::StatusOr<Answer> Call(Method method, const Request& request) {
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    Answer answer;
    const absl::Status status = rpc::FromGrpc((jobs_.get()->*method)(&context, request, &answer));
    if (!status.ok()) return status;
    return answer;
  }
  absl::StatusOr<SubmitReply> Submit(const JobSpec& job, bool resume = false, bool wait = false,
                                     const std::string& uploaded = "") {
    SubmitRequest request;
    *request.mutable_job() = job;
    request.set_resume(resume);
    request.set_wait_for_nodes(wait);
    request.set_init_uploaded(!uploaded.empty());
    request.set_job_id(uploaded);
    return Call<SubmitRequest, SubmitReply>(&Jobs::Stub::Submit, request);
  }
  JobStatus Status(const std::string& job = "bible") {
    JobStatusRequest request;
    request.set_job(job);
    auto status = Call<JobStatusRequest, JobStatus>(&Jobs::Stub::Status, request);
    EXPECT_TRUE(status.ok()) << status.status();
    return status.value_or(JobStatus());
  }
  ListNodesReply Nodes() {
    return Call<ListNodesRequest, ListNodesReply>(&Jobs::Stub::Nodes, ListNodesRequest()).value();
  }

  static void Pause() {  // between two looks
    Mutex mutex;
    CondVar never;
    MutexLock lock(&mutex);
    never.WaitUntil(&mutex, std::chrono::steady_clock::now() + std::chrono::milliseconds(20));
  }
  ::testing::AssertionResult Eventually(const std::function<bool()>& condition, int seconds = 20) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
    while (!condition()) {
      if (std::chrono::steady_clock::now() > until)
        return ::testing::AssertionFailure() << "not within " << seconds << " s";
      Pause();
    }
    return ::testing::AssertionSuccess();
  }
  ::testing::AssertionResult Becomes(JobState state) {
    return Eventually([&] { return Status().state() == state; })
           << ": " << Status().ShortDebugString();
  }

  JobSpec TwoStages(int64_t steps = 10) {
    JobSpec job = MakeJob();
    job.mutable_recipe()->set_steps(steps);
    job.mutable_recipe()->set_warmup_steps(0);
    job.mutable_strategy()->set_stages(2);
    return job;
  }
  // Submits, and answers PREPARED from both.
  Plan StartTwo(FakeDaemon* a, FakeDaemon* b, const JobSpec& job) {
    EXPECT_TRUE(Eventually([this] {  // also where the coordinator waits for nobody
      int alive = 0;
      const ListNodesReply reply = Nodes();
      for (const NodeStatus& node : reply.nodes()) alive += node.alive();
      return alive >= 2;
    }));
    const auto reply = Submit(job);
    EXPECT_TRUE(reply.ok()) << reply.status();
    const Plan plan = a->NextStart().value();
    EXPECT_EQ(b->NextStart().value().generation(), plan.generation());
    for (FakeDaemon* d : {a, b}) {
      d->SetGeneration(plan.generation());
      d->Event(plan, SessionEvent::PREPARED);
    }
    EXPECT_TRUE(Becomes(JOB_RUNNING));
    return plan;
  }

  static PutCheckpointHeader Header(const Plan& plan, int64_t step, int stage,
                                    const std::string& file, const std::string& bytes) {
    PutCheckpointHeader h;
    h.set_job_id(plan.job_id());
    h.set_generation(plan.generation());
    h.set_step(step);
    h.set_stage(stage);
    h.set_stages(std::max(1, plan.ranks_size()));
    h.set_file(file);
    h.set_file_bytes(static_cast<int64_t>(bytes.size()));
    h.set_checksum(Hash64(bytes));
    return h;
  }
  // `damage` is added to the checksum that is announced.
  absl::StatusOr<bool> Put(const Plan& plan, int64_t step, int stage, const std::string& file,
                           const std::string& bytes, uint64_t damage = 0) {
    grpc::ClientContext context;
    PutCheckpointReply reply;
    const auto writer = bulk_->PutCheckpoint(&context, &reply);
    PutCheckpointChunk chunk;
    *chunk.mutable_header() = Header(plan, step, stage, file, bytes);
    chunk.mutable_header()->set_checksum(chunk.header().checksum() + damage);
    writer->Write(chunk);
    for (size_t at = 0; at < bytes.size(); at += 1 << 20) {
      chunk.set_data(bytes.substr(at, 1 << 20));
      writer->Write(chunk);
    }
    writer->WritesDone();
    const absl::Status status = rpc::FromGrpc(writer->Finish());
    if (!status.ok()) return status;
    return reply.complete();
  }
  // What a stage that reads data writes.
  static std::string State(const Plan& plan, int64_t step) {
    CheckpointState state;
    state.step = step;
    state.generation = plan.generation();
    state.stages = plan.ranks_size();
    state.job = plan.job();
    const int64_t samples = plan.train_samples();
    state.position = Advance(StartOfData(plan, samples), samples,
                             plan.job().recipe().global_batch(), step - plan.start_step());
    state.corpus_contents = kContents;
    return CheckpointStateJson(state);
  }
  bool PutAll(const Plan& plan, int64_t step) {
    bool complete = false;
    for (int s = 0; s < plan.ranks_size(); ++s) {
      const float value = 1;
      const std::string weights =
          WriteSafetensors(
              {{absl::StrCat("w", s), "F32", {1}, {reinterpret_cast<const char*>(&value), 4}}}, {})
              .value();
      EXPECT_TRUE(Put(plan, step, s, "weights.safetensors", weights).ok());
      EXPECT_TRUE(Put(plan, step, s, "optimizer.safetensors", weights).ok());
      complete = Put(plan, step, s, "state.json", State(plan, step)).value();
    }
    return complete;
  }

  struct Fetched {
    absl::Status status;
    std::string bytes;
    int64_t step = -1;
    int waited_behind = 0;
    bool sound = false;  // length and checksum are those announced
  };
  Fetched FetchAll(const FetchCheckpointRequest& request) {
    grpc::ClientContext context;
    const auto reader = bulk_->FetchCheckpoint(&context, request);
    Fetched fetched;
    FetchCheckpointChunk chunk;
    int64_t total = -1;
    uint64_t checksum = 0;
    while (reader->Read(&chunk)) {
      if (total < 0) {
        total = chunk.total_bytes();
        fetched.step = chunk.step();
      }
      fetched.bytes += chunk.data();
      checksum = chunk.checksum();
    }
    fetched.status = rpc::FromGrpc(reader->Finish());
    fetched.sound =
        total == static_cast<int64_t>(fetched.bytes.size()) && checksum == Hash64(fetched.bytes);
    const auto& metadata = context.GetServerInitialMetadata();
    if (const auto it = metadata.find(kWaitsBehind); it != metadata.end())
      fetched.waited_behind = std::stoi(std::string(it->second.data(), it->second.size()));
    return fetched;
  }
  static FetchCheckpointRequest Export(const std::string& job) {
    FetchCheckpointRequest request;
    request.set_job_id(job);
    request.set_step(-1);
    request.set_what("weights");
    return request;
  }

  TempDirectory scratch_;
  absl::Duration flush_every_ = absl::Milliseconds(50);
  absl::Duration try_pending_ = absl::Milliseconds(100);
  TracesOptions traces_;
  RunMultilevel run_multilevel_ = RunMultilevelProgram;
  std::shared_ptr<rpc::TlsIdentity> tls_;  // the coordinator's
  bool insecure_ = false;
  rpc::ChannelOptions to_;  // how the stubs dial
  int port_ = 0;
  absl::Duration wait_for_data_ = absl::ZeroDuration();
  absl::Duration wait_for_daemons_ = absl::Seconds(15);
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<Jobs::Stub> jobs_;
  std::unique_ptr<Bulk::Stub> bulk_;
};

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_TESTS_COORDINATOR_SERVICE_SERVICE_FIXTURE_H_
