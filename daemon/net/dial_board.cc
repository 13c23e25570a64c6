#include "daemon/net/dial_board.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "grpcpp/server_context.h"

namespace isthmus::daemon {
namespace {

// How soon a waiting handler notices that its caller has gone.
constexpr std::chrono::milliseconds kLookAgain{200};

}  // namespace

void DialBoard::SetSession(const std::string& job_id, uint64_t generation, Diallers diallers) {
  MutexLock lock(&mutex_);
  diallers_ = std::move(diallers);
  job_id_ = job_id;
  generation_ = generation;
  other_generation_.clear();
  cancelled_ = absl::OkStatus();
  changed_.SignalAll();
}

absl::Status DialBoard::Unwanted(const LinkHello& hello) const {
  if (hello.job_id() != job_id_ || hello.generation() > generation_) return absl::OkStatus();
  if (hello.generation() == generation_) {
    const auto dialler = diallers_.find(hello.link_id());
    if (dialler == diallers_.end() || dialler->second == hello.from_node_id())
      return absl::OkStatus();
    return absl::PermissionDeniedError(
        absl::StrCat("link ", hello.link_id(), " of job ", hello.job_id(), " was dialled by node ",
                     hello.from_node_id(), "; the plan has node ", dialler->second, " for it"));
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "link ", hello.link_id(), " of job ", hello.job_id(), " was dialled with generation ",
      hello.generation(), "; this daemon is at generation ", generation_,
      ": the dialling session is out of date and must end"));
}

absl::StatusOr<DialBoard::Dial> DialBoard::Await(const std::string& job_id, uint64_t generation,
                                                 const std::string& link_id, absl::Duration timeout,
                                                 int connection) {
  const Key first(job_id, generation, link_id, connection, "");
  const auto wanted = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    auto found = waiting_.lower_bound(first);
    for (; found != waiting_.end(); ++found) {
      const LinkHello& hello = found->second.hello;
      if (Key(hello.job_id(), hello.generation(), hello.link_id(), hello.connection(), "") != first)
        return waiting_.end();
      if (Unwanted(hello).ok()) break;
    }
    return found;
  };
  const auto deadline = SteadyAfter(timeout);
  MutexLock lock(&mutex_);
  while (shutdown_.ok() && cancelled_.ok()) {
    if (job_id == job_id_ && generation < generation_) {
      return absl::FailedPreconditionError(absl::StrCat("this session has generation ", generation,
                                                        ", this daemon is at ", generation_));
    }
    const auto found = wanted();
    if (found != waiting_.end()) {
      Dial dial = std::move(found->second);
      waiting_.erase(found);
      changed_.SignalAll();
      return dial;
    }
    if (!changed_.WaitUntil(&mutex_, deadline)) {
      if (!other_generation_.empty()) return absl::FailedPreconditionError(other_generation_);
      return absl::DeadlineExceededError(
          absl::StrCat("nobody dialled within ", absl::FormatDuration(timeout)));
    }
  }
  return shutdown_.ok() ? cancelled_ : shutdown_;
}

absl::Status DialBoard::Offer(const LinkHello& hello, const std::shared_ptr<ServerCall>& call,
                              absl::Duration timeout) {
  const Key key(hello.job_id(), hello.generation(), hello.link_id(), hello.connection(),
                hello.from_node_id());
  const auto deadline = SteadyAfter(timeout);
  MutexLock lock(&mutex_);
  RETURN_IF_ERROR(Unwanted(hello));
  const auto older = waiting_.find(key);
  if (older == waiting_.end() && waiting_.size() >= kMaxWaiting) {
    return absl::ResourceExhaustedError(absl::StrCat(kMaxWaiting, " dials are waiting already"));
  }
  waiting_[key] =
      Dial{call, hello};  // a newer dial of the same link replaces one whose caller gave up
  if (hello.job_id() == job_id_ && hello.generation() != generation_) {
    other_generation_ =
        absl::StrCat("node ", hello.from_node_id().substr(0, 64), " dialled with generation ",
                     hello.generation(), "; this session has generation ", generation_);
  }
  changed_.SignalAll();

  const auto mine = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    const auto found = waiting_.find(key);
    return found == waiting_.end() ? nullptr : found->second.call.get();
  };
  absl::Status refused;
  while (true) {
    ServerCall* const there = mine();
    if (there == nullptr) return absl::OkStatus();  // taken
    if (there != call.get()) return absl::AbortedError("another dial of the same link came later");
    refused = shutdown_;
    if (refused.ok()) refused = Unwanted(hello);
    if (refused.ok() && call->context != nullptr && call->context->IsCancelled())
      refused = absl::CancelledError("the caller has gone");
    const auto now = std::chrono::steady_clock::now();
    if (refused.ok() && now >= deadline) {
      refused = absl::FailedPreconditionError(absl::StrCat(
          "no session of job ", hello.job_id(), " generation ", hello.generation(),
          " asked for link ", hello.link_id(), " within ", absl::FormatDuration(timeout),
          "; this daemon is at ",
          job_id_.empty() ? "no job" : absl::StrCat("job ", job_id_, " generation ", generation_)));
    }
    if (!refused.ok()) break;
    changed_.WaitUntil(&mutex_, std::min(deadline, now + kLookAgain));
  }
  waiting_.erase(key);
  return refused;
}

void DialBoard::Shutdown(const absl::Status& why) {
  redials_.Shutdown(why);
  MutexLock lock(&mutex_);
  shutdown_ = why;
  changed_.SignalAll();
}

void DialBoard::CancelAwaits(const absl::Status& why) {
  MutexLock lock(&mutex_);
  cancelled_ = why;
  changed_.SignalAll();
}

}  // namespace isthmus::daemon
