#include "daemon/checkpoint_client.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/rpc/channel.h"
#include "base/status.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "proto/control_service.grpc.pb.h"
#include "proto/valid_text.h"

namespace isthmus::daemon {
namespace {

constexpr size_t kChunkBytes = 256 << 10;

rpc::ChannelOptions BulkChannel(const CheckpointClientOptions& options) {
  rpc::ChannelOptions channel;
  channel.use_proxy = options.use_proxy;
  channel.max_backoff = options.backoff.cap;
  return channel;
}

// Faults of the way, not of the request. DataLoss: a transfer that arrived damaged.
bool WorthAnotherTry(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsAborted(status) || absl::IsDataLoss(status) || absl::IsCancelled(status);
}

}  // namespace

// A call that Cancel can end, and that ends by itself without progress.
class CheckpointClient::Call {
 public:
  explicit Call(CheckpointClient* client)
      : client_(client), watch_(client->options_.watchdog, client->options_.no_progress, [this] {
          context_.TryCancel();
        }) {
    MutexLock lock(&client_->mutex_);
    client_->running_.insert(&context_);
    if (!client_->cancelled_.ok()) context_.TryCancel();
  }
  ~Call() {
    MutexLock lock(&client_->mutex_);
    client_->running_.erase(&context_);
  }
  grpc::ClientContext* context() { return &context_; }
  void Touch() { watch_.Touch(); }

 private:
  CheckpointClient* const client_;
  grpc::ClientContext context_;
  Watchdog::Watch watch_;
};

CheckpointClient::CheckpointClient(CheckpointClientOptions options)
    : options_(std::move(options)),
      channel_(rpc::MakeChannel(options_.coordinator, BulkChannel(options_))) {}

void CheckpointClient::Cancel(const absl::Status& why) {
  MutexLock lock(&mutex_);
  if (cancelled_.ok()) cancelled_ = why;
  for (grpc::ClientContext* context : running_) context->TryCancel();
  changed_.SignalAll();
}

template <typename F>
absl::Status CheckpointClient::Retry(const std::string& what, F attempt) {
  const absl::Time give_up = SteadyNow() + options_.give_up_after;
  for (int failures = 1;; ++failures) {
    {
      MutexLock lock(&mutex_);
      if (!cancelled_.ok()) return cancelled_;
    }
    const absl::Status status = attempt();
    if (status.ok()) return status;
    const absl::Duration delay = BackoffDelay(options_.backoff, failures, options_.seed);
    MutexLock lock(&mutex_);
    if (!cancelled_.ok()) return cancelled_;
    if (!WorthAnotherTry(status) || SteadyNow() + delay >= give_up) {
      return Annotate(status, absl::StrCat(what, " at the coordinator ", options_.coordinator,
                                           ", attempt ", failures));
    }
    if (failures == 1)
      LogWarning(what, " at the coordinator ", options_.coordinator, ": ", status.ToString(),
                 "; trying again");
    const auto until = SteadyAfter(delay);
    while (cancelled_.ok() && changed_.WaitUntil(&mutex_, until)) {
    }
  }
}

absl::Status CheckpointClient::Put(const PutCheckpointHeader& header, absl::string_view bytes) {
  PutCheckpointHeader full = header;
  full.set_file_bytes(static_cast<int64_t>(bytes.size()));
  full.set_checksum(Hash64(bytes));
  return Retry(absl::StrCat("storing ", header.file(), " of step ", header.step(), ", stage ",
                            header.stage()),
               [&] { return PutOnce(full, bytes); });
}

absl::Status CheckpointClient::PutOnce(const PutCheckpointHeader& header, absl::string_view bytes) {
  Call call(this);
  PutCheckpointReply reply;
  const auto writer = Bulk::NewStub(channel_)->PutCheckpoint(call.context(), &reply);
  PutCheckpointChunk chunk;
  *chunk.mutable_header() = WithValidText(header);
  bool ok = writer->Write(chunk);
  for (size_t at = 0; ok && at < bytes.size(); at += kChunkBytes) {
    call.Touch();
    chunk.set_data(std::string(bytes.substr(at, kChunkBytes)));
    ok = writer->Write(chunk);
  }
  call.Touch();
  writer->WritesDone();
  return rpc::FromGrpc(writer->Finish());
}

absl::StatusOr<std::string> CheckpointClient::Fetch(const FetchCheckpointRequest& request) {
  std::string bytes;
  RETURN_IF_ERROR(Retry(absl::StrCat("fetching ", request.what(), " of step ", request.step()),
                        [&] { return FetchOnce(request, &bytes); }));
  return bytes;
}

absl::Status CheckpointClient::FetchOnce(const FetchCheckpointRequest& request,
                                         std::string* bytes) {
  bytes->clear();
  Call call(this);
  const auto reader =
      Bulk::NewStub(channel_)->FetchCheckpoint(call.context(), WithValidText(request));
  FetchCheckpointChunk chunk;
  int64_t total = -1;
  uint64_t checksum = 0;
  absl::Status bad;
  while (bad.ok() && reader->Read(&chunk)) {
    call.Touch();
    if (total < 0) {
      total = chunk.total_bytes();
      if (total < 0 || total > options_.max_fetch_bytes) {
        bad = absl::ResourceExhaustedError(absl::StrCat("the answer has ", total,
                                                        " bytes; this daemon takes at most ",
                                                        options_.max_fetch_bytes));
        break;
      }
      bytes->reserve(static_cast<size_t>(total));
    }
    if (bytes->size() + chunk.data().size() > static_cast<size_t>(total))
      bad = absl::DataLossError("the answer is longer than announced");
    if (bad.ok()) bytes->append(chunk.data());
    checksum = chunk.checksum();
  }
  if (!bad.ok()) call.context()->TryCancel();
  const absl::Status status = rpc::FromGrpc(reader->Finish());
  RETURN_IF_ERROR(bad);
  RETURN_IF_ERROR(status);
  if (total < 0 || bytes->size() != static_cast<size_t>(total)) {
    return absl::DataLossError(absl::StrCat("the answer has ", bytes->size(), " of ",
                                            std::max<int64_t>(total, 0), " bytes"));
  }
  if (checksum != Hash64(*bytes)) return absl::DataLossError("the answer's checksum is wrong");
  return absl::OkStatus();
}

}  // namespace isthmus::daemon
