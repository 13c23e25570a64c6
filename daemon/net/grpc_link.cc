#include "daemon/net/grpc_link.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "daemon/net/link_error.h"

namespace isthmus::daemon {
namespace {

constexpr size_t kGrpcPrefixBytes = 5;
constexpr size_t kHttp2FrameBytes = 16384;  // gRPC's default largest DATA frame
constexpr size_t kHttp2HeaderBytes = 9;

constexpr int64_t kMaxStashedPayload = 64 << 20;  // where Receive was never called

// A peer that says why it ends does so right before or after its writes fail.
constexpr std::chrono::milliseconds kReasonWait{300};

// A first chunk that takes longer to read was not here yet, and so were those after it.
constexpr std::chrono::milliseconds kWaited{1};

int64_t WireBytes(const LinkChunk& chunk) {
  const size_t message = chunk.ByteSizeLong() + kGrpcPrefixBytes;
  const size_t frames = (message + kHttp2FrameBytes - 1) / kHttp2FrameBytes;
  return static_cast<int64_t>(message + frames * kHttp2HeaderBytes);
}

}  // namespace

GrpcLink::GrpcLink(const GrpcLinkOptions& options, std::unique_ptr<LinkStream> stream)
    : options_(options), stream_(std::move(stream)), assembler_(options_.receive_chunk_bytes) {}

GrpcLink::~GrpcLink() {
  Cancel(absl::CancelledError("the link was dropped"));
  std::thread goodbye;
  absl::Status mine;
  bool end = false;
  {
    MutexLock lock(&mutex_);
    goodbye.swap(goodbye_);
  }
  if (goodbye.joinable()) goodbye.join();
  {
    MutexLock lock(&mutex_);
    end = !ended_;
    ended_ = true;
    mine = error_;
  }
  if (end) stream_->End(mine).IgnoreError();
}

absl::Status GrpcLink::BeginWrite() {
  MutexLock lock(&mutex_);
  while (error_.ok() && writing_)
    changed_.Wait(&mutex_);  // only if the caller has two sending threads
  if (!error_.ok()) return error_;
  if (end_sent_) return absl::FailedPreconditionError("Send after Finish");
  writing_ = true;
  return absl::OkStatus();
}

void GrpcLink::EndWrite() {
  MutexLock lock(&mutex_);
  writing_ = false;
  changed_.SignalAll();
}

absl::StatusOr<absl::optional<worker::Frame>> GrpcLink::BeginRead(absl::Duration timeout) {
  const auto deadline = SteadyAfter(timeout);
  MutexLock lock(&mutex_);
  while (error_.ok() || !stash_.empty()) {
    if (!stash_.empty()) {
      absl::optional<worker::Frame> frame = std::move(stash_.front());
      stash_.pop_front();
      changed_.SignalAll();
      return frame;
    }
    if (end_received_) break;
    if (!reading_) {
      reading_ = true;
      return absl::optional<worker::Frame>();
    }
    if (!changed_.WaitUntil(&mutex_, deadline)) return Expired("receiving", timeout);
  }
  if (end_received_) return absl::OutOfRangeError("the peer has finished");
  return error_;
}

// `result` of the reading: OutOfRange is the peer's end.
absl::Status GrpcLink::EndRead(const absl::Status& result) {
  MutexLock lock(&mutex_);
  if (absl::IsOutOfRange(result)) end_received_ = true;
  reading_ = false;
  changed_.SignalAll();
  return error_;
}

bool GrpcLink::WriteChunk(const LinkChunk& chunk) {
  if (!stream_->Write(chunk)) return false;
  wire_bytes_.fetch_add(WireBytes(chunk), std::memory_order_relaxed);
  return true;
}

bool GrpcLink::WriteInTurn(Lane lane, const LinkChunk& chunk) {
  if (options_.uplink != nullptr &&
      !options_.uplink->Pass(lane, WireBytes(chunk), [this] { return failed(); }))
    return false;
  return WriteChunk(chunk);
}

absl::Status GrpcLink::Expired(absl::string_view what, absl::Duration timeout) const {
  return absl::DeadlineExceededError(
      absl::StrCat("no progress for ", absl::FormatDuration(timeout), " ", what));
}

absl::Status GrpcLink::Send(worker::Frame frame, absl::Duration timeout) {
  if (frame.header.payload_bytes() != frame.payload.size()) {
    return absl::InvalidArgumentError(absl::StrCat("a header says ", frame.header.payload_bytes(),
                                                   " bytes for a payload of ",
                                                   frame.payload.size()));
  }
  if (frame.header.ByteSizeLong() > kMaxHeaderBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a frame's header exceeds ", kMaxHeaderBytes, " bytes"));
  }
  RETURN_IF_ERROR(BeginWrite());
  bool ok = true;
  {
    Watchdog::Watch watch(options_.watchdog, timeout,
                          [this, timeout] { Fail(Expired("sending", timeout)).IgnoreError(); });
    const Lane lane = LaneOf(frame.header);
    FrameCutter cutter(std::move(frame),
                       options_.uplink == nullptr
                           ? options_.send_chunk_bytes
                           : options_.uplink->ChunkBytes(lane, options_.send_chunk_bytes));
    LinkChunk chunk;
    while (ok && cutter.Next(&chunk)) {
      ok = !failed() && WriteInTurn(lane, chunk);
      watch.Touch();
    }
  }
  EndWrite();
  return ok ? absl::OkStatus() : WriteFailed();
}

absl::Status GrpcLink::WriteFailed() {
  {
    // If the receiving thread is about to read the peer's reason, that is the better error.
    const auto deadline = std::chrono::steady_clock::now() + kReasonWait;
    MutexLock lock(&mutex_);
    while (error_.ok() && reading_ && changed_.WaitUntil(&mutex_, deadline)) {
    }
    if (!error_.ok()) return error_;
  }
  return Fail(stream_->WhyBroken());
}

// Until a frame is whole. OutOfRange: the peer's end.
absl::StatusOr<worker::Frame> GrpcLink::ReadFrame(int64_t max_payload_bytes,
                                                  Watchdog::Watch* watch) {
  LinkChunk chunk;
  const auto asked = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point begun;
  int64_t mended = 0;       // by then
  int64_t later_bytes = 0;  // after the first chunk, which may hold the whole frame
  while (stream_->Read(&chunk)) {
    if (watch != nullptr) watch->Touch();
    if (assembler_.in_frame()) {
      later_bytes += WireBytes(chunk);
    } else {
      begun = std::chrono::steady_clock::now();
      mended = stream_->mended();
    }
    switch (chunk.what_case()) {
      case LinkChunk::kError:
        return ErrorOf(chunk);
      case LinkChunk::kEnd:
        if (assembler_.in_frame())
          return absl::InvalidArgumentError("the peer finished in the middle of a frame");
        return absl::OutOfRangeError("the peer has finished");
      case LinkChunk::kHello:
        return absl::InvalidArgumentError("the peer sent a second hello");
      default: {
        ASSIGN_OR_RETURN(const bool whole, assembler_.Add(std::move(chunk), max_payload_bytes));
        if (!whole) break;
        worker::Frame frame = assembler_.Take();
        frame.begun = begun;
        const bool even = stream_->mended() == mended;  // no outage lies within it
        if (even && later_bytes > 0 && begun - asked >= kWaited) {
          frame.train_bytes = later_bytes;
          frame.train_time = std::chrono::steady_clock::now() - begun;
        }
        return frame;
      }
    }
  }
  return stream_->WhyBroken();
}

absl::StatusOr<worker::Frame> GrpcLink::Receive(int64_t max_payload_bytes, absl::Duration timeout) {
  ASSIGN_OR_RETURN(absl::optional<worker::Frame> ready, BeginRead(timeout));
  if (ready.has_value()) return *std::move(ready);
  {
    MutexLock lock(&mutex_);
    max_payload_bytes_ = std::max(max_payload_bytes_, max_payload_bytes);
  }
  absl::StatusOr<worker::Frame> frame;
  {
    Watchdog::Watch watch(options_.watchdog, timeout,
                          [this, timeout] { Fail(Expired("receiving", timeout)).IgnoreError(); });
    frame = ReadFrame(max_payload_bytes, &watch);
  }
  absl::Status status = frame.status();
  if (!status.ok() && !absl::IsOutOfRange(status)) status = Fail(status);
  const absl::Status error = EndRead(status);
  if (!status.ok()) return status;
  if (!error.ok()) return error;
  return frame;
}

absl::Status GrpcLink::Fail(const absl::Status& why) {
  MutexLock lock(&mutex_);
  if (!error_.ok()) return error_;
  if (ended_) return absl::CancelledError("done");
  error_ = Reword(why, why.message().substr(0, kMaxReasonBytes));
  failed_.store(true, std::memory_order_release);
  changed_.SignalAll();
  if (stream_->kill_tells_why()) {
    stream_->Kill(error_);
  } else {
    goodbye_ = std::thread([this] { SayGoodbye(); });
  }
  return error_;
}

void GrpcLink::Cancel(absl::Status why) { Fail(std::move(why)).IgnoreError(); }

// The dialling end can't put a reason into the breaking of a call, so it writes it as the last
// message, if the window lets it, and gives the peer time to answer. Then the call is broken in any
// case.
void GrpcLink::SayGoodbye() {
  const auto deadline = SteadyAfter(options_.goodbye);
  LinkChunk last;
  bool write = false;
  bool read = false;
  {
    MutexLock lock(&mutex_);
    last = ErrorChunk(error_);
    while (writing_ && changed_.WaitUntil(&mutex_, deadline)) {
    }
    write = !writing_ && !end_sent_;
    if (write) writing_ = true;
  }
  Watchdog::Watch watch(options_.watchdog,
                        absl::FromChrono(deadline - std::chrono::steady_clock::now()),
                        [this] { stream_->Kill(absl::CancelledError("")); });
  if (write) {
    write = WriteChunk(last);
    EndWrite();
  }
  if (write) {
    MutexLock lock(&mutex_);
    while (reading_ && changed_.WaitUntil(&mutex_, deadline)) {
    }
    read = !reading_;
    reading_ = reading_ || read;
  }
  if (read) {
    LinkChunk ignored;
    while (stream_->Read(&ignored)) {
    }
    EndRead(absl::OkStatus()).IgnoreError();
  }
  stream_->Kill(absl::CancelledError(""));
}

// Until the peer's end was read: by the receiving thread, or here if that is not reading. The watch
// of Finish bounds it.
absl::Status GrpcLink::DrainPeer() {
  while (true) {
    int64_t max_payload_bytes = 0;
    {
      MutexLock lock(&mutex_);
      while (error_.ok() && !end_received_ && (reading_ || stash_.size() >= kMaxStash))
        changed_.Wait(&mutex_);
      if (!error_.ok()) return error_;
      if (end_received_) return absl::OkStatus();
      reading_ = true;
      max_payload_bytes = max_payload_bytes_ > 0 ? max_payload_bytes_ : kMaxStashedPayload;
    }
    absl::StatusOr<worker::Frame> frame = ReadFrame(max_payload_bytes, nullptr);
    absl::Status status = frame.status();
    if (!status.ok() && !absl::IsOutOfRange(status)) status = Fail(status);
    if (status.ok()) {
      MutexLock lock(&mutex_);
      stash_.push_back(*std::move(frame));
    }
    EndRead(status).IgnoreError();
  }
}

absl::Status GrpcLink::Finish(absl::Duration timeout) {
  RETURN_IF_ERROR(BeginWrite());
  // No Touch: the whole of it has this time.
  Watchdog::Watch watch(options_.watchdog, timeout, [this, timeout] {
    bool full = false;
    {
      MutexLock lock(&mutex_);
      full = stash_.size() >= kMaxStash;
    }
    Fail(Expired(full ? absl::StrCat("waiting for the peer to finish: ", kMaxStash,
                                     " of its frames are here, the limit, and nobody takes them")
                      : "waiting for the peer to finish",
                 timeout))
        .IgnoreError();
  });
  LinkChunk last;
  last.set_end(true);
  const bool written = WriteChunk(last);
  {
    MutexLock lock(&mutex_);
    end_sent_ = written;
  }
  EndWrite();
  if (!written) return WriteFailed();
  RETURN_IF_ERROR(DrainPeer());
  {
    MutexLock lock(&mutex_);
    while (reading_) changed_.Wait(&mutex_);  // on its way out
    if (!error_.ok()) return error_;
  }
  const absl::Status status = stream_->End(absl::OkStatus());
  if (!status.ok()) return Fail(status);
  MutexLock lock(&mutex_);
  if (!error_.ok()) return error_;
  ended_ = true;
  error_ = absl::CancelledError("done");
  failed_.store(true, std::memory_order_release);
  return absl::OkStatus();
}

}  // namespace isthmus::daemon
