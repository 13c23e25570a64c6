#include "coordinator/cli/client.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/mutex.h"
#include "base/rpc/channel.h"
#include "base/rpc/listening.h"
#include "base/rpc/tls_identity.h"
#include "base/status.h"
#include "coordinator/cli/exit_code.h"
#include "coordinator/core/fetch_line.h"
#include "proto/comparison_service.grpc.pb.h"
#include "proto/control_service.grpc.pb.h"
#include "proto/security_service.grpc.pb.h"
#include "proto/valid_text.h"

namespace isthmus::cli {
namespace {}  // namespace

struct Client::State {
  ClientOptions options;
  rpc::ChannelOptions channel_options;
  std::shared_ptr<grpc::Channel> channel;       // control
  std::shared_ptr<grpc::Channel> bulk_channel;  // made at first use
  std::unique_ptr<Jobs::Stub> jobs;

  Mutex mutex;
  grpc::ClientContext* current ABSL_GUARDED_BY(mutex) = nullptr;
  bool cancelled ABSL_GUARDED_BY(mutex) = false;

  absl::Status NoAnswer(absl::string_view why) const {
    return Unreachable(absl::UnavailableError(absl::StrCat(
        "no coordinator answers at ", options.address, " (", why,
        "). Is `isthmus-coordinator` running there and the port open? Name another one with ",
        "--coordinator HOST:PORT or ISTHMUS_COORDINATOR")));
  }

  absl::Status Named(const grpc::Status& status) ABSL_LOCKS_EXCLUDED(mutex) {
    if (status.ok()) return absl::OkStatus();
    absl::Status error = rpc::FromGrpc(status);
    if (absl::IsCancelled(error)) {  // by this program, or by a server that shuts down
      MutexLock lock(&mutex);
      if (!cancelled) error = absl::UnavailableError("it broke the call off: it is stopping");
    }
    if (absl::IsUnimplemented(error)) {
      return absl::FailedPreconditionError(absl::StrCat(
          "the server at ", options.address, " is not an Isthmus coordinator of this version",
          error.message().empty() ? "" : absl::StrCat(" (", error.message(), ")"),
          "; the port of a daemon, perhaps: --coordinator names that of "
          "isthmus-coordinator, 7070 by default"));
    }
    if (absl::IsUnavailable(error) || absl::IsDeadlineExceeded(error)) {
      error = Annotate(error, absl::StrCat("coordinator ", options.address));
      if (!rpc::Answered(status)) error = Unreachable(error);
    }
    return error;
  }
};

namespace {

// Makes a context cancellable for the length of one call.
template <typename State>
class Call {
 public:
  Call(State* state, absl::Duration timeout) : state_(state) {
    context_.set_deadline(rpc::DeadlineAfter(timeout));
    MutexLock lock(&state_->mutex);
    state_->current = &context_;
    if (state_->cancelled) context_.TryCancel();
  }
  ~Call() {
    MutexLock lock(&state_->mutex);
    state_->current = nullptr;
  }
  grpc::ClientContext* context() { return &context_; }

