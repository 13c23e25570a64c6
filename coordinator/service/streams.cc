#include "coordinator/service/streams.h"

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "coordinator/service/cores.h"

namespace isthmus::coordinator {
namespace {

void EndSession(Session* session) {
  session->outgoing.Close(absl::CancelledError("the stream ends"));
  session->cancel();
}

}  // namespace

absl::Status Streams::Open(Session* session, absl::Time now) {
  MutexLock lock(&mutex_);
  if (ended_) return Stopping();
  if (static_cast<int>(open_.size()) >= kMaxSessions) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the coordinator already serves ", open_.size(), " streams of daemons, its limit"));
  }
  session->stream = ++last_;
  open_[session->stream] = {session, now, false};
  return absl::OkStatus();
}

void Streams::Close(const Session& session) {
  MutexLock lock(&mutex_);
  open_.erase(session.stream);
}

void Streams::SetRegistered(uint64_t stream) {
  MutexLock lock(&mutex_);
  if (const auto it = open_.find(stream); it != open_.end()) it->second.registered = true;
}

void Streams::Send(uint64_t stream, const std::string& name, CoordinatorMessage message) {
  MutexLock lock(&mutex_);
  const auto it = open_.find(stream);
  if (it == open_.end()) return;
  const absl::Status pushed =
      it->second.session->outgoing.Push(std::move(message), absl::ZeroDuration());
  if (pushed.ok() || absl::IsCancelled(pushed)) return;
  LogWarning("daemon ", name, " does not read what it is told; its stream is ended");
  EndSession(it->second.session);
}

void Streams::End(uint64_t stream) {
  MutexLock lock(&mutex_);
  if (const auto it = open_.find(stream); it != open_.end()) EndSession(it->second.session);
}

void Streams::EndAll() {
  MutexLock lock(&mutex_);
  ended_ = true;
  for (const auto& [number, line] : open_) EndSession(line.session);
}

void Streams::EndUnregistered(absl::Time opened_before) {
  MutexLock lock(&mutex_);
  for (const auto& [number, line] : open_) {
    if (!line.registered && line.opened < opened_before) line.session->cancel();
  }
}

bool Streams::IsOpen(uint64_t stream) const {
  MutexLock lock(&mutex_);
  return open_.count(stream) > 0;
}

std::string Streams::Peer(uint64_t stream) const {
  MutexLock lock(&mutex_);
  const auto it = open_.find(stream);
  return it == open_.end() ? "" : it->second.session->peer;
}

}  // namespace isthmus::coordinator
