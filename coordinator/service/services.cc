#include "coordinator/service/services.h"

#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/link_rate.h"
#include "base/log.h"
#include "base/metrics.h"
#include "base/rpc/channel.h"
#include "base/rpc/guarded.h"
#include "base/rpc/tls_identity.h"
#include "base/status.h"
#include "coordinator/service/allowed_calls.h"
#include "coordinator/service/caller.h"
#include "coordinator/service/comparison_service.h"
#include "coordinator/service/security_service.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "proto/control_service.grpc.pb.h"
#include "proto/valid_text.h"

namespace isthmus::coordinator {
namespace {

constexpr size_t kBulkChunkBytes = 256 << 10;
constexpr int64_t kMaxPathBytes = 64 << 20;  // one measurement of a path
constexpr int kMaxPathProbes = 8;            // at once
constexpr size_t kMaxErrorBytes = 3000;      // an error travels in the headers
constexpr absl::Duration kNothingToSay = absl::Hours(1);

grpc::Status Reply(const absl::Status& status) {
  if (status.message().size() <= kMaxErrorBytes) return rpc::ToGrpc(status);
  return rpc::ToGrpc(
      absl::Status(status.code(), absl::StrCat(status.message().substr(0, kMaxErrorBytes), "...")));
}

template <typename T, typename M>
grpc::Status Reply(absl::StatusOr<T> result, M* reply) {
  if (!result.ok()) return Reply(result.status());
  *reply = *std::move(result);
  MakeTextValid(reply);
  return grpc::Status::OK;
}

class ControlService final : public Control::Service {
 public:
  explicit ControlService(Coordinator* coordinator)
      : coordinator_(coordinator), daemons_(coordinator->daemons()) {}

  using Stream = grpc::ServerReaderWriter<CoordinatorMessage, DaemonMessage>;

  grpc::Status Session(grpc::ServerContext* context, Stream* stream) override {
    coordinator::DaemonStream daemon([context] { context->TryCancel(); });
    daemon.peer = context->peer();
    daemon.certificate = rpc::TlsIdentity::PeerOf(*context);
    if (absl::Status open = daemons_->Open(&daemon); !open.ok()) return Reply(open);
    const grpc::Status ended =
        rpc::Guarded("Session", [&] { return Reply(Converse(&daemon, stream)); });
    if (daemon.node_id.empty() && ended.error_code() == grpc::StatusCode::FAILED_PRECONDITION)
      Caller(*context, coordinator_).Audited("Control.Session", "", ended);
    daemons_->Close(&daemon);
    return ended;
  }

 private:
  absl::Status Converse(coordinator::DaemonStream* daemon, Stream* stream) {
    DaemonMessage message;
    if (!stream->Read(&message))
      return absl::CancelledError("the stream ended before its registration");
    if (!message.has_register_())
      return absl::InvalidArgumentError("the first message must be a registration");
    absl::StatusOr<Registered> registered = daemons_->Register(daemon, message.register_());
    CoordinatorMessage answer;
    if (!registered.ok()) {
      if (absl::IsFailedPrecondition(registered.status())) {
        answer.set_refuse(std::string(registered.status().message()).substr(0, kMaxErrorBytes));
        MakeTextValid(&answer);
        stream->Write(answer);
      }
      return registered.status();
    }
    *answer.mutable_registered() = *std::move(registered);
    MakeTextValid(&answer);
    if (!stream->Write(answer)) return absl::CancelledError("the stream ended");
    std::thread writer([daemon, stream] {
      const grpc::Status drained = rpc::Guarded("Session", [&] {
        Drain(daemon, stream);
        return grpc::Status::OK;
      });
      if (!drained.ok()) daemon->cancel();
    });
    const absl::Status status = rpc::FromGrpc(rpc::Guarded("Session", [&] {
      absl::Status taken;
      while (taken.ok() && stream->Read(&message)) taken = daemons_->OnMessage(daemon, message);
      return Reply(taken);
    }));
    if (!status.ok())
      LogWarning("stream of daemon ", daemon->node_id, " is ended: ", status.message());
    daemon->outgoing.Close(absl::CancelledError("the stream ended"));
    if (!status.ok()) daemon->cancel();  // a Write may be under way
    writer.join();
    return status;
  }

  static void Drain(coordinator::DaemonStream* daemon, Stream* stream) {
    for (;;) {
      absl::StatusOr<CoordinatorMessage> message = daemon->outgoing.Pop(kNothingToSay);
      if (absl::IsDeadlineExceeded(message.status())) continue;
      if (!message.ok()) return;
      MakeTextValid(&*message);
      if (!stream->Write(*message)) {
        daemon->cancel();
        return;
      }
    }
  }

