#include "daemon/net/resuming_stream.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/log.h"
#include "base/metrics.h"
#include "base/status.h"

namespace isthmus::daemon {
namespace {

using Clock = std::chrono::steady_clock;

// A reader learns why a connection broke better than a writer: so long the writer leaves it to it.
constexpr std::chrono::milliseconds kReasonWait{300};

int64_t KeptBytes(const LinkChunk& chunk) {
  return static_cast<int64_t>(chunk.ByteSizeLong()) + ResumingStream::kChunkOverheadBytes;
}

bool IsCount(const LinkChunk& chunk) {
  return chunk.what_case() == LinkChunk::WHAT_NOT_SET && chunk.data().empty() &&
         chunk.sequence() > 0;
}

}  // namespace

ResumingStream::ResumingStream(ResumingOptions options, std::unique_ptr<LinkStream> stream,
                               std::unique_ptr<Redialler> redialler)
    : options_(std::move(options)),
      kill_tells_why_(stream->kill_tells_why()),
      redialler_(std::move(redialler)),
      stream_(std::move(stream)) {
  redialler_->OnInterrupt([this](std::optional<uint64_t> received) { return Interrupt(received); });
  thread_ = std::thread([this] { Loop(); });
}

ResumingStream::~ResumingStream() {
  ResumingStream::Kill(absl::CancelledError("the link was dropped"));
  thread_.join();
}

void ResumingStream::Changed() {
  changed_.SignalAll();
  work_.Signal();
}

void ResumingStream::Die(const absl::Status& why) {
  if (why_.ok()) why_ = why;
  Changed();
}

void ResumingStream::Release(Stream* stream) {
  if (*stream == stream_) return;
  mutex_.Unlock();
  stream->reset();
  mutex_.Lock();
}

void ResumingStream::Lose(const absl::Status& why) {
  Stream lost = std::exchange(stream_, nullptr);
  broken_ = why;
  broken_at_ = Clock::now();
  Changed();
  mutex_.Unlock();
  lost->Drop();
  lost.reset();
  mutex_.Lock();
}

void ResumingStream::Broke(const Stream& stream) {
  mutex_.Unlock();
  const absl::Status why = stream->WhyBroken();
  const bool resumes = stream->may_resume();
  mutex_.Lock();
  if (stream_ != stream || !why_.ok()) return;
  if (resumes && !last_words_) {
    Lose(why);
  } else {
    Die(why);
  }
}

// A wrong count of a redial leaves the connection alone: who dials may be somebody else.
absl::Status ResumingStream::Interrupt(std::optional<uint64_t> received) {
  MutexLock lock(&mutex_);
  if (received.has_value()) RETURN_IF_ERROR(CanGoOn(*received));
  if (stream_ != nullptr && why_.ok() && !last_words_ && !ending_)
    Lose(absl::UnavailableError("the other end lost the connection"));
  return absl::OkStatus();
}

absl::Status ResumingStream::CanGoOn(uint64_t received) const {
  // It may have the one that is being written.
  const uint64_t most = std::min(numbered_, highest_ + 1);
  if (received + 1 >= first_ && received <= most) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("it can't go on: ", received, " of ", numbered_,
                   " messages are said to have come, and those from ", first_, " on are kept"));
}

void ResumingStream::Forget() {
  log_bytes_ -= KeptBytes(*log_.front());
  log_.pop_front();
  ++first_;
}

void ResumingStream::Told(uint64_t count) {
  while (first_ <= std::min(count, sent_)) Forget();
}

void ResumingStream::Trim() {
  while (log_bytes_ > options_.log_bytes && first_ <= sent_) Forget();
}

// Nothing goes after the end: who has read that reads no more, and gRPC ends no call that has
// unread messages.
bool ResumingStream::CountIsDue() const { return untold_bytes_ >= kTellBytes && !end_written_; }

bool ResumingStream::Due() const {
  return stream_ != nullptr && why_.ok() && (sent_ < numbered_ || CountIsDue());
}

