#include "coordinator/cli/watching.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "coordinator/cli/exit_code.h"
#include "coordinator/cli/view/summary.h"

namespace isthmus::cli {
namespace {

// Has everything come? Records and status are not one atom: an end counts when its last record is
// there, or when the coordinator has nothing more to send.
class EndDetector {
 public:
  bool Ended(const WatchReply& reply, int64_t next_step) {
    if (!reply.has_status()) return false;
    if (!IsEnd(reply.status().state())) {
      ends_seen_ = 0;
      return false;
    }
    ends_seen_ = reply.records().empty() ? ends_seen_ + 1 : 1;
    return next_step >= reply.status().step() || ends_seen_ >= 3;
  }
  bool seen() const { return ends_seen_ > 0; }

 private:
  int ends_seen_ = 0;
};

}  // namespace

absl::Status FollowJob(Client* client, Interrupt* interrupt, const FollowOptions& options,
                       const std::function<void(const WatchReply&)>& take,
                       const std::function<void(const std::string&)>& remark) {
  int64_t next_step = options.from_step;
  uint64_t generation = 0;
  absl::Time last_word = SteadyNow();
  EndDetector end;
  bool ended = false;
  bool lost = false;
  const auto late = [&] { return SteadyNow() >= options.until; };
  while (true) {
    WatchRequest request;
    request.set_job(options.job);
    request.set_from_step(next_step);
    request.set_follow(true);
    const absl::Status status = client->Watch(request, [&](const WatchReply& reply) {
      last_word = SteadyNow();
      if (lost) remark("the coordinator answers again");
      lost = false;
      for (const JobRecord& record : reply.records()) {  // a job may go on from an earlier step
        const bool earlier = record.generation() > generation;
        next_step = earlier ? record.step() + 1 : std::max(next_step, record.step() + 1);
        generation = std::max(generation, record.generation());
      }
      take(reply);
      ended = end.Ended(reply, next_step);
      return !ended && !late();  // it has a word at least once a second
    });
    if (interrupt->interrupted()) return absl::CancelledError("interrupted");
    if (ended || (status.ok() && end.seen())) return absl::OkStatus();
    if (late()) return absl::DeadlineExceededError("the job has not ended in time");
    if (absl::IsUnavailable(status)) {
      if (!lost) {
        remark(absl::StrCat("lost the coordinator (", std::string(status.message()),
                            "); the training goes on without it; trying again for ",
                            absl::FormatDuration(options.patience)));
      }
      lost = true;
    } else if (!status.ok() && !absl::IsDeadlineExceeded(status)) {
      return status;
    }
    if (SteadyNow() - last_word > options.patience) {
      return Unreachable(absl::UnavailableError(
          absl::StrCat("the coordinator at ", client->address(), " said nothing about ",
                       options.job, " for ", absl::FormatDuration(options.patience))));
    }
    if (!absl::IsDeadlineExceeded(status) && interrupt->WaitFor(options.retry_every))
      return absl::CancelledError("interrupted");
  }
}

}  // namespace isthmus::cli
