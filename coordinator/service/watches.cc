#include "coordinator/service/watches.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <string>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "coordinator/core/job_names.h"

namespace isthmus::coordinator {
namespace {

constexpr absl::Duration kStatusEvery = absl::Seconds(1);
constexpr absl::Duration kLookAgain = absl::Milliseconds(250);

}  // namespace

bool TakeHistory(const std::vector<JobRecord>& records, int64_t until_step, int limit,
                 int64_t* next_step, WatchReply* reply) {
  for (const JobRecord& r : records) {
    if (r.step() >= until_step) return true;
    *reply->add_records() = r;
    *next_step = r.step() + 1;
  }
  return static_cast<int>(records.size()) < limit || *next_step >= until_step;
}

// Where a watcher is: old records come from the store, up to what the memory holds; then those of
// the memory, by number. A record of a resumed generation has a new number and an old step.
struct Watches::Cursor {
  std::string job_id;
  int64_t next_step = 0;  // of the history
  bool history_done = false;
  bool flushed = false;    // the store has what the memory dropped
  bool first_pass = true;  // over the memory: what the history had is left out
  uint64_t last_number = 0;
  uint64_t version = 0;  // of the job, as last told
  std::chrono::steady_clock::time_point status_due{};
};

bool Watches::FromMemory(const Job& job, Cursor* cursor, WatchReply* reply) {
  for (const NumberedRecord& r : job.recent) {
    if (r.number <= cursor->last_number) continue;
    if (reply->records_size() == kWatchPage) return false;
    cursor->last_number = r.number;
    if (cursor->first_pass && r.record.step() < cursor->next_step) continue;
    *reply->add_records() = r.record;
    cursor->next_step = r.record.step() + 1;
  }
  cursor->first_pass = false;
  return true;
}

absl::Status Watches::FromStore(int64_t until_step, Cursor* cursor, WatchReply* reply) {
  const int64_t missing = std::max<int64_t>(0, until_step - cursor->next_step);
  const int limit = static_cast<int>(std::min<int64_t>(kWatchPage, missing));
  if (missing > 0 && !cursor->flushed) {
    // A burst may have pushed records out of the memory since the last write. A disk that takes
    // none is no reason to show less.
    recorder_->Sync().IgnoreError();
    cursor->flushed = true;
  }
  ASSIGN_OR_RETURN(const std::vector<JobRecord> records,
                   store_->Records(cursor->job_id, cursor->next_step, limit));
  cursor->history_done = TakeHistory(records, until_step, limit, &cursor->next_step, reply);
  return absl::OkStatus();
}

absl::Status Watches::Watch(const WatchRequest& request,
                            const std::function<bool(const WatchReply&)>& send,
                            const Cancelled& cancelled) {
  const int before = count_.fetch_add(1);
  const absl::Cleanup done = [this] { count_.fetch_sub(1); };
  Cursor cursor;
  cursor.next_step = std::max<int64_t>(0, request.from_step());
  {
    MutexLock lock(&cores_->mutex);
    ASSIGN_OR_RETURN(const Job* job, JobCalled(cores_->jobs, request.job()));
    if (job == nullptr) return NoJob(request.job());
    cursor.job_id = job->id;
  }
  if (before >= kMaxWatches) {
    return absl::ResourceExhaustedError(
        absl::StrCat(before, " watchers already, the coordinator's limit"));
  }
  return Stream(request.follow(), send, cancelled, &cursor);
}

absl::Status Watches::Stream(bool follow, const std::function<bool(const WatchReply&)>& send,
                             const Cancelled& cancelled, Cursor* cursor) {
  for (;;) {
    if (cancelled()) return absl::CancelledError("the caller has gone");
    WatchReply reply;
    bool ended = false, all_said = false;
    int64_t history_until = 0;
    {
      MutexLock lock(&cores_->mutex);
      if (cores_->stopping) return Stopping();
      const Job* job = cores_->jobs.Find(cursor->job_id);
      if (job == nullptr)
        return absl::NotFoundError(
            absl::StrCat("job ", cursor->job_id, " was dropped: too many newer ones"));
      if (cursor->history_done && job->version == cursor->version &&
          std::chrono::steady_clock::now() < cursor->status_due) {
        cores_->changed.WaitUntil(&cores_->mutex,
                                  std::min(cursor->status_due, SteadyAfter(kLookAgain)));
        continue;
      }
      if (!cursor->first_pass && !job->recent.empty() &&
          job->recent.front().number > cursor->last_number + 1) {
        cursor->history_done = cursor->flushed = false;  // a slow watcher: the memory moved on
        cursor->first_pass = true;
      }
      history_until = job->recent.empty() ? std::numeric_limits<int64_t>::max()
                                          : job->recent.front().record.step();
      if (cursor->history_done) {
        all_said = FromMemory(*job, cursor, &reply);
        if (all_said) cursor->version = job->version;
      }
      ended = job->ended();
      *reply.mutable_status() = cores_->jobs.Status(*job, SteadyNow());
    }
    if (!cursor->history_done) RETURN_IF_ERROR(FromStore(history_until, cursor, &reply));
    if (!send(reply)) return absl::CancelledError("the caller has gone");
    cursor->status_due = SteadyAfter(kStatusEvery);
    if (all_said && (ended || !follow)) return absl::OkStatus();
  }
}

}  // namespace isthmus::coordinator
