#include "daemon/renewal.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/file/durable_file.h"
#include "base/file/read_file.h"
#include "base/log.h"
#include "base/rpc/channel.h"
#include "base/status.h"
#include "base/tls/folder.h"
#include "base/tls/request.h"
#include "daemon/join.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "proto/join.grpc.pb.h"

namespace isthmus::daemon {
namespace {

constexpr absl::Duration kLookAgain = absl::Minutes(1);
constexpr absl::Duration kLeastWait = absl::Seconds(1);
constexpr absl::Duration kMostWait = absl::Minutes(10);
constexpr int kTries = 20;  // or more, in what is left
constexpr int kTellEvery = 10;

absl::StatusOr<tls::Certificate> CertificateIn(const std::string& dir) {
  const std::string file = absl::StrCat(dir, "/", tls::kCertificateFile);
  ASSIGN_OR_RETURN(const std::string pem, ReadSmallFile(file, tls::kMaxPemBytes));
  return tls::ReadCertificate(pem, file);
}

std::string Moment(absl::Time time) {
  return absl::FormatTime(absl::RFC3339_sec, time, absl::UTCTimeZone());
}

}  // namespace

absl::Duration RenewalWait(const tls::Certificate& certificate, int failures, absl::Time now) {
  const absl::Duration due = tls::RenewalTime(certificate) - now;
  if (due > absl::ZeroDuration()) return std::clamp(due, kLeastWait, kLookAgain);
  if (failures == 0) return absl::ZeroDuration();
  return std::clamp((certificate.until - now) / kTries, kLeastWait, kMostWait);
}

absl::StatusOr<tls::Certificate> RenewOnce(const RenewalOptions& options,
                                           grpc::ClientContext* context, absl::Time now) {
  ASSIGN_OR_RETURN(const tls::Folder old,
                   tls::ReadFolder(options.tls_dir, {tls::Role::kWorker}, now));
  RenewRequest request;
  ASSIGN_OR_RETURN(*request.mutable_request_pem(), tls::MakeRequest(old.key_pem));
  JoinReply reply;
  context->set_deadline(rpc::DeadlineAfter(options.patience));
  const auto channel =
      JoinChannel(options.join, old.ca_pem, old.key_pem, old.certificate_pem, options.use_proxy);
  const grpc::Status status = Join::NewStub(channel)->Renew(context, request, &reply);
  if (!status.ok() && !rpc::Answered(status)) {
    return absl::UnavailableError(
        absl::StrCat(options.join, " does not answer (", status.error_message(),
                     "): isthmus-coordinator has to run there with --join-listen"));
  }
  RETURN_IF_ERROR(rpc::FromGrpc(status));
  const std::string& pem = reply.certificate_pem();
  ASSIGN_OR_RETURN(const tls::Certificate renewed,
                   tls::CheckAnswer(pem, old.key_pem, old.ca_pem, now));
  if (renewed.who.name != old.certificate.who.name || renewed.until <= old.certificate.until) {
    return absl::UnauthenticatedError(
        absl::StrCat(options.join, " answers with the certificate of ", tls::Words(renewed.who),
                     " until ", Moment(renewed.until), ", which is no renewal of this daemon's"));
  }
  RETURN_IF_ERROR(WriteFileDurably(absl::StrCat(options.tls_dir, "/", tls::kCertificateFile), pem));
  return renewed;
}

Renewal::Renewal(RenewalOptions options) : options_(std::move(options)) {
  thread_ = std::thread([this] { Loop(); });
}

Renewal::~Renewal() {
  {
    MutexLock lock(&mutex_);
    stop_ = true;
    if (running_ != nullptr) running_->TryCancel();
    changed_.SignalAll();
  }
  thread_.join();
}

bool Renewal::Wait(absl::Duration duration) {
  const auto until = SteadyAfter(duration);
  MutexLock lock(&mutex_);
  while (!stop_ && changed_.WaitUntil(&mutex_, until)) {
  }
  return !stop_;
}

absl::Status Renewal::Try() {
  grpc::ClientContext context;
  {
    MutexLock lock(&mutex_);
    if (stop_) return absl::CancelledError("the daemon ends");
    running_ = &context;
  }
  const absl::StatusOr<tls::Certificate> renewed = RenewOnce(options_, &context, tls::Today());
  MutexLock lock(&mutex_);
  running_ = nullptr;
  RETURN_IF_ERROR(renewed.status());
  LogInfo("the certificate of ", tls::Words(renewed->who), " is renewed until ",
          Moment(renewed->until));
  return absl::OkStatus();
}

void Renewal::Loop() {
  for (int failures = 0;;) {
    const absl::StatusOr<tls::Certificate> now_held = CertificateIn(options_.tls_dir);
    const absl::Duration wait =
        now_held.ok() ? RenewalWait(*now_held, failures, tls::Today()) : kLookAgain;
    if (!Wait(wait)) return;
    if (!now_held.ok() || tls::Today() < tls::RenewalTime(*now_held)) {
      if (!now_held.ok() && failures++ % kTellEvery == 0)
        LogError("the certificate can't be renewed: ", now_held.status().message());
      continue;
    }
    const absl::Status tried = Try();
    if (tried.ok()) {
      failures = 0;
    } else if (!absl::IsCancelled(tried) && failures++ % kTellEvery == 0) {
      LogWarning("the certificate of ", tls::Words(now_held->who), " ends on ",
                 Moment(now_held->until), " and is not renewed yet: ", tried.message());
    }
  }
}

}  // namespace isthmus::daemon