void ResumingStream::Pump() {
  Stream stream = stream_;
  bool ok = true;
  bool counted = false;
  writing_ = true;
  while (ok && stream_ == stream && Due()) {
    std::shared_ptr<const LinkChunk> next;
    LinkChunk count;
    counted = CountIsDue();
    if (counted) {
      untold_bytes_ = 0;
      count.set_sequence(received_);
    } else {
      next = log_[sent_ + 1 - first_];
    }
    mutex_.Unlock();
    ok = stream->Write(counted ? count : *next);
    mutex_.Lock();
    if (!ok || counted || stream_ != stream) continue;
    highest_ = std::max(highest_, ++sent_);
    Trim();
  }
  writing_ = false;
  changed_.SignalAll();
  if (Due()) work_.Signal();
  if (stream_ != stream) return Release(&stream);
  if (ok || counted) return;  // of a count the reader will learn the same
  const auto deadline = Clock::now() + kReasonWait;
  while (stream_ == stream && why_.ok() && reading_ && changed_.WaitUntil(&mutex_, deadline)) {
  }
  if (stream_ == stream && why_.ok()) Broke(stream);
  Release(&stream);
}

bool ResumingStream::Write(const LinkChunk& chunk) {
  auto kept = std::make_shared<LinkChunk>(chunk);
  MutexLock lock(&mutex_);
  if (chunk.has_error()) {
    if (stream_ == nullptr) return false;  // nobody to tell
    last_words_ = true;
  }
  if (!why_.ok()) return false;
  end_written_ = end_written_ || chunk.has_end();
  log_bytes_ += KeptBytes(*kept);
  log_.push_back(std::move(kept));
  const uint64_t number = ++numbered_;
  while (why_.ok() && sent_ < number) {
    if (stream_ == nullptr || writing_) {
      changed_.Wait(&mutex_);
    } else {
      Pump();
    }
  }
  return sent_ >= number;
}

bool ResumingStream::Takes(LinkChunk* chunk) {
  if (IsCount(*chunk)) {
    // It may have the one that is being written.
    if (chunk->sequence() > std::min(numbered_, sent_ + 1)) {
      Die(absl::InvalidArgumentError(absl::StrCat("the peer says that it has ", chunk->sequence(),
                                                  " messages of ", sent_, " that were sent")));
    } else {
      Told(chunk->sequence());
    }
    return false;
  }
  if (chunk->has_error()) {
    last_words_ = true;
    return true;
  }
  ++received_;
  untold_bytes_ += KeptBytes(*chunk);
  if (CountIsDue() && !writing_) work_.Signal();
  return true;
}

bool ResumingStream::Read(LinkChunk* chunk) {
  MutexLock lock(&mutex_);
  while (true) {
    while (why_.ok() && stream_ == nullptr) changed_.Wait(&mutex_);
    if (stream_ == nullptr) return false;
    Stream stream = stream_;
    reading_ = true;
    mutex_.Unlock();
    const bool ok = stream->Read(chunk);
    mutex_.Lock();
    reading_ = false;
    const bool lost = stream_ != stream;
    Release(&stream);
    if (lost && !(ok && chunk->has_error())) continue;  // it comes again, but for last words
    if (ok) {
      if (Takes(chunk)) return true;
      if (!why_.ok()) return false;
      continue;
    }
    if (why_.ok()) Broke(stream);
    Release(&stream);
    changed_.SignalAll();  // a writer that left the reason to this one
    if (!why_.ok()) return false;
  }
}

void ResumingStream::Loop() {
  redialler_->Prepare();
  MutexLock lock(&mutex_);
  while (why_.ok()) {
    if (stream_ == nullptr) {
      Redial();
    } else if (Due() && !writing_) {
      Pump();
    } else if (told_) {
      Settle();
    } else {
      work_.Wait(&mutex_);
    }
  }
}

