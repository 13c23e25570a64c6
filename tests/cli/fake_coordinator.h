// A coordinator for tests of the CLI: the services Jobs and Bulk on a loopback port, with answers
// that the test sets. Thread: set the answers before calls come, or after Settle; asked() from any.
#ifndef ISTHMUS_TESTS_CLI_FAKE_COORDINATOR_H_
#define ISTHMUS_TESTS_CLI_FAKE_COORDINATOR_H_

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/mutex.h"
#include "base/rpc/channel.h"
#include "coordinator/core/fetch_line.h"
#include "proto/control_service.grpc.pb.h"

namespace isthmus::cli {

class FakeCoordinator final : public Jobs::Service, public Bulk::Service {
 public:
  explicit FakeCoordinator(const std::string& address = "127.0.0.1:0",
                           ListNodesReply nodes_there = {})
      : nodes(std::move(nodes_there)) {
    grpc::ServerBuilder builder;
    rpc::ConfigureServer(&builder);
    builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(static_cast<Jobs::Service*>(this));
    builder.RegisterService(static_cast<Bulk::Service*>(this));
    server_ = builder.BuildAndStart();
  }
  ~FakeCoordinator() override {
    server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(1));
  }

  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

  // Answers.
  grpc::Status refuse;  // of every call, unless OK
  PlanReply plan;
  SubmitReply submitted;
  JobStatus status;
  int usable = 2;  // daemons that get jobs, as a drain tells
  ListJobsReply jobs;
  ListNodesReply nodes;
  RemoveJobReply removed;
  ListCheckpointsReply checkpoints;
  TraceJobReply trace;
  int64_t clock_ms = 0;  // 0: it does not tell
  std::vector<std::vector<WatchReply>>
      streams;             // one a Watch call; the last one is given again; then the stream ends
  int broken_streams = 0;  // so many of the first ones end as Unavailable
  std::string weights;     // of FetchCheckpoint
  bool damage = false;
  int waits_behind = 0;            // FetchCheckpoint says so
  std::function<void()> on_watch;  // called at the start of each Watch

  struct Asked {
    PlanRequest plan_request;
    SubmitRequest submit_request;
    StopJobRequest stop_request;
    RemoveJobRequest remove_request;
    ListCheckpointsRequest checkpoints_request;
    TraceJobRequest trace_request;
    std::vector<WatchRequest> watch_requests;
    FetchCheckpointRequest fetch_request;
    PutCheckpointHeader put_header;
    std::string put_data;
  };
  // Waits for the end of every call that came: then answers may be set anew.
  void Settle() const { MutexLock lock(&mutex_); }
  Asked asked() const {
    MutexLock lock(&mutex_);
    return asked_;
  }
  void Forget() {
    MutexLock lock(&mutex_);
    asked_ = {};
  }

