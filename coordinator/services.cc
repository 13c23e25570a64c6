#include "coordinator/services.h"

#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/metrics.h"
#include "base/rpc/channel.h"
#include "base/status.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "proto/control_service.grpc.pb.h"

namespace isthmus::coordinator {
namespace {

constexpr size_t kBulkChunkBytes = 256 << 10;
constexpr size_t kMaxErrorBytes = 3000;  // an error travels in the headers
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
  return grpc::Status::OK;
}

class ControlService final : public Control::Service {
 public:
  explicit ControlService(Coordinator* coordinator) : coordinator_(coordinator) {}

  using Stream = grpc::ServerReaderWriter<CoordinatorMessage, DaemonMessage>;

  grpc::Status Session(grpc::ServerContext* context, Stream* stream) override {
    coordinator::Session session([context] { context->TryCancel(); });
    if (absl::Status open = coordinator_->OpenSession(&session); !open.ok()) return Reply(open);
    const absl::Status ended = Converse(&session, stream);
    coordinator_->CloseSession(&session);
    return Reply(ended);
  }

 private:
  absl::Status Converse(coordinator::Session* session, Stream* stream) {
    DaemonMessage message;
    if (!stream->Read(&message))
      return absl::CancelledError("the stream ended before its registration");
    if (!message.has_register_())
      return absl::InvalidArgumentError("the first message must be a registration");
    absl::StatusOr<Registered> registered = coordinator_->Register(session, message.register_());
    CoordinatorMessage answer;
    if (!registered.ok()) {
      if (absl::IsFailedPrecondition(registered.status())) {
        answer.set_refuse(std::string(registered.status().message()).substr(0, kMaxErrorBytes));
        stream->Write(answer);
      }
      return registered.status();
    }
    *answer.mutable_registered() = *std::move(registered);
    if (!stream->Write(answer)) return absl::CancelledError("the stream ended");
    std::thread writer([session, stream] { Drain(session, stream); });
    absl::Status status;
    while (status.ok() && stream->Read(&message))
      status = coordinator_->OnMessage(session, message);
    if (!status.ok())
      LogWarning("stream of daemon ", session->node_id, " is ended: ", status.message());
    session->outgoing.Close(absl::CancelledError("the stream ended"));
    if (!status.ok()) session->cancel();  // a Write may be under way
    writer.join();
    return status;
  }

  static void Drain(coordinator::Session* session, Stream* stream) {
    for (;;) {
      absl::StatusOr<CoordinatorMessage> message = session->outgoing.Pop(kNothingToSay);
      if (absl::IsDeadlineExceeded(message.status())) continue;
      if (!message.ok()) return;
      if (!stream->Write(*message)) {
        session->cancel();
        return;
      }
    }
  }

  Coordinator* const coordinator_;
};

class JobsService final : public Jobs::Service {
 public:
  explicit JobsService(Coordinator* coordinator) : coordinator_(coordinator) {}

  grpc::Status MakePlan(grpc::ServerContext* context, const PlanRequest* request,
                        PlanReply* reply) override {
    return Reply(coordinator_->MakePlan(*request, [context] { return context->IsCancelled(); }),
                 reply);
  }
  grpc::Status NewJobId(grpc::ServerContext*, const NewJobIdRequest* request,
                        NewJobIdReply* reply) override {
    return Reply(coordinator_->NewJobId(request->name()), reply->mutable_job_id());
  }
  grpc::Status Submit(grpc::ServerContext* context, const SubmitRequest* request,
                      SubmitReply* reply) override {
    return Reply(coordinator_->Submit(*request, [context] { return context->IsCancelled(); }),
                 reply);
  }
  grpc::Status List(grpc::ServerContext*, const ListJobsRequest*, ListJobsReply* reply) override {
    *reply = coordinator_->List();
    return grpc::Status::OK;
  }
  grpc::Status Status(grpc::ServerContext*, const JobStatusRequest* request,
                      JobStatus* reply) override {
    return Reply(coordinator_->Status(request->job(), request->with_plan()), reply);
  }
  grpc::Status Watch(grpc::ServerContext* context, const WatchRequest* request,
                     grpc::ServerWriter<WatchReply>* writer) override {
    return Reply(coordinator_->Watch(
        *request, [writer](const WatchReply& r) { return writer->Write(r); },
        [context] { return context->IsCancelled(); }));
  }
  grpc::Status Stop(grpc::ServerContext*, const StopJobRequest* request,
                    StopJobReply* reply) override {
    return Reply(coordinator_->StopJob(request->job(), request->now()), reply->mutable_status());
  }
  grpc::Status Nodes(grpc::ServerContext*, const ListNodesRequest*,
                     ListNodesReply* reply) override {
    *reply = coordinator_->Nodes();
    return grpc::Status::OK;
  }