  Coordinator* const coordinator_;
  Daemons* const daemons_;
};

class JobsService final : public Jobs::Service {
 public:
  explicit JobsService(Coordinator* coordinator) : coordinator_(coordinator) {}

  grpc::Status MakePlan(grpc::ServerContext* context, const PlanRequest* request,
                        PlanReply* reply) override {
    return rpc::Guarded("MakePlan", [&] {
      return Reply(coordinator_->submission()->MakePlan(
                       *request, [context] { return context->IsCancelled(); }),
                   reply);
    });
  }
  grpc::Status NewJobId(grpc::ServerContext*, const NewJobIdRequest* request,
                        NewJobIdReply* reply) override {
    return rpc::Guarded("NewJobId", [&] {
      absl::StatusOr<std::string> id = coordinator_->submission()->NewJobId(request->name());
      if (!id.ok()) return Reply(id.status());
      reply->set_job_id(*std::move(id));
      return grpc::Status::OK;
    });
  }
  grpc::Status Submit(grpc::ServerContext* context, const SubmitRequest* request,
                      SubmitReply* reply) override {
    return Caller(*context, coordinator_)
        .Audited("Jobs.Submit", request->job().name(), rpc::Guarded("Submit", [&] {
                   return Reply(coordinator_->submission()->Submit(
                                    *request, [context] { return context->IsCancelled(); }),
                                reply);
                 }));
  }
  grpc::Status List(grpc::ServerContext*, const ListJobsRequest*, ListJobsReply* reply) override {
    return rpc::Guarded("List", [&] {
      *reply = WithValidText(coordinator_->queries()->List());
      return grpc::Status::OK;
    });
  }
  grpc::Status Status(grpc::ServerContext*, const JobStatusRequest* request,
                      JobStatus* reply) override {
    return rpc::Guarded("Status", [&] {
      return Reply(coordinator_->queries()->Status(request->job(), request->with_plan()), reply);
    });
  }
  grpc::Status Watch(grpc::ServerContext* context, const WatchRequest* request,
                     grpc::ServerWriter<WatchReply>* writer) override {
    const Caller caller(*context, coordinator_);
    return rpc::Guarded("Watch", [&] {
      const absl::Status ended = coordinator_->watches()->Watch(
          *request, [writer](const WatchReply& r) { return writer->Write(WithValidText(r)); },
          [&] { return context->IsCancelled() || !caller.CheckRevoked().ok(); });
      const absl::Status revoked = caller.CheckRevoked();
      return Reply(revoked.ok() ? ended : revoked);
    });
  }
  grpc::Status Stop(grpc::ServerContext* context, const StopJobRequest* request,
                    StopJobReply* reply) override {
    return Caller(*context, coordinator_)
        .Audited("Jobs.Stop", request->job(), rpc::Guarded("Stop", [&] {
                   return Reply(coordinator_->submission()->Stop(request->job(), request->now()),
                                reply->mutable_status());
                 }));
  }
  grpc::Status Remove(grpc::ServerContext* context, const RemoveJobRequest* request,
                      RemoveJobReply* reply) override {
    return Caller(*context, coordinator_)
        .Audited("Jobs.Remove", request->job(), rpc::Guarded("Remove", [&] {
                   return Reply(coordinator_->RemoveJob(*request), reply);
                 }));
  }
  grpc::Status Checkpoints(grpc::ServerContext* context, const ListCheckpointsRequest* request,
                           ListCheckpointsReply* reply) override {
    return rpc::Guarded("Checkpoints", [&] {
      return Reply(
          coordinator_->checkpoints()->List(*request, [context] { return context->IsCancelled(); }),
          reply);
    });
  }
  grpc::Status Drain(grpc::ServerContext* context, const DrainRequest* request,
                     DrainReply* reply) override {
    return Caller(*context, coordinator_)
        .Audited(
            "Jobs.Drain", absl::StrCat(request->node(), request->undo() ? " --undo" : ""),
            rpc::Guarded("Drain", [&] { return Reply(coordinator_->Drain(*request), reply); }));
  }
  grpc::Status Trace(grpc::ServerContext* context, const TraceJobRequest* request,
                     TraceJobReply* reply) override {
    return rpc::Guarded("Trace", [&] {
      return Reply(
          coordinator_->traces()->Trace(*request, [context] { return context->IsCancelled(); }),
          reply);
    });
  }
  grpc::Status Nodes(grpc::ServerContext* context, const ListNodesRequest*,
                     ListNodesReply* reply) override {
    return rpc::Guarded("Nodes", [&] {
      context->AddInitialMetadata(rpc::kClockHeader, absl::StrCat(absl::ToUnixMillis(absl::Now())));
      if (coordinator_->insecure()) context->AddInitialMetadata(rpc::kInsecureHeader, "1");
      *reply = WithValidText(coordinator_->queries()->Nodes());
      return grpc::Status::OK;
    });
  }

