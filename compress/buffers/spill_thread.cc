#include "compress/buffers/spill_thread.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status.h"

namespace isthmus::compress {
namespace {

constexpr absl::Duration kPatience = absl::Minutes(10);  // with a disk

}  // namespace

SpillThread::SpillThread(std::unique_ptr<SpillFile> file, size_t most)
    : file_(std::move(file)), given_(most), done_(most), thread_([this] { Run(); }) {}

SpillThread::~SpillThread() {
  given_.Abort(absl::CancelledError("done"));
  thread_.join();
}

void SpillThread::Give(Job job) {
  // Neither queue is ever full: the owner counts.
  given_.Push(std::move(job), absl::InfiniteDuration()).IgnoreError();
}

absl::StatusOr<SpillThread::Job> SpillThread::Take(bool wait) {
  if (!wait && done_.size() == 0) return absl::NotFoundError("no job is done");
  absl::StatusOr<Job> job = done_.Pop(kPatience);
  if (job.ok()) return job;
  return Annotate(job.status(), absl::StrCat("the spill file in '", file_->directory(), "'"));
}

void SpillThread::Run() {
  for (;;) {
    absl::StatusOr<Job> job = given_.Pop(absl::InfiniteDuration());
    if (!job.ok()) {
      if (absl::IsDeadlineExceeded(job.status())) continue;  // a day without any
      return;
    }
    if (job->write_slot >= 0) job->status = file_->Write(job->write_slot, job->buffer.get());
    if (job->status.ok() && job->read_slot >= 0)
      job->status = file_->Read(job->read_slot, job->buffer.get());
    done_.Push(*std::move(job), absl::InfiniteDuration()).IgnoreError();
  }
}

}  // namespace isthmus::compress