 private:
  Coordinator* const coordinator_;
};

class BulkService final : public Bulk::Service {
 public:
  explicit BulkService(Coordinator* coordinator) : coordinator_(coordinator) {}

  grpc::Status PutCheckpoint(grpc::ServerContext*, grpc::ServerReader<PutCheckpointChunk>* reader,
                             PutCheckpointReply* reply) override {
    PutCheckpointChunk chunk;
    if (!reader->Read(&chunk) || !chunk.has_header())
      return Reply(absl::InvalidArgumentError("checkpoint part: its header must come first"));
    const PutCheckpointHeader header = chunk.header();
    auto part = coordinator_->BeginPart(header);
    if (!part.ok()) return Reply(part.status());
    absl::Status status;
    while (status.ok() && reader->Read(&chunk)) {
      status = chunk.has_header() ? absl::InvalidArgumentError("checkpoint part: a second header")
                                  : (*part)->Append(chunk.data());
    }
    const absl::StatusOr<bool> complete =
        coordinator_->FinishPart(header, status.ok() ? part->get() : nullptr);
    if (!status.ok()) return Reply(status);
    if (!complete.ok()) {
      LogWarning("job ", header.job_id(), ", stage ", header.stage(), ": ",
                 complete.status().message());
      return Reply(complete.status());
    }
    CounterAdd("isthmus_checkpoint_bytes_total", "Bytes of checkpoint parts taken.", {},
               static_cast<double>(header.file_bytes()));
    reply->set_complete(*complete);
    return grpc::Status::OK;
  }

  grpc::Status FetchCheckpoint(grpc::ServerContext*, const FetchCheckpointRequest* request,
                               grpc::ServerWriter<FetchCheckpointChunk>* writer) override {
    int64_t step = 0;
    const absl::StatusOr<std::string> bytes = coordinator_->FetchCheckpoint(*request, &step);
    if (!bytes.ok()) return Reply(bytes.status());
    size_t at = 0;
    do {
      FetchCheckpointChunk chunk;
      if (at == 0) {
        chunk.set_total_bytes(static_cast<int64_t>(bytes->size()));
        chunk.set_step(step);
      }
      chunk.set_data(bytes->substr(at, kBulkChunkBytes));
      at += chunk.data().size();
      if (at >= bytes->size()) chunk.set_checksum(Hash64(*bytes));
      if (!writer->Write(chunk))
        return grpc::Status(grpc::StatusCode::CANCELLED, "the caller has gone");
    } while (at < bytes->size());
    return grpc::Status::OK;
  }

 private:
  Coordinator* const coordinator_;
};

class GrpcServer final : public Server {
 public:
  explicit GrpcServer(Coordinator* coordinator)
      : control_(coordinator), jobs_(coordinator), bulk_(coordinator) {}
  ~GrpcServer() override { Stop(absl::Seconds(1)); }

  absl::Status Listen(const std::string& address) {
    grpc::ServerBuilder builder;
    rpc::ConfigureServer(&builder);
    builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(&control_);
    builder.RegisterService(&jobs_);
    builder.RegisterService(&bulk_);
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
    server_->Shutdown(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(patience));
    server_->Wait();
    server_.reset();
  }

 private:
  ControlService control_;
  JobsService jobs_;
  BulkService bulk_;
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
