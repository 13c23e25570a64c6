#include "daemon/checkpoint_client.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/cure.h"
#include "base/file/durable_file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/rpc/channel.h"
#include "base/rpc/tls_identity.h"
#include "base/safetensors.h"
#include "base/status.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "proto/control_service.grpc.pb.h"
#include "proto/peer_service.grpc.pb.h"
#include "proto/valid_text.h"

namespace isthmus::daemon {
namespace {

constexpr absl::Duration kDialAgain = absl::Minutes(10);
constexpr int64_t kChunkBytes = 64 << 10;  // each one that has gone is progress
constexpr size_t kPieceBytes = 4 << 20;    // that is read of a part at once

rpc::ChannelOptions BulkChannel(const CheckpointClientOptions& options) {
  rpc::ChannelOptions channel = options.buddy_id.empty()
                                    ? rpc::ToCoordinator(options.dialling)
                                    : rpc::ToNode(options.dialling, options.buddy_id);
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

const LocalPart* Find(const std::vector<LocalPart>& parts, int stage, const std::string& file) {
  for (const LocalPart& part : parts) {
    if (part.stage() == stage && part.file() == file) return &part;
  }
  return nullptr;
}

// Whether the tensors `names` are in `own` and `tied` (may be null); `both`: not in `own` alone.
bool HoldTensors(const ByteSource& own, const ByteSource* tied,
                 const google::protobuf::RepeatedPtrField<std::string>& names, bool* both) {
  const auto mine = ReadSafetensorsPlaces(own);
  if (!mine.ok()) return false;
  std::map<std::string, SafetensorsPlace> others;
  if (tied != nullptr) {
    auto places = ReadSafetensorsPlaces(*tied);
    if (places.ok()) others = *std::move(places);
  }
  for (const std::string& name : names) {
    if (mine->count(name) > 0) continue;
    if (others.count(name) == 0) return false;
    *both = true;
  }
  return true;
}

}  // namespace

struct CheckpointClient::Transfer {
  int64_t best = 0;  // bytes that an attempt moved
  absl::Time advanced = SteadyNow();
  bool over = false;  // what is sent can't be read, or what comes not be stored
};

struct CheckpointClient::Answer {
  bool use_local = false;
  std::unique_ptr<ScratchFile> file;
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
      channel_(rpc::MakeChannel(options_.coordinator, BulkChannel(options_))),
      dialled_(SteadyNow()) {}

// With TLS one that is not old: it shows the certificate that was current when it was made.
std::shared_ptr<grpc::Channel> CheckpointClient::Channel() {
  MutexLock lock(&mutex_);
  if (options_.dialling.tls != nullptr && SteadyNow() - dialled_ > kDialAgain) {
    channel_ = rpc::MakeChannel(options_.coordinator, BulkChannel(options_));
    dialled_ = SteadyNow();
  }
  return channel_;
}

std::string CheckpointClient::Whom() const {
  return absl::StrCat(options_.buddy_id.empty() ? "coordinator " : "buddy ", options_.coordinator);
}

void CheckpointClient::Cancel(const absl::Status& why) {
  MutexLock lock(&mutex_);
  if (cancelled_.ok()) cancelled_ = why;
  stopped_.store(true, std::memory_order_release);
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

bool CheckpointClient::AwaitTurn(int64_t bytes) const {
  if (options_.uplink == nullptr) return true;
  return options_.uplink->Pass(Lane::kCopy, bytes,
                               [this] { return stopped_.load(std::memory_order_acquire); });
}

// Its callers know `what`, and say it: the log needs it.
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
    if (transfer.over || !WorthAnotherTry(status) ||
        SteadyNow() + delay >= transfer.advanced + options_.give_up_after) {
      return Annotate(status, absl::StrCat(Whom(), ", attempt ", failures));
    }
    if (failures == 1) LogWarning(what, " at ", Whom(), ": ", status.ToString(), "; trying again");
    const auto until = SteadyAfter(delay);
    while (cancelled_.ok() && changed_.WaitUntil(&mutex_, until)) {
    }
  }
}

absl::Status CheckpointClient::Put(const PutCheckpointHeader& header, const ByteSource& part) {
  return Retry(absl::StrCat("storing ", header.file(), " of step ", header.step(), ", stage ",
                            header.stage()),
               [&](Transfer* transfer) { return PutOnce(header, part, transfer); });
}

absl::StatusOr<worker::KeptFile> CheckpointClient::Keep(const PutCheckpointHeader& header,
                                                        const ByteSource& part) {
  if (options_.parts == nullptr) return absl::FailedPreconditionError("this host keeps no parts");
  return options_.parts->Keep(header, part);
}

// Before anything of a checkpoint goes there, or is taken.
absl::Status CheckpointClient::CheckServer(const grpc::ClientContext& context) const {
  const auto& tls = options_.dialling.tls;
  return tls == nullptr ? absl::OkStatus() : tls->CheckServer(context);
}

absl::Status CheckpointClient::PutOnce(const PutCheckpointHeader& header, const ByteSource& part,
                                       Transfer* transfer) {
  RETURN_IF_ERROR(rpc::CheckPeer(options_.coordinator, options_.dialling));
  Call call(this);
  PutCheckpointReply reply;
  const auto writer = options_.buddy_id.empty()
                          ? Bulk::NewStub(Channel())->PutCheckpoint(call.context(), &reply)
                          : Peer::NewStub(Channel())->KeepPart(call.context(), &reply);
  PutCheckpointChunk chunk;
  *chunk.mutable_header() = WithValidText(header);
  chunk.mutable_header()->set_to_node_id(options_.buddy_id);
  bool ok = writer->Write(chunk);
  const int64_t chunk_bytes = options_.uplink == nullptr
                                  ? kChunkBytes
                                  : options_.uplink->ChunkBytes(Lane::kCopy, kChunkBytes);
  int64_t sent = 0;
  absl::Status unread = ok ? CheckServer(*call.context()) : absl::OkStatus();
  if (ok && unread.ok()) {
    unread = ForEachPiece(part, kPieceBytes, [&](absl::string_view piece) {
      for (; ok && !piece.empty(); piece.remove_prefix(chunk.data().size())) {
        call.Touch();
        chunk.set_data(std::string(piece.substr(0, static_cast<size_t>(chunk_bytes))));
        ok = AwaitTurn(chunk_bytes) && writer->Write(chunk);
        sent += static_cast<int64_t>(chunk.data().size());
        if (ok) Advance(transfer, sent);
      }
      return ok ? absl::OkStatus() : absl::CancelledError("the call has ended");
    });
  }
  call.Touch();
  if (ok && !unread.ok()) {
    transfer->over = true;
    call.context()->TryCancel();
    writer->Finish().IgnoreError();
    return unread;
  }
  writer->WritesDone();
  const absl::Status status = rpc::FromGrpc(writer->Finish());
  if (!absl::IsDataLoss(status)) return status;
  const absl::StatusOr<uint64_t> now = HashOf(part);
  if (now.ok() && *now == header.checksum()) return status;  // damaged on its way
  transfer->over = true;
  return absl::DataLossError(
      absl::StrCat("what this host keeps of it is not what was written, its disk may be failing: ",
                   now.ok() ? status.message() : now.status().message()));
}

absl::StatusOr<worker::FetchedFiles> CheckpointClient::Fetch(
    const FetchCheckpointRequest& request) {
  FetchCheckpointRequest asked = request;
  worker::FetchedFiles here = FromHere(&asked);
  Answer answer;
  RETURN_IF_ERROR(Retry(absl::StrCat("fetching ", request.what(), " of step ", request.step()),
                        [&](Transfer* transfer) { return FetchOnce(asked, transfer, &answer); }));
  if (!answer.use_local) {
    here.clear();
    here.push_back(std::move(answer.file));
    return here;
  }
  if (here.empty()) {
    return absl::InternalError(absl::StrCat("the coordinator ", options_.coordinator, " takes ",
                                            request.what(), " of step ", request.step(),
                                            " to be on this disk, which nobody said"));
  }
  LogInfo(request.what(), " of checkpoint ", request.step(),
          " taken from this host's own disk: the coordinator has the same");
  return here;
}

// What is asked for as this disk has it, if all of it is there and sound; then `request` says so.
// It is in this host's own part, or in one that it keeps a copy of. The tied embedding is that of
// the weights that the coordinator compares, by its name.
worker::FetchedFiles CheckpointClient::FromHere(FetchCheckpointRequest* request) {
  worker::FetchedFiles files;
  if (options_.parts == nullptr || request->step() < 0) return files;
  const std::vector<LocalPart> parts = options_.parts->Parts(request->job_id(), request->step());
  const int replica = request->what() == "weights" ? 0 : request->replica();
  for (const LocalPart& own : parts) {
    if (own.file() != FileOf(request->what()) || own.replica() != replica) continue;
    files = FromPart(own, parts, *request);
    if (files.empty()) continue;
    *request->add_have() = own;
    break;
  }
  return files;
}

worker::FetchedFiles CheckpointClient::FromPart(const LocalPart& own,
                                                const std::vector<LocalPart>& parts,
                                                const FetchCheckpointRequest& request) {
  const LocalPart* weights = Find(parts, own.stage(), FileOf("weights"));
  const LocalPart* tied = weights == nullptr
                              ? nullptr
                              : Find(parts, own.stage(), worker::TiedFile(weights->checksum()));
  const auto open = [&](const LocalPart* part) -> std::unique_ptr<ByteSource> {
    if (part == nullptr) return nullptr;
    auto opened = options_.parts->Open(request.job_id(), request.step(), *part);
    if (opened.ok()) return *std::move(opened);
    LogWarning("what this host kept of checkpoint ", request.step(),
               " is of no use, it is fetched: ", opened.status().message());
    return nullptr;
  };
  worker::FetchedFiles files;
  std::unique_ptr<ByteSource> mine = open(&own), theirs;
  if (mine == nullptr) return files;
  bool both = false;
  if (request.what() != "state") {
    theirs = open(tied);
    if (!HoldTensors(*mine, theirs.get(), request.tensors(), &both)) return files;
  }
  files.push_back(std::move(mine));
  if (both) files.push_back(std::move(theirs));
  return files;
}

// A file for an answer of so many bytes.
absl::Status CheckpointClient::TakeFirst(int64_t total, std::unique_ptr<ScratchFile>* file) const {
  ASSIGN_OR_RETURN(*file, ScratchFile::Create(options_.scratch_dir));
  const int64_t room = std::max<int64_t>(0, FreeBytes(options_.scratch_dir) - options_.free_bytes);
  if (total >= 0 && total <= room) return absl::OkStatus();
  return WithCure(absl::ResourceExhaustedError(
      absl::StrCat("the answer has ", total, " bytes, and this host has room for ", room, " in ",
                   options_.scratch_dir, ", where it is put: free some disk there")));
}

absl::Status CheckpointClient::FetchOnce(const FetchCheckpointRequest& request, Transfer* transfer,
                                         Answer* answer) {
  *answer = Answer();
  Call call(this);
  const auto reader =
      Bulk::NewStub(Channel())->FetchCheckpoint(call.context(), WithValidText(request));
  FetchCheckpointChunk chunk;
  int64_t total = -1;
  uint64_t checksum = 0;
  Hasher hasher;
  absl::Status bad, full;
  while (bad.ok() && full.ok() && reader->Read(&chunk)) {
    call.Touch();
    if (total < 0) {
      full = CheckServer(*call.context());
      if (!full.ok()) break;
    }
    if (total < 0) {
      answer->use_local = chunk.use_local();
      total = chunk.total_bytes();
      if (answer->use_local) continue;
      full = TakeFirst(total, &answer->file);
      if (!full.ok()) break;
    }
    if (answer->file == nullptr) {
      bad = absl::DataLossError("the answer has bytes, though this host has the file");
      break;
    }
    const int64_t have = answer->file->bytes();
    if (have + static_cast<int64_t>(chunk.data().size()) > total) {
      bad = absl::DataLossError("the answer is longer than announced");
    } else {
      full = answer->file->Append(chunk.data());
      hasher.Update(chunk.data().data(), chunk.data().size());
    }
    Advance(transfer, answer->file->bytes());
    checksum = chunk.checksum();
  }
  if (!bad.ok() || !full.ok()) call.context()->TryCancel();
  const absl::Status status = rpc::FromGrpc(reader->Finish());
  transfer->over = !full.ok();
  RETURN_IF_ERROR(full);
  RETURN_IF_ERROR(bad);
  RETURN_IF_ERROR(status);
  if (answer->use_local) return absl::OkStatus();
  const int64_t have = answer->file == nullptr ? 0 : answer->file->bytes();
  if (total < 0 || have != total) {
    return absl::DataLossError(
        absl::StrCat("the answer has ", have, " of ", std::max<int64_t>(total, 0), " bytes"));
  }
  if (checksum != hasher.Digest()) return absl::DataLossError("the answer's checksum is wrong");
  return absl::OkStatus();
}

}  // namespace isthmus::daemon