 private:
  grpc::Status MakePlan(grpc::ServerContext*, const PlanRequest* request,
                        PlanReply* reply) override {
    MutexLock lock(&mutex_);
    asked_.plan_request = *request;
    *reply = plan;
    return refuse;
  }
  grpc::Status NewJobId(grpc::ServerContext*, const NewJobIdRequest* request,
                        NewJobIdReply* reply) override {
    MutexLock lock(&mutex_);
    reply->set_job_id(request->name() + "-7");
    return refuse;
  }
  grpc::Status Submit(grpc::ServerContext*, const SubmitRequest* request,
                      SubmitReply* reply) override {
    MutexLock lock(&mutex_);
    asked_.submit_request = *request;
    *reply = submitted;
    return refuse;
  }
  grpc::Status List(grpc::ServerContext*, const ListJobsRequest*, ListJobsReply* reply) override {
    MutexLock lock(&mutex_);
    *reply = jobs;
    return refuse;
  }
  grpc::Status Status(grpc::ServerContext*, const JobStatusRequest*, JobStatus* reply) override {
    MutexLock lock(&mutex_);
    *reply = status;
    return refuse;
  }
  grpc::Status Watch(grpc::ServerContext*, const WatchRequest* request,
                     grpc::ServerWriter<WatchReply>* writer) override {
    MutexLock lock(&mutex_);
    asked_.watch_requests.push_back(*request);
    const size_t watches = asked_.watch_requests.size();
    if (on_watch) on_watch();
    if (!refuse.ok() || streams.empty()) return refuse;
    const size_t index = std::min(watches, streams.size()) - 1;
    for (const WatchReply& reply : streams[index]) writer->Write(reply);
    if (static_cast<int>(watches) <= broken_streams)
      return {grpc::StatusCode::UNAVAILABLE, "going down"};
    return grpc::Status::OK;
  }
  grpc::Status Drain(grpc::ServerContext*, const DrainRequest* request,
                     DrainReply* reply) override {
    MutexLock lock(&mutex_);
    reply->set_node(request->node());
    reply->set_usable(usable);
    return refuse;
  }
  grpc::Status Stop(grpc::ServerContext*, const StopJobRequest* request,
                    StopJobReply* reply) override {
    MutexLock lock(&mutex_);
    asked_.stop_request = *request;
    *reply->mutable_status() = status;
    return refuse;
  }
  grpc::Status Remove(grpc::ServerContext*, const RemoveJobRequest* request,
                      RemoveJobReply* reply) override {
    MutexLock lock(&mutex_);
    asked_.remove_request = *request;
    *reply = removed;
    return refuse;
  }
  grpc::Status Checkpoints(grpc::ServerContext*, const ListCheckpointsRequest* request,
                           ListCheckpointsReply* reply) override {
    MutexLock lock(&mutex_);
    asked_.checkpoints_request = *request;
    *reply = checkpoints;
    return refuse;
  }
  grpc::Status Trace(grpc::ServerContext*, const TraceJobRequest* request,
                     TraceJobReply* reply) override {
    MutexLock lock(&mutex_);
    asked_.trace_request = *request;
    *reply = trace;
    return refuse;
  }
  grpc::Status Nodes(grpc::ServerContext* context, const ListNodesRequest*,
                     ListNodesReply* reply) override {
    MutexLock lock(&mutex_);
    if (clock_ms != 0) context->AddInitialMetadata(rpc::kClockHeader, std::to_string(clock_ms));
    *reply = nodes;
    return refuse;
  }
  grpc::Status PutCheckpoint(grpc::ServerContext*, grpc::ServerReader<PutCheckpointChunk>* reader,
                             PutCheckpointReply* reply) override {
    MutexLock lock(&mutex_);
    PutCheckpointChunk chunk;
    while (reader->Read(&chunk)) {
      if (chunk.has_header()) asked_.put_header = chunk.header();
      if (chunk.what_case() == PutCheckpointChunk::kData) asked_.put_data += chunk.data();
    }
    reply->set_complete(true);
    return refuse;
  }
  grpc::Status FetchCheckpoint(grpc::ServerContext* context, const FetchCheckpointRequest* request,
                               grpc::ServerWriter<FetchCheckpointChunk>* writer) override {
    MutexLock lock(&mutex_);
    asked_.fetch_request = *request;
    if (!refuse.ok()) return refuse;
    if (waits_behind > 0)
      context->AddInitialMetadata(coordinator::kWaitsBehind, std::to_string(waits_behind));
    constexpr size_t kChunk = 100;
    for (size_t at = 0; at < weights.size(); at += kChunk) {
      FetchCheckpointChunk chunk;
      if (at == 0) {
        chunk.set_total_bytes(static_cast<int64_t>(weights.size()));
        chunk.set_step(40);
      }
      chunk.set_data(weights.substr(at, kChunk));
      if (damage && at == 0) (*chunk.mutable_data())[50] ^= 1;
      if (at + kChunk >= weights.size()) chunk.set_checksum(Hash64(weights));
      writer->Write(chunk);
    }
    return grpc::Status::OK;
  }

  int port_ = 0;
  mutable Mutex mutex_;
  Asked asked_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace isthmus::cli

#endif  // ISTHMUS_TESTS_CLI_FAKE_COORDINATOR_H_
