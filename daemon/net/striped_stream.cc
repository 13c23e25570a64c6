#include "daemon/net/striped_stream.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace isthmus::daemon {
namespace {

bool IsLast(const LinkChunk& chunk) { return chunk.has_error() || chunk.has_end(); }

int64_t HeldBytes(const LinkChunk& chunk) {
  return static_cast<int64_t>(chunk.ByteSizeLong()) + StripedStream::kChunkOverheadBytes;
}

}  // namespace

std::string ConnectionWords(int connection, int connections) {
  return absl::StrCat("connection ", connection + 1, " of ", connections);
}

StripedStream::StripedStream(std::vector<std::unique_ptr<LinkStream>> streams, int64_t window_bytes)
    : streams_(std::move(streams)), window_bytes_(window_bytes) {
  {
    MutexLock lock(&mutex_);
    writing_ = count();
    seen_.assign(streams_.size(), 0);
  }
  for (int i = 0; i < count(); ++i) {
    threads_.emplace_back([this, i] { WriteLoop(i); });
    threads_.emplace_back([this, i] { ReadLoop(i); });
  }
}

StripedStream::~StripedStream() {
  if (!threads_.empty()) StripedStream::Kill(absl::CancelledError("the link was dropped"));
  Join();
}

void StripedStream::Join() {
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void StripedStream::Stop() {
  stopped_ = true;
  writable_.SignalAll();
  queued_.SignalAll();
  readable_.SignalAll();
  room_.SignalAll();
}

void StripedStream::Break(int stream) {
  MutexLock lock(&mutex_);
  if (!stopped_) broken_ = stream;
  Stop();
}

bool StripedStream::Refuse(int stream, const std::string& what) {
  if (!stopped_) {
    refused_ =
        absl::InvalidArgumentError(absl::StrCat(ConnectionWords(stream, count()), ": ", what));
  }
  Stop();
  return false;
}

// Every stream is beyond the chunk whose turn it is, and none brought it.
bool StripedStream::Missing() const {
  const uint64_t next = next_;
  return held_.count(next) == 0 && next != end_ &&
         std::all_of(seen_.begin(), seen_.end(), [next](uint64_t seen) { return seen > next; });
}

bool StripedStream::Write(const LinkChunk& chunk) {
  LinkChunk numbered = chunk;
  MutexLock lock(&mutex_);
  if (chunk.has_error()) queue_.clear();  // nobody waits for it any more
  while (!stopped_ && !last_.has_value() && queue_.size() >= streams_.size() && !IsLast(chunk))
    writable_.Wait(&mutex_);
  if (stopped_ || last_.has_value()) return false;
  numbered.set_sequence(++numbered_);
  if (!IsLast(chunk)) {
    queue_.push_back(std::move(numbered));
    queued_.Signal();
    return true;
  }
  last_ = std::move(numbered);
  queued_.SignalAll();
  while (!stopped_ && writing_ > 0) writable_.Wait(&mutex_);
  return writing_ == 0;
}

void StripedStream::WriteLoop(int stream) {
  LinkChunk chunk;
  bool last = false;
  while (!last) {
    {
      MutexLock lock(&mutex_);
      while (!stopped_ && queue_.empty() && !last_.has_value()) queued_.Wait(&mutex_);
      if (stopped_) return;
      last = queue_.empty();
      if (last) {
        chunk = *last_;
      } else {
        chunk = std::move(queue_.front());
        queue_.pop_front();
        writable_.SignalAll();
      }
    }
    if (!streams_[stream]->Write(chunk)) return Break(stream);
  }
  MutexLock lock(&mutex_);
  --writing_;
  writable_.SignalAll();
}

void StripedStream::ReadLoop(int stream) {
  LinkChunk chunk;
  while (streams_[stream]->Read(&chunk)) {
    if (!Take(stream, std::move(chunk))) return;
    chunk = LinkChunk();
  }
  Break(stream);
}

bool StripedStream::TakeEnd(int stream, uint64_t sequence) {
  if (sequence <= highest_ || (ended_ > 0 && sequence != end_))
    return Refuse(stream,
                  absl::StrCat("the end is chunk ", sequence, ", but others lie behind it"));
  end_ = sequence;
  ++ended_;
  readable_.SignalAll();
  if (Missing()) return Refuse(stream, absl::StrCat("chunk ", next_, " was skipped"));
  return false;
}

bool StripedStream::Take(int stream, LinkChunk chunk) {
  MutexLock lock(&mutex_);
  if (chunk.has_error()) {
    error_ = std::move(chunk);
    readable_.SignalAll();
    return false;
  }
  const uint64_t sequence = chunk.sequence();
  if (sequence <= seen_[stream]) {
    return Refuse(stream, absl::StrCat("chunk ", sequence, " came after chunk ", seen_[stream],
                                       "; numbers begin at 1 and must grow"));
  }
  seen_[stream] = sequence;
  if (chunk.has_end()) return TakeEnd(stream, sequence);
  if (end_ > 0 && sequence >= end_)
    return Refuse(stream, absl::StrCat("chunk ", sequence, " lies behind the end, ", end_));
  highest_ = std::max(highest_, sequence);
  const int64_t bytes = HeldBytes(chunk);
  while (!stopped_ && sequence > next_ && held_bytes_ + bytes > window_bytes_) {
    if (Missing()) return Refuse(stream, absl::StrCat("chunk ", next_, " was skipped"));
    room_.Wait(&mutex_);
  }
  if (stopped_) return false;
  if (sequence < next_ || !held_.emplace(sequence, std::move(chunk)).second)
    return Refuse(stream, absl::StrCat("chunk ", sequence, " came twice"));
  held_bytes_ += bytes;
  if (sequence == next_) readable_.SignalAll();
  if (Missing()) return Refuse(stream, absl::StrCat("chunk ", next_, " was skipped"));
  return true;
}

bool StripedStream::Read(LinkChunk* chunk) {
  MutexLock lock(&mutex_);
  while (true) {
    const auto first = held_.begin();
    if (first != held_.end() && first->first == next_) {
      held_bytes_ -= HeldBytes(first->second);
      *chunk = std::move(first->second);
      held_.erase(first);
      ++next_;
      if (!stopped_ && Missing())
        Refuse(0, absl::StrCat("chunk ", next_, " was skipped, on this or another one"));
      room_.SignalAll();
      return true;
    }
    if (error_.has_value()) {
      *chunk = *error_;
      return true;
    }
    if (ended_ == count() && next_ == end_) {
      chunk->Clear();
      chunk->set_end(true);
      end_read_ = true;
      return true;
    }
    if (stopped_) return false;
    readable_.Wait(&mutex_);
  }
}

void StripedStream::Kill(const absl::Status& why) {
  {
    MutexLock lock(&mutex_);
    Stop();
  }
  for (const auto& stream : streams_) stream->Kill(why);
}

// What broke by itself is named; what the peer told is passed on as it is.
absl::Status StripedStream::WhyBroken() {
  int broken = 0;
  {
    MutexLock lock(&mutex_);
    if (!refused_.ok()) return refused_;
    broken = broken_;
  }
  const absl::Status why = streams_[std::max(broken, 0)]->WhyBroken();
  return broken >= 0 && absl::IsUnavailable(why) ? Annotate(why, ConnectionWords(broken, count()))
                                                 : why;
}

absl::Status StripedStream::End(const absl::Status& mine) {
  bool orderly = false;
  {
    MutexLock lock(&mutex_);
    orderly = mine.ok() && end_read_ && writing_ == 0;
  }
  if (!orderly) Kill(mine.ok() ? absl::CancelledError("the link was dropped") : mine);
  Join();
  absl::Status status;
  for (const auto& stream : streams_) status.Update(stream->End(mine));
  return status;
}

int64_t StripedStream::mended() const {
  int64_t mended = 0;
  for (const auto& stream : streams_) mended += stream->mended();
  return mended;
}

int64_t StripedStream::held_bytes() const {
  MutexLock lock(&mutex_);
  return held_bytes_;
}

}  // namespace isthmus::daemon