 private:
  Coordinator* const coordinator_;
};

class BulkService final : public Bulk::Service {
 public:
  explicit BulkService(Coordinator* coordinator) : coordinator_(coordinator) {}

  grpc::Status PutCheckpoint(grpc::ServerContext* context,
                             grpc::ServerReader<PutCheckpointChunk>* reader,
                             PutCheckpointReply* reply) override {
    return rpc::Guarded("PutCheckpoint",
                        [&] { return Take(Caller(*context, coordinator_), reader, reply); });
  }

  grpc::Status FetchCheckpoint(grpc::ServerContext* context, const FetchCheckpointRequest* request,
                               grpc::ServerWriter<FetchCheckpointChunk>* writer) override {
    return rpc::Guarded("FetchCheckpoint", [&] {
      const Caller caller(*context, coordinator_);
      const absl::Status planned = caller.CheckPlanned(request->job_id());
      if (!planned.ok())
        return caller.Audited("Bulk.FetchCheckpoint", request->job_id(), Reply(planned));
      return Send(context, caller, *request, writer);
    });
  }

  // The path of checkpoints, as daemons measure it. They give their calls deadlines.
  grpc::Status Echo(grpc::ServerContext*, const ProbeRequest* request, ProbeReply* reply) override {
    reply->set_received_bytes(static_cast<int64_t>(request->padding().size()));
    return grpc::Status::OK;
  }

  grpc::Status Upload(grpc::ServerContext*, grpc::ServerReader<ProbeRequest>* reader,
                      ProbeReply* reply) override {
    const Counted counted(&probes_);
    if (counted.before >= kMaxPathProbes) return TooManyProbes();
    ArrivalLog log;
    const auto start = std::chrono::steady_clock::now();
    ProbeRequest message;
    while (reader->Read(&message)) {
      log.Add(static_cast<int64_t>(message.ByteSizeLong()),
              std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
      if (log.bytes() > kMaxPathBytes)
        return Reply(absl::InvalidArgumentError(
            absl::StrCat("an upload may have ", kMaxPathBytes, " bytes")));
    }
    const RateSearch::Round round = log.Round();
    reply->set_received_bytes(log.bytes());
    reply->set_elapsed_s(round.elapsed_s);
    reply->set_tail_bytes(round.tail_bytes);
    reply->set_tail_s(round.tail_s);
    return grpc::Status::OK;
  }

  grpc::Status Download(grpc::ServerContext*, const ProbeRequest* request,
                        grpc::ServerWriter<ProbeReply>* writer) override {
    if (request->reply_bytes() < 0 || request->reply_bytes() > kMaxPathBytes)
      return Reply(
          absl::InvalidArgumentError(absl::StrCat("reply_bytes must be 0 to ", kMaxPathBytes)));
    const Counted counted(&probes_);
    if (counted.before >= kMaxPathProbes) return TooManyProbes();
    const int64_t piece = ProbeMessageBytes(request->reply_bytes());
    ProbeReply reply;
    reply.mutable_padding()->resize(static_cast<size_t>(piece));
    for (int64_t left = request->reply_bytes(); left > 0; left -= piece) {
      if (!writer->Write(reply))
        return grpc::Status(grpc::StatusCode::CANCELLED, "the caller has gone");
    }
    return grpc::Status::OK;
  }

 private:
  grpc::Status Take(const Caller& caller, grpc::ServerReader<PutCheckpointChunk>* reader,
                    PutCheckpointReply* reply) {
    PutCheckpointChunk chunk;
    if (!reader->Read(&chunk) || !chunk.has_header())
      return Reply(absl::InvalidArgumentError("checkpoint part: its header must come first"));
    const PutCheckpointHeader header = chunk.header();
    if (const absl::Status own = caller.CheckPart(header); !own.ok())
      return caller.Audited("Bulk.PutCheckpoint", header.job_id(), Reply(own));
    auto part = coordinator_->checkpoints()->BeginPart(header);
    if (!part.ok()) return Reply(part.status());
    absl::Cleanup abandon = [&] {
      coordinator_->checkpoints()
          ->FinishPart(header, nullptr, absl::CancelledError("the call failed"))
          .IgnoreError();
    };
    absl::Status status;
    while (status.ok() && !(*part)->is_here() && reader->Read(&chunk)) {
      status = chunk.has_header() ? absl::InvalidArgumentError("checkpoint part: a second header")
                                  : (*part)->Append(chunk.data());
      if (status.ok()) status = caller.CheckRevoked();
    }
    std::move(abandon).Cancel();
    const absl::StatusOr<bool> complete =
        coordinator_->checkpoints()->FinishPart(header, part->get(), status);
    if (!status.ok()) return Reply(status);
    if (!complete.ok()) return Reply(complete.status());
    if (!(*part)->is_here())
      CounterAdd("isthmus_checkpoint_bytes_total", "Bytes of checkpoint parts taken.", {},
                 static_cast<double>(header.file_bytes()));
    reply->set_complete(*complete);
    return grpc::Status::OK;
  }

  grpc::Status Send(grpc::ServerContext* context, const Caller& caller,
                    const FetchCheckpointRequest& request,
                    grpc::ServerWriter<FetchCheckpointChunk>* writer) {
    if (coordinator_->fetches()->HasParts(request)) {
      FetchCheckpointChunk here;
      here.set_use_local(true);
      writer->Write(here);
      return grpc::Status::OK;
    }
    const auto waits = [&](int before) {
      context->AddInitialMetadata(kWaitsBehind, absl::StrCat(before));
      writer->SendInitialMetadata();
    };
    const auto fetch = coordinator_->fetches()->Open(
        request, [context] { return context->IsCancelled(); }, waits,
        [context] { context->TryCancel(); });
    if (!fetch.ok()) return Reply(fetch.status());
    CheckpointReader* reader = (*fetch)->reader();
    FetchCheckpointChunk chunk;
    chunk.set_total_bytes(reader->total_bytes());
    chunk.set_step((*fetch)->step());
    for (int64_t sent = 0; sent < reader->total_bytes();) {
      if (absl::Status read = reader->Read(kBulkChunkBytes, chunk.mutable_data()); !read.ok())
        return Reply(read);
      sent += static_cast<int64_t>(chunk.data().size());
      if (sent == reader->total_bytes()) chunk.set_checksum(reader->checksum());
      if (!writer->Write(chunk))
        return grpc::Status(grpc::StatusCode::CANCELLED, "the caller has gone");
      if (const absl::Status revoked = caller.CheckRevoked(); !revoked.ok()) return Reply(revoked);
      (*fetch)->Progress();
      chunk.Clear();
    }
    return grpc::Status::OK;
  }

  struct Counted {
    explicit Counted(std::atomic<int>* count) : count(count), before(count->fetch_add(1)) {}
    ~Counted() { count->fetch_sub(1); }
    std::atomic<int>* const count;
    const int before;
  };
  static grpc::Status TooManyProbes() {
    return Reply(absl::ResourceExhaustedError(
        absl::StrCat(kMaxPathProbes, " daemons measure their paths already: try again")));
  }

  Coordinator* const coordinator_;
  std::atomic<int> probes_{0};
};

class GrpcServer final : public Server {
 public:
  explicit GrpcServer(Coordinator* coordinator)
      : coordinator_(coordinator),
        control_(coordinator),
        jobs_(coordinator),
        bulk_(coordinator),
        security_(MakeSecurityService(coordinator)),
        comparisons_(MakeComparisonService(coordinator)) {}
  ~GrpcServer() override { Stop(absl::Seconds(1)); }