void ResumingStream::Settle() {
  if (work_.WaitUntil(&mutex_, settled_at_) || Clock::now() < settled_at_) return;
  if (stream_ == nullptr || !why_.ok()) return;
  told_ = false;
  mutex_.Unlock();
  options_.tell("");
  mutex_.Lock();
}

void ResumingStream::Redial() {
  const absl::Status broken = broken_;
  const uint64_t received = received_;
  const bool tells = options_.tell != nullptr && !std::exchange(told_, options_.tell != nullptr);
  mutex_.Unlock();
  const std::string trouble =
      absl::StrCat(options_.words, " broke (", broken.message(), "): dialling again");
  LogWarning(trouble);
  if (tells) options_.tell(trouble);
  absl::StatusOr<Redialler::Connection> next = redialler_->Redial(received);
  mutex_.Lock();
  if (!next.ok()) {
    return Die(Reword(broken, absl::StrCat(broken.message(), "; ", next.status().message())));
  }
  if (!why_.ok()) return Refuse(std::move(next->stream), why_);
  GoOn(*std::move(next));
  settled_at_ = Clock::now() + options_.settled;
}

void ResumingStream::Refuse(std::unique_ptr<LinkStream> stream, absl::Status why) {
  mutex_.Unlock();
  stream->Kill(why);
  stream.reset();
  mutex_.Lock();
}

void ResumingStream::GoOn(Redialler::Connection next) {
  if (const absl::Status fits = CanGoOn(next.received); !fits.ok()) {
    const absl::Status lost =
        absl::UnavailableError(absl::StrCat(broken_.message(), "; ", fits.message()));
    Die(lost);
    return Refuse(std::move(next.stream), lost);
  }
  sent_ = next.received;
  Told(sent_);
  untold_bytes_ = 0;  // the other end was told with the dial
  stream_ = std::move(next.stream);
  const uint64_t again = highest_ - std::min(highest_, sent_);
  LogInfo(options_.words, " goes on after ",
          absl::FormatDuration(
              absl::Trunc(absl::FromChrono(Clock::now() - broken_at_), absl::Milliseconds(100))),
          ", ", again, again == 1 ? " message" : " messages", " sent again");
  ++mended_;
  CounterAdd(kReconnects, kReconnectsHelp, {}, 1);
  Changed();
}

void ResumingStream::Kill(const absl::Status& why) {
  Stream stream;
  {
    MutexLock lock(&mutex_);
    Die(why.ok() ? absl::CancelledError("the link was dropped") : why);
    stream = stream_;
  }
  if (stream != nullptr) stream->Kill(why);
  redialler_->Cancel();
}

absl::Status ResumingStream::WhyBroken() {
  MutexLock lock(&mutex_);
  if (!why_.ok()) return why_;
  return stream_ == nullptr ? broken_ : absl::UnavailableError("the link was given up");
}

// The dialling end learns here that all has come to the other one, so a connection that breaks now
// is mended, too, unless that one has ended: then its dial is refused at once.
absl::Status ResumingStream::End(const absl::Status& mine) {
  MutexLock lock(&mutex_);
  ending_ = true;
  absl::Status result;
  while (true) {
    while (writing_ || (why_.ok() && (stream_ == nullptr || Due()))) changed_.Wait(&mutex_);
    Stream stream = stream_;
    if (stream == nullptr) return why_;
    const bool whole = why_.ok() && mine.ok();
    mutex_.Unlock();
    result = stream->End(mine);
    const bool again = whole && !result.ok() && stream->may_resume();
    mutex_.Lock();
    if (!again || stream_ != stream || !why_.ok()) {
      Release(&stream);
      break;
    }
    Lose(result);
    Release(&stream);
  }
  Die(absl::CancelledError("done"));
  mutex_.Unlock();
  redialler_->Cancel();
  mutex_.Lock();
  return result;
}

int64_t ResumingStream::mended() const {
  MutexLock lock(&mutex_);
  return mended_;
}

int64_t ResumingStream::log_bytes() const {
  MutexLock lock(&mutex_);
  return log_bytes_;
}

}  // namespace isthmus::daemon
