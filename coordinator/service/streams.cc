#include "coordinator/service/streams.h"

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "coordinator/service/cores.h"

namespace isthmus::coordinator {
namespace {

void EndStream(DaemonStream* daemon) {
  daemon->outgoing.Close(absl::CancelledError("the stream ends"));
  daemon->cancel();
}

}  // namespace

absl::Status Streams::Open(DaemonStream* daemon, absl::Time now) {
  MutexLock lock(&mutex_);
  if (ended_) return Stopping();
  if (static_cast<int>(open_.size()) >= kMaxDaemonStreams) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the coordinator already serves ", open_.size(), " streams of daemons, its limit"));
  }
  daemon->number = ++last_;
  open_[daemon->number] = {daemon, now, false};
  return absl::OkStatus();
}

void Streams::Close(const DaemonStream& daemon) {
  MutexLock lock(&mutex_);
  open_.erase(daemon.number);
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
      it->second.daemon->outgoing.Push(std::move(message), absl::ZeroDuration());
  if (pushed.ok() || absl::IsCancelled(pushed)) return;
  LogWarning("daemon ", name, " does not read what it is told; its stream is ended");
  EndStream(it->second.daemon);
}

void Streams::End(uint64_t stream) {
  MutexLock lock(&mutex_);
  if (const auto it = open_.find(stream); it != open_.end()) EndStream(it->second.daemon);
}

void Streams::EndAll() {
  MutexLock lock(&mutex_);
  ended_ = true;
  for (const auto& [number, line] : open_) EndStream(line.daemon);
}

void Streams::EndUnregistered(absl::Time opened_before) {
  MutexLock lock(&mutex_);
  for (const auto& [number, line] : open_) {
    if (!line.registered && line.opened < opened_before) line.daemon->cancel();
  }
}

bool Streams::IsOpen(uint64_t stream) const {
  MutexLock lock(&mutex_);
  return open_.count(stream) > 0;
}

std::string Streams::Peer(uint64_t stream) const {
  MutexLock lock(&mutex_);
  const auto it = open_.find(stream);
  return it == open_.end() ? "" : it->second.daemon->peer;
}

std::shared_ptr<const tls::Certificate> Streams::CertificateOf(uint64_t stream) const {
  MutexLock lock(&mutex_);
  const auto it = open_.find(stream);
  return it == open_.end() ? nullptr : it->second.daemon->certificate;
}

}  // namespace isthmus::coordinator