  absl::Status Listen(const std::string& address) {
    grpc::ServerBuilder builder;
    rpc::ConfigureServer(&builder);
    builder.AddListeningPort(address, Credentials(), &port_);
    builder.RegisterService(&control_);
    builder.RegisterService(&jobs_);
    builder.RegisterService(&bulk_);
    builder.RegisterService(security_.get());
    builder.RegisterService(comparisons_.get());
    server_ = builder.BuildAndStart();
    if (server_ == nullptr || port_ == 0) {
      return absl::UnavailableError(absl::StrCat(
          "--listen ", address,
          ": cannot listen there. Is the port taken, or not an address of this host?"));
    }
    return absl::OkStatus();
  }

  int port() const override { return port_; }

  void Stop(absl::Duration patience) override {
    if (server_ == nullptr) return;
    server_->Shutdown(rpc::DeadlineAfter(patience));
    server_->Wait();
    server_.reset();
  }

 private:
  std::shared_ptr<grpc::ServerCredentials> Credentials() const {
    if (coordinator_->tls() == nullptr) return grpc::InsecureServerCredentials();
    return coordinator_->tls()->ForServer(
        AllowedCalls(),
        [this](const tls::Certificate& caller, absl::string_view call, const absl::Status& why) {
          AuditRefusal(caller, call, why, coordinator_);
        });
  }

  Coordinator* const coordinator_;
  ControlService control_;
  JobsService jobs_;
  BulkService bulk_;
  const std::unique_ptr<grpc::Service> security_, comparisons_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const std::string& address,
                                                      Coordinator* coordinator) {
  auto server = std::make_unique<GrpcServer>(coordinator);
  RETURN_IF_ERROR(server->Listen(address));
  return std::unique_ptr<Server>(std::move(server));
}

}  // namespace isthmus::coordinator
