#include "daemon/checkpoint_client.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/rpc/channel.h"
#include "base/safetensors.h"
#include "base/status.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "proto/control_service.grpc.pb.h"
#include "proto/valid_text.h"

namespace isthmus::daemon {
namespace {

constexpr size_t kChunkBytes = 64 << 10;  // each one that has gone is progress

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

std::string FileOf(const std::string& what) {
  return what == "state" ? "state.json" : what + ".safetensors";
}

const LocalPart* Find(const std::vector<LocalPart>& parts, const std::string& file) {
  for (const LocalPart& part : parts) {
    if (part.file() == file) return &part;
  }
  return nullptr;
}

// One file with the tensors `names` of `own` and `tied` (may be empty); nothing if one is missing.
absl::optional<std::string> Merge(std::string own, const std::string& tied,
                                  const google::protobuf::RepeatedPtrField<std::string>& names) {
  const auto mine = ParseSafetensors(own), others = ParseSafetensors(tied);
  if (!mine.ok()) return absl::nullopt;
  bool all_mine = true;
  std::vector<SafetensorsItem> items;
  for (const std::string& name : names) {
    auto found = mine->find(name);
    if (found == mine->end()) {
      all_mine = false;
      if (!others.ok() || (found = others->find(name)) == others->end()) return absl::nullopt;
    }
    const SafetensorsEntry& entry = found->second;
    items.push_back({name, entry.dtype, entry.shape, entry.data});
  }
  if (all_mine) return own;
  absl::StatusOr<std::string> merged = WriteSafetensors(std::move(items), {});
  if (!merged.ok()) return absl::nullopt;
  return *std::move(merged);
}

}  // namespace

struct CheckpointClient::Transfer {
  int64_t best = 0;  // bytes that an attempt moved
  absl::Time advanced = SteadyNow();
};

struct CheckpointClient::Answer {
  bool use_local = false;
  std::string bytes;
};

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

int64_t CheckpointClient::bytes_moved() const {
  MutexLock lock(&mutex_);
  return moved_;
}

// An attempt has moved `bytes` so far. Only what no attempt before it had moved counts: a path that
// breaks again and again at the same place gets nowhere.
void CheckpointClient::Advance(Transfer* transfer, int64_t bytes) {
  if (bytes <= transfer->best) return;
  MutexLock lock(&mutex_);
  moved_ += bytes - transfer->best;
  transfer->best = bytes;
  transfer->advanced = SteadyNow();
}

template <typename F>
absl::Status CheckpointClient::Retry(const std::string& what, F attempt) {
  Transfer transfer;
  for (int failures = 1;; ++failures) {
    {
      MutexLock lock(&mutex_);
      if (!cancelled_.ok()) return cancelled_;
    }
    const absl::Status status = attempt(&transfer);
    if (status.ok()) return status;
    const absl::Duration delay = BackoffDelay(options_.backoff, failures, options_.seed);
    MutexLock lock(&mutex_);
    if (!cancelled_.ok()) return cancelled_;
    if (!WorthAnotherTry(status) ||
        SteadyNow() + delay >= transfer.advanced + options_.give_up_after) {
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
  return Retry(absl::StrCat("storing ", header.file(), " of step ", header.step(), ", stage ",
                            header.stage()),
               [&](Transfer* transfer) { return PutOnce(header, bytes, transfer); });
}

void CheckpointClient::Keep(const PutCheckpointHeader& header, absl::string_view bytes) {
  if (options_.parts == nullptr) return;
  const absl::Status kept = options_.parts->Keep(header, bytes);
  if (kept.ok()) return;
  LogInfo(header.file(), " of checkpoint ", header.step(), " is not kept on this host (",
          kept.message(), "): a resume fetches it from the coordinator");
}

absl::Status CheckpointClient::PutOnce(const PutCheckpointHeader& header, absl::string_view bytes,
                                       Transfer* transfer) {
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
    if (ok) Advance(transfer, static_cast<int64_t>(at + chunk.data().size()));
  }
  call.Touch();
  writer->WritesDone();
  return rpc::FromGrpc(writer->Finish());
}

absl::StatusOr<std::string> CheckpointClient::Fetch(const FetchCheckpointRequest& request) {
  FetchCheckpointRequest asked = request;
  absl::optional<std::string> here = FromHere(&asked);
  Answer answer;
  RETURN_IF_ERROR(Retry(absl::StrCat("fetching ", request.what(), " of step ", request.step()),
                        [&](Transfer* transfer) { return FetchOnce(asked, transfer, &answer); }));
  if (!answer.use_local) return std::move(answer.bytes);
  if (!here.has_value()) {
    return absl::InternalError(absl::StrCat("the coordinator ", options_.coordinator, " takes ",
                                            request.what(), " of step ", request.step(),
                                            " to be on this disk, which nobody said"));
  }
  LogInfo(request.what(), " of checkpoint ", request.step(),
          " is taken from this host's own disk: the coordinator's is the same");
  return *std::move(here);
}

// What is asked for as this disk has it, if all of it is there and sound; then `request` says so.
// The tied embedding is that of the weights that the coordinator compares, by its name.
absl::optional<std::string> CheckpointClient::FromHere(FetchCheckpointRequest* request) {
  if (options_.parts == nullptr || request->step() < 0) return absl::nullopt;
  const std::vector<LocalPart> parts = options_.parts->Parts(request->job_id(), request->step());
  const LocalPart* own = Find(parts, FileOf(request->what()));
  const LocalPart* weights = Find(parts, FileOf("weights"));
  const LocalPart* tied =
      weights == nullptr ? nullptr : Find(parts, worker::TiedFile(weights->checksum()));
  if (own == nullptr) return absl::nullopt;
  const auto read = [&](const LocalPart* part) {
    absl::StatusOr<std::string> bytes =
        options_.parts->Read(request->job_id(), request->step(), *part);
    if (bytes.ok()) return absl::optional<std::string>(*std::move(bytes));
    LogWarning("what this host kept of checkpoint ", request->step(),
               " is of no use, it is fetched: ", bytes.status().message());
    return absl::optional<std::string>();
  };
  absl::optional<std::string> bytes = read(own);
  if (bytes.has_value() && request->what() != "state")
    bytes = Merge(*std::move(bytes), tied == nullptr ? "" : read(tied).value_or(""),
                  request->tensors());
  if (bytes.has_value()) *request->add_have() = *own;
  return bytes;
}

absl::Status CheckpointClient::FetchOnce(const FetchCheckpointRequest& request, Transfer* transfer,
                                         Answer* answer) {
  *answer = Answer();
  std::string* const bytes = &answer->bytes;
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
      answer->use_local = chunk.use_local();
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
    Advance(transfer, static_cast<int64_t>(bytes->size()));
    checksum = chunk.checksum();
  }
  if (!bad.ok()) call.context()->TryCancel();
  const absl::Status status = rpc::FromGrpc(reader->Finish());
  RETURN_IF_ERROR(bad);
  RETURN_IF_ERROR(status);
  if (answer->use_local) return absl::OkStatus();
  if (total < 0 || bytes->size() != static_cast<size_t>(total)) {
    return absl::DataLossError(absl::StrCat("the answer has ", bytes->size(), " of ",
                                            std::max<int64_t>(total, 0), " bytes"));
  }
  if (checksum != Hash64(*bytes)) return absl::DataLossError("the answer's checksum is wrong");
  return absl::OkStatus();
}

}  // namespace isthmus::daemon
