#include "worker/checkpoint/checkpoint_writer.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "proto/plan/groups.h"

namespace isthmus::worker {
namespace {

using Clock = std::chrono::steady_clock;

// The coordinator is away, or its disk is full: it may take the same file later.
bool WorthHolding(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsResourceExhausted(status) ||
         absl::IsDeadlineExceeded(status) || absl::IsAborted(status);
}

// Bytes that may be read for so long and no longer.
class TimedSource : public ByteSource {
 public:
  TimedSource(std::unique_ptr<ByteSource> bytes, Clock::time_point end, absl::Duration patience)
      : bytes_(std::move(bytes)), end_(end), patience_(patience) {}
  int64_t bytes() const override { return bytes_->bytes(); }
  absl::Status ReadAt(int64_t offset, size_t count, char* out) const override {
    if (Clock::now() < end_) return bytes_->ReadAt(offset, count, out);
    return absl::FailedPreconditionError(
        absl::StrCat("after ", absl::FormatDuration(patience_), " ", bytes() - offset, " of its ",
                     bytes(), " bytes were not sent, and the other stages wait"));
  }

 private:
  const std::unique_ptr<ByteSource> bytes_;
  const Clock::time_point end_;
  const absl::Duration patience_;
};

}  // namespace

CheckpointWriter::CheckpointWriter(const SessionPlan& plan, PartSink* store,
                                   SessionObserver* observer, CheckpointWriterOptions options)
    : plan_(plan), store_(store), observer_(observer), options_(options), thread_([this] {
        Run();
      }) {}

CheckpointWriter::~CheckpointWriter() {
  Abort();
  queue_.Abort(absl::CancelledError("done"));
  thread_.join();
}

void CheckpointWriter::Abort() {
  MutexLock lock(&mutex_);
  aborted_ = true;
  changed_.SignalAll();
}

void CheckpointWriter::Save(CheckpointParts parts) {
  {
    MutexLock lock(&mutex_);
    ISTHMUS_CHECK(!busy_);
    busy_ = true;
  }
  queue_.Push(std::move(parts), absl::ZeroDuration())
      .IgnoreError();  // empty while idle, open while the writer lives
}

bool CheckpointWriter::WaitIdle(absl::Duration timeout) {
  const auto deadline = SteadyAfter(timeout);
  MutexLock lock(&mutex_);
  while (busy_) {
    if (timeout == absl::InfiniteDuration()) {
      changed_.Wait(&mutex_);
    } else if (!changed_.WaitUntil(&mutex_, deadline)) {
      return !busy_;
    }
  }
  return true;
}

absl::Status CheckpointWriter::last_status() const {
  MutexLock lock(&mutex_);
  return last_;
}

void CheckpointWriter::SaveHere(CheckpointParts parts, absl::Duration patience) {
  const auto end = parts.last ? Clock::time_point::max() : SteadyAfter(patience);
  for (CheckpointPart& part : parts.parts)
    part.bytes = std::make_unique<TimedSource>(std::move(part.bytes), end, patience);
  Store(&parts);
}

void CheckpointWriter::Run() {
  for (;;) {
    absl::StatusOr<CheckpointParts> parts = queue_.Pop(absl::InfiniteDuration());
    if (absl::IsDeadlineExceeded(parts.status())) continue;
    if (!parts.ok()) return;
    Store(&*parts);
    *parts = CheckpointParts();
    MutexLock lock(&mutex_);
    busy_ = false;
    changed_.SignalAll();
  }
}

void CheckpointWriter::Store(CheckpointParts* parts) {
  const absl::Status status = PutAll(parts);
  if (!status.ok()) {
    LogWarning(observer_ == nullptr ? "the copy of checkpoint " : "checkpoint ", parts->step,
               " of ", StageWords(plan_.plan(), plan_.rank()),
               " was not stored: ", status.message());
  }
  MutexLock lock(&mutex_);
  last_ = status;
}

absl::Status CheckpointWriter::PutAll(CheckpointParts* parts) {
  size_t done = 0;
  absl::Status status = PutRest(parts, &done);
  if (!parts->last || !WorthHolding(status)) return status;
  LogWarning("the last checkpoint (", parts->step, ") of ", StageWords(plan_.plan(), plan_.rank()),
             " is not stored yet: ", status.message(), ". It is held and tried again for ",
             absl::FormatDuration(options_.hold));
  const auto give_up = SteadyAfter(options_.hold);
  while (WorthHolding(status) && Pause(give_up)) status = PutRest(parts, &done);
  return status;
}

// False: it is too late to try again.
bool CheckpointWriter::Pause(Clock::time_point give_up) {
  const auto until = SteadyAfter(options_.again);
  MutexLock lock(&mutex_);
  while (!aborted_ && changed_.WaitUntil(&mutex_, until)) {
  }
  return !aborted_ && Clock::now() < give_up;
}

// From part `*done` on: those before are there.
absl::Status CheckpointWriter::PutRest(CheckpointParts* parts, size_t* done) {
  for (; *done < parts->parts.size(); ++*done) {
    CheckpointPart& part = parts->parts[*done];
    if (!part.put) continue;
    const auto put = [&]() -> absl::Status {
      if (!part.hashed) {
        ASSIGN_OR_RETURN(const uint64_t checksum, HashOf(*part.bytes));
        part.header.set_checksum(checksum);
        part.hashed = true;
      }
      return store_->Put(part.header, *part.bytes);
    };
    const absl::Status status = put();
    if (options_.progress != nullptr) ++*options_.progress;
    if (!status.ok()) {
      return Annotate(status, absl::StrCat("putting ", part.header.file(), " of checkpoint ",
                                           parts->step, ", ", part.bytes->bytes(), " bytes"));
    }
  }
  if (observer_ == nullptr) return absl::OkStatus();
  SessionEvent event;
  event.set_job_id(plan_.plan().job_id());
  event.set_generation(plan_.plan().generation());
  event.set_rank(plan_.rank());
  event.set_state(SessionEvent::CHECKPOINTED);
  event.set_step(parts->step);
  observer_->OnEvent(event);
  return absl::OkStatus();
}

}  // namespace isthmus::worker
