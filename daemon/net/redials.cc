#include "daemon/net/redials.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "grpcpp/server_context.h"

namespace isthmus::daemon {
namespace {

// How soon a waiting handler notices that its caller has gone.
constexpr std::chrono::milliseconds kLookAgain{200};
constexpr size_t kMaxIdBytes = 80;  // in an error

}  // namespace

Redials::Key Redials::KeyOf(const LinkHello& from_peer) {
  return Key(from_peer.job_id(), from_peer.generation(), from_peer.link_id(),
             from_peer.connection(), from_peer.from_node_id());
}

Redials::Place::Place(Redials* board, Key key) : board_(board), key_(std::move(key)) {
  MutexLock lock(&board_->mutex_);
  board_->places_[key_] = this;
}

Redials::Place::~Place() {
  MutexLock lock(&board_->mutex_);
  const auto mine = board_->places_.find(key_);
  if (mine != board_->places_.end() && mine->second == this) board_->places_.erase(mine);
  board_->changed_.SignalAll();
}

void Redials::Place::OnInterrupt(Interrupt interrupt) {
  MutexLock lock(&board_->mutex_);
  interrupt_ = std::move(interrupt);
}

void Redials::Place::SetAttempt(uint64_t attempt) {
  MutexLock lock(&board_->mutex_);
  attempt_ = attempt;
}

void Redials::Place::Cancel() {
  MutexLock lock(&board_->mutex_);
  cancelled_ = true;
  board_->changed_.SignalAll();
}

absl::StatusOr<std::shared_ptr<ServerCall>> Redials::Place::Await(
    std::chrono::steady_clock::time_point deadline) {
  MutexLock lock(&board_->mutex_);
  while (!cancelled_ && board_->shutdown_.ok()) {
    if (waiting_ != nullptr) {
      attempt_ = waiting_->header.attempt;
      waiting_->taken = true;
      board_->changed_.SignalAll();
      return std::exchange(waiting_, nullptr);
    }
    if (!board_->changed_.WaitUntil(&board_->mutex_, deadline))
      return absl::DeadlineExceededError("nobody dialled again");
  }
  return absl::CancelledError("the link has ended");
}

absl::StatusOr<Redials::Place*> Redials::Find(const LinkHello& hello) const {
  if (!shutdown_.ok()) return shutdown_;
  const auto found = places_.find(KeyOf(hello));
  if (found != places_.end() && !found->second->cancelled_) return found->second;
  return absl::NotFoundError(absl::StrCat("link ", hello.link_id().substr(0, kMaxIdBytes),
                                          " of job ", hello.job_id().substr(0, kMaxIdBytes),
                                          ", generation ", hello.generation(),
                                          ", is not open here any more"));
}

absl::Status Redials::Offer(const LinkHello& hello, const std::shared_ptr<ServerCall>& call,
                            absl::Duration timeout) {
  const uint64_t attempt = call->header.attempt;
  const auto deadline = SteadyAfter(timeout);
  MutexLock lock(&mutex_);
  {
    ASSIGN_OR_RETURN(Place* const place, Find(hello));
    const uint64_t newest =
        std::max(place->attempt_, place->waiting_ == nullptr ? 0 : place->waiting_->header.attempt);
    if (attempt <= newest) {
      return absl::FailedPreconditionError(absl::StrCat("dial ", attempt, " comes too late: dial ",
                                                        newest, " of the same link is here"));
    }
    if (place->interrupt_) RETURN_IF_ERROR(place->interrupt_(call->header.received));
    place->waiting_ = call;
    changed_.SignalAll();
  }
  while (!call->taken) {
    const absl::StatusOr<Place*> place = Find(hello);
    if (!place.ok()) return place.status();
    if ((*place)->waiting_ != call)
      return absl::AbortedError("another dial of the same link came later");
    const auto now = std::chrono::steady_clock::now();
    const bool gone = call->context != nullptr && call->context->IsCancelled();
    if (gone || now >= deadline) {
      (*place)->waiting_ = nullptr;
      return gone ? absl::CancelledError("the caller has gone")
                  : absl::DeadlineExceededError("the link did not take the dial");
    }
    changed_.WaitUntil(&mutex_, std::min(deadline, now + kLookAgain));
  }
  return absl::OkStatus();
}

absl::Status Redials::Ask(const LinkHello& hello, uint64_t attempt) {
  MutexLock lock(&mutex_);
  ASSIGN_OR_RETURN(Place* const place, Find(hello));
  if (place->attempt_ != attempt || !place->interrupt_) return absl::OkStatus();
  return place->interrupt_(std::nullopt);
}

void Redials::Shutdown(const absl::Status& why) {
  MutexLock lock(&mutex_);
  shutdown_ = why;
  changed_.SignalAll();
}

}  // namespace isthmus::daemon