 private:
  State* const state_;
  grpc::ClientContext context_;
};

// OK as soon as connected; the first failure to connect is final (a refused port does not become
// better by waiting).
absl::Status AwaitConnected(grpc::Channel* channel, absl::Duration timeout) {
  const gpr_timespec deadline = rpc::DeadlineAfter(timeout);
  while (true) {
    const grpc_connectivity_state state = channel->GetState(/*try_to_connect=*/true);
    if (state == GRPC_CHANNEL_READY) return absl::OkStatus();
    if (state == GRPC_CHANNEL_TRANSIENT_FAILURE || state == GRPC_CHANNEL_SHUTDOWN) {
      return absl::UnavailableError("the connection failed");
    }
    if (!channel->WaitForStateChange(state, deadline)) {
      return absl::UnavailableError(
          absl::StrCat("no connection within ", absl::FormatDuration(timeout)));
    }
  }
}

}  // namespace

Client::Client(std::unique_ptr<State> state) : state_(std::move(state)) {}
Client::~Client() = default;
const std::string& Client::address() const { return state_->options.address; }

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(const ClientOptions& options) {
  RETURN_IF_ERROR(rpc::CheckAddress("--coordinator", options.address));
  RETURN_IF_ERROR(rpc::CheckDialling("--coordinator", options.address,
                                     {!options.tls_dir.empty(), options.insecure},
                                     tls::Role::kOperator));
  auto state = std::make_unique<State>();
  state->options = options;
  rpc::Dialling dialling;
  dialling.use_proxy = options.use_proxy;
  if (!options.tls_dir.empty()) {
    auto loaded =
        rpc::TlsIdentity::Load(options.tls_dir, {tls::Role::kOperator, tls::Role::kViewer});
    if (!loaded.ok()) return Annotate(loaded.status(), "--tls-dir");
    dialling.tls = *std::move(loaded);
  }
  state->channel_options = rpc::ToCoordinator(dialling);
  state->channel = rpc::MakeChannel(options.address, state->channel_options);
  const absl::Status connected = AwaitConnected(state->channel.get(), options.connect_timeout);
  if (!connected.ok()) {
    return rpc::NoConnection(options.address, state->channel_options,
                             state->NoAnswer(connected.message()));
  }
  state->jobs = Jobs::NewStub(state->channel);
  return std::unique_ptr<Client>(new Client(std::move(state)));
}

void Client::Cancel() {
  MutexLock lock(&state_->mutex);
  state_->cancelled = true;
  if (state_->current != nullptr) state_->current->TryCancel();
}

#define ISTHMUS_UNARY(Method, request, Reply, timeout)                                      \
  Reply reply;                                                                              \
  Call<State> call(state_.get(), state_->options.timeout);                                  \
  RETURN_IF_ERROR(                                                                          \
      state_->Named(state_->jobs->Method(call.context(), WithValidText(request), &reply))); \
  return reply

absl::StatusOr<PlanReply> Client::MakePlan(const PlanRequest& request) {
  ISTHMUS_UNARY(MakePlan, request, PlanReply, plan_timeout);
}
absl::StatusOr<NewJobIdReply> Client::NewJobId(const NewJobIdRequest& request) {
  ISTHMUS_UNARY(NewJobId, request, NewJobIdReply, call_timeout);
}
absl::StatusOr<SubmitReply> Client::Submit(const SubmitRequest& request) {
  ISTHMUS_UNARY(Submit, request, SubmitReply, plan_timeout);
}
absl::StatusOr<ListJobsReply> Client::List() {
  ISTHMUS_UNARY(List, ListJobsRequest(), ListJobsReply, call_timeout);
}
absl::StatusOr<JobStatus> Client::Status(const JobStatusRequest& request) {
  ISTHMUS_UNARY(Status, request, JobStatus, call_timeout);
}
absl::StatusOr<StopJobReply> Client::Stop(const StopJobRequest& request) {
  ISTHMUS_UNARY(Stop, request, StopJobReply, call_timeout);
}
absl::StatusOr<ListNodesReply> Client::Nodes(int64_t* unix_ms, bool* insecure) {
  ListNodesReply reply;
  Call<State> call(state_.get(), state_->options.call_timeout);
  RETURN_IF_ERROR(state_->Named(state_->jobs->Nodes(call.context(), ListNodesRequest(), &reply)));
  const auto& headers = call.context()->GetServerInitialMetadata();
  if (insecure != nullptr) *insecure = headers.count(rpc::kInsecureHeader) > 0;
  if (unix_ms != nullptr) {
    const auto it = headers.find(rpc::kClockHeader);
    const bool told =
        it != headers.end() &&
        absl::SimpleAtoi(absl::string_view(it->second.data(), it->second.size()), unix_ms);
    if (!told) *unix_ms = 0;
  }
  return reply;
}
absl::StatusOr<TraceJobReply> Client::Trace(const TraceJobRequest& request) {
  ISTHMUS_UNARY(Trace, request, TraceJobReply, trace_timeout);
}
absl::StatusOr<PlanComparison> Client::ComparePlans(const PlanRequest& request) {
  const auto stub = Comparisons::NewStub(state_->channel);
  PlanComparison reply;
  Call<State> call(state_.get(), state_->options.plan_timeout);
  RETURN_IF_ERROR(
      state_->Named(stub->ComparePlans(call.context(), WithValidText(request), &reply)));
  return reply;
}
absl::StatusOr<AuditReply> Client::Audit(const AuditRequest& request) {
  const auto stub = Security::NewStub(state_->channel);
  AuditReply reply;
  Call<State> call(state_.get(), state_->options.call_timeout);
  RETURN_IF_ERROR(state_->Named(stub->Audit(call.context(), request, &reply)));
  return reply;
}
absl::StatusOr<DrainReply> Client::Drain(const DrainRequest& request) {
  ISTHMUS_UNARY(Drain, request, DrainReply, call_timeout);
}
absl::StatusOr<RemoveJobReply> Client::Remove(const RemoveJobRequest& request) {
  ISTHMUS_UNARY(Remove, request, RemoveJobReply, call_timeout);
}
absl::StatusOr<ListCheckpointsReply> Client::Checkpoints(const ListCheckpointsRequest& request) {
  ISTHMUS_UNARY(Checkpoints, request, ListCheckpointsReply, verify_timeout);
}
#undef ISTHMUS_UNARY

absl::Status Client::Watch(const WatchRequest& request,
                           const std::function<bool(const WatchReply&)>& take) {
  Call<State> call(state_.get(), state_->options.stream_timeout);
  auto stream = state_->jobs->Watch(call.context(), WithValidText(request));
  WatchReply reply;
  bool ended_here = false;
  while (!ended_here && stream->Read(&reply)) ended_here = !take(reply);
  if (ended_here) call.context()->TryCancel();
  const grpc::Status status = stream->Finish();
  return ended_here ? absl::OkStatus() : state_->Named(status);
}

absl::StatusOr<bool> Client::PutCheckpoint(
    const PutCheckpointHeader& header, const std::function<absl::Status(const TakePiece&)>& write,
    const std::function<void(int64_t)>& progress) {
  if (state_->bulk_channel == nullptr)
    state_->bulk_channel = rpc::MakeChannel(state_->options.address, state_->channel_options);
  const auto stub = Bulk::NewStub(state_->bulk_channel);
  Call<State> call(state_.get(), state_->options.bulk_timeout);
  PutCheckpointReply reply;
  auto stream = stub->PutCheckpoint(call.context(), &reply);
  PutCheckpointChunk chunk;
  *chunk.mutable_header() = header;
  bool open = stream->Write(chunk);
  int64_t sent = 0;
  const absl::Status read = !open ? absl::OkStatus() : write([&](absl::string_view piece) {
    chunk.set_data(piece.data(), piece.size());
    open = stream->Write(chunk);
    sent += static_cast<int64_t>(piece.size());
    if (progress) progress(sent);
    return open;
  });
  if (!read.ok()) call.context()->TryCancel();
  stream->WritesDone();
  const grpc::Status ended = stream->Finish();
  RETURN_IF_ERROR(read);
  RETURN_IF_ERROR(state_->Named(ended));
  return reply.complete();
}

absl::StatusOr<Client::Fetched> Client::FetchCheckpoint(
    const FetchCheckpointRequest& request, const std::string& path,
    const std::function<void(int64_t, int64_t)>& progress, const std::function<void(int)>& waits) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  if (!out)
    return absl::InternalError(absl::StrCat("can't write ", path, ": ", std::strerror(errno)));
  if (state_->bulk_channel == nullptr)
    state_->bulk_channel = rpc::MakeChannel(state_->options.address, state_->channel_options);
  const auto stub = Bulk::NewStub(state_->bulk_channel);
  Call<State> call(state_.get(), state_->options.bulk_timeout);
  auto stream = stub->FetchCheckpoint(call.context(), WithValidText(request));
  stream->WaitForInitialMetadata();
  const auto& metadata = call.context()->GetServerInitialMetadata();
  int before = 0;
  if (const auto it = metadata.find(coordinator::kWaitsBehind);
      waits && it != metadata.end() &&
      absl::SimpleAtoi(absl::string_view(it->second.data(), it->second.size()), &before)) {
    waits(before);
  }
  FetchCheckpointChunk chunk;
  Fetched fetched;
  int64_t total = -1;
  uint64_t checksum = 0;
  Hasher hasher;
  while (stream->Read(&chunk)) {
    if (total < 0) {
      total = chunk.total_bytes();
      fetched.step = chunk.step();
    }
    if (chunk.checksum() != 0) checksum = chunk.checksum();
    hasher.Update(chunk.data().data(), chunk.data().size());
    out.write(chunk.data().data(), static_cast<std::streamsize>(chunk.data().size()));
    fetched.bytes += static_cast<int64_t>(chunk.data().size());
    if (!out) {
      call.context()->TryCancel();
      stream->Finish();
      return absl::InternalError(absl::StrCat("can't write ", path, ": ", std::strerror(errno)));
    }
    if (progress) progress(fetched.bytes, total);
  }
  RETURN_IF_ERROR(state_->Named(stream->Finish()));
  out.close();
  if (!out)
    return absl::InternalError(absl::StrCat("can't write ", path, ": ", std::strerror(errno)));
  if (fetched.bytes != total || hasher.Digest() != checksum) {
    return absl::DataLossError(absl::StrCat("the ", request.what(), " of ", request.job_id(),
                                            " arrived damaged: ", fetched.bytes, " of ", total,
                                            " bytes, or another checksum; run the command again"));
  }
  return fetched;
}

}  // namespace isthmus::cli
