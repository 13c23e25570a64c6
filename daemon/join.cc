#include "daemon/join.h"

#include <sys/prctl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/clock.h"
#include "base/file/durable_directory.h"
#include "base/file/durable_file.h"
#include "base/file/read_file.h"
#include "base/log.h"
#include "base/rpc/channel.h"
#include "base/status.h"
#include "base/tls/fetch_authority.h"
#include "base/tls/folder.h"
#include "base/tls/handshake.h"
#include "base/tls/join_token.h"
#include "base/tls/request.h"
#include "grpcpp/client_context.h"
#include "grpcpp/completion_queue.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "proto/join.grpc.pb.h"

namespace isthmus::daemon {
namespace {

constexpr char kFirstLine[] = "isthmus joined 1";
constexpr char kJoining[] = "/tls-joining";  // the key, while it has no certificate yet
constexpr absl::Duration kLookForStop = absl::Milliseconds(100);
constexpr absl::Duration kProbePatience = absl::Seconds(5);
constexpr int kMaxReplyBytes = 64 << 10;
constexpr int kMaxPort = 65535;

std::string HostOf(const std::string& address) { return address.substr(0, address.rfind(':')); }

std::string LineOfInput() {
  std::string line;
  char next = 0;
  while (std::cin.get(next) && next != '\n' && static_cast<int64_t>(line.size()) < kMaxTokenFile)
    line.push_back(next);
  return line;
}

absl::StatusOr<std::string> TokenText(const JoinFlags& flags) {
  if (!flags.file.empty()) return ReadSmallFile(flags.file, kMaxTokenFile);
  return flags.token == "-" ? LineOfInput() : flags.token;
}

absl::StatusOr<tls::JoinToken> TokenOf(const JoinFlags& flags) {
  const std::string flag = flags.file.empty() ? "--join" : "--join-file";
  const absl::StatusOr<std::string> text = TokenText(flags);
  if (!text.ok())
    return absl::InvalidArgumentError(
        absl::StrCat(flag, ": ", WithoutTokens(std::string(text.status().message()))));
  absl::StatusOr<tls::JoinToken> token = tls::ReadJoinToken(*text);
  if (!token.ok()) return Annotate(token.status(), flag);
  for (const std::string& each : token->addresses) RETURN_IF_ERROR(rpc::CheckAddress(flag, each));
  return token;
}

std::string TextOf(const Joined& joined) {
  return absl::StrCat(kFirstLine, "\ncoordinator ", joined.coordinator, "\njoin ", joined.join,
                      "\n");
}

// A folder that is there, and of no use: it is not replaced, for it may be good.
absl::Status Unusable(const std::string& dir, absl::string_view why) {
  return absl::FailedPreconditionError(
      absl::StrCat(why, ": make ", dir,
                   " readable for this program's user, or move it away and join with a new "
                   "token"));
}

// InvalidArgument, FailedPrecondition: as JoinCluster. False: `path` is not there.
absl::StatusOr<bool> Exists(const std::string& dir, const std::string& path) {
  std::error_code error;
  const bool there = std::filesystem::exists(path, error);
  if (error) return Unusable(dir, absl::StrCat("can't look at ", path, ": ", error.message()));
  return there;
}

// What this daemon got before, until when, and whose. NotFound: nothing, or it has expired.
struct Before {
  Joined joined;
  tls::Certificate certificate;
};

absl::StatusOr<Before> Held(const std::string& state_dir) {
  const std::string dir = JoinedDir(state_dir);
  ASSIGN_OR_RETURN(const bool there, Exists(dir, dir));
  if (!there) return absl::NotFoundError(dir);
  ASSIGN_OR_RETURN(const bool came, Exists(dir, absl::StrCat(dir, "/", tls::kJoinedFile)));
  if (!came) {
    return absl::InvalidArgumentError(
        absl::StrCat(dir, " is there, and did not come by joining: use it with --tls-dir ", dir,
                     " instead of --join, or move it away"));
  }
  absl::StatusOr<Joined> joined = ReadJoined(dir);
  if (!joined.ok()) return Unusable(dir, joined.status().message());
  const std::string file = absl::StrCat(dir, "/", tls::kCertificateFile);
  const absl::StatusOr<std::string> pem = ReadSmallFile(file, tls::kMaxPemBytes);
  if (!pem.ok()) return Unusable(dir, pem.status().message());
  const absl::StatusOr<tls::Certificate> certificate = tls::ReadCertificate(*pem, file);
  if (!certificate.ok()) return Unusable(dir, certificate.status().message());
  if (tls::Today() > certificate->until) {
    return absl::NotFoundError(absl::StrCat("the certificate of ", tls::Words(certificate->who),
                                            " expired on ", tls::DayOf(certificate->until)));
  }
  const auto folder = tls::ReadFolder(dir, {tls::Role::kWorker}, tls::Today());
  if (!folder.ok()) return Unusable(dir, folder.status().message());
  return Before{*std::move(joined), *certificate};
}

absl::StatusOr<Joined> Kept(const JoinOptions& options) {
  const std::string dir = JoinedDir(options.state_dir);
  ASSIGN_OR_RETURN(Before before, Held(options.state_dir));
  const tls::Certificate& certificate = before.certificate;
  // A token that can be read tells whether the same cluster is meant; none is needed.
  const absl::StatusOr<tls::JoinToken> token =
      options.flags.token == "-" ? absl::NotFoundError("") : TokenOf(options.flags);
  if (token.ok()) {
    ASSIGN_OR_RETURN(const std::string ca,
                     ReadSmallFile(absl::StrCat(dir, "/", tls::kCaFile), tls::kMaxPemBytes));
    ASSIGN_OR_RETURN(const std::string hash, tls::AuthorityHash(ca, dir));
    if (hash != token->authority) {
      return absl::InvalidArgumentError(
          absl::StrCat(dir,
                       " holds the certificate of another cluster than the token's: give "
                       "another --state-dir, or remove ",
                       dir));
    }
  }
  LogInfo("joined before as ", tls::Words(certificate.who), ", until ",
          tls::DayOf(certificate.until), ": no token is needed");
  return std::move(before.joined);
}

// What joins left that were broken off: a key that was revoked since must not be used again.
void RemoveLeftOvers(const std::string& state_dir) {
  std::error_code error;
  std::filesystem::remove_all(state_dir + kJoining, error);  // at the next start otherwise
  const std::string part = absl::StrCat(JoinedDir(state_dir), ".part.");
  std::vector<std::string> left;
  for (std::filesystem::directory_iterator each(state_dir, error), end; !error && each != end;
       each.increment(error)) {
    if (absl::StartsWith(each->path().string(), part)) left.push_back(each->path().string());
  }
  for (const std::string& path : left) std::filesystem::remove_all(path, error);
}

// The key that the certificate will be for: made once, and durably before anybody is asked, so that
// who asks again after a lost answer asks for the same.
absl::StatusOr<std::string> KeyOf(const std::string& state_dir) {
  const std::string dir = state_dir + kJoining;
  const std::string file = absl::StrCat(dir, "/", tls::kKeyFile);
  if (::mkdir(dir.c_str(), 0700) != 0 && errno != EEXIST)
    return absl::ErrnoToStatus(errno, absl::StrCat("making ", dir));
  RETURN_IF_ERROR(SyncDirectory(state_dir));
  std::error_code error;
  if (std::filesystem::exists(file, error) || error) {
    absl::StatusOr<std::string> key = ReadSmallFile(file, tls::kMaxPemBytes);
    if (key.ok()) return key;
    return absl::FailedPreconditionError(absl::StrCat(
        key.status().message(), ": make it readable for this program's user, or remove ", dir));
  }
  ASSIGN_OR_RETURN(const std::string key, tls::MakeKey());
  RETURN_IF_ERROR(WriteFileDurably(file, key, 0600));
  return key;
}

bool Stopped(const JoinOptions& options) { return options.stop && options.stop(); }

// What a synchronous call would do, but that `stop` ends it.
grpc::Status Call(Join::Stub* stub, const JoinRequest& request, const JoinOptions& options,
                  absl::Duration patience, JoinReply* reply) {
  grpc::ClientContext context;
  context.set_deadline(rpc::DeadlineAfter(patience));
  grpc::CompletionQueue queue;
  grpc::Status status;
  const auto call = stub->AsyncJoin(&context, request, &queue);
  call->Finish(reply, &status, &queue);
  void* tag = nullptr;
  bool ok = false;
  while (queue.AsyncNext(&tag, &ok, rpc::DeadlineAfter(kLookForStop)) !=
         grpc::CompletionQueue::GOT_EVENT) {
    if (Stopped(options)) context.TryCancel();
  }
  queue.Shutdown();
  while (queue.Next(&tag, &ok)) {
  }
  return status;
}

absl::StatusOr<JoinReply> Ask(const std::string& address, const std::string& ca_pem,
                              const JoinRequest& request, const JoinOptions& options,
                              absl::Duration patience) {
  const auto stub = Join::NewStub(JoinChannel(address, ca_pem, "", "", options.use_proxy));
  JoinReply reply;
  const grpc::Status status = Call(stub.get(), request, options, patience, &reply);
  if (status.ok()) return reply;
  if (rpc::Answered(status)) return rpc::FromGrpc(status);
  const std::string fault = tls::ServerFault(address, ca_pem, tls::kAnyCoordinator,
                                             std::min(patience, kProbePatience), options.stop);
  if (!fault.empty()) {
    return absl::UnauthenticatedError(
        absl::StrCat(fault,
                     "; it shows the authority that the join token names, and may stand in "
                     "the way: the token was not told to it"));
  }
  return absl::UnavailableError(
      absl::StrCat(address, " is of the token's cluster, and took no call (",
                   status.error_message(), "): is it the port of --join-listen?"));
}

struct Answer {
  Joined joined;
  std::string ca_pem;
  std::string certificate_pem;
};

absl::StatusOr<Answer> AskAt(const std::string& address, const tls::JoinToken& token,
                             const std::string& key, const JoinOptions& options, absl::Time until) {
  const auto patience = [&] { return std::min(options.patience, until - SteadyNow()); };
  Answer answer;
  ASSIGN_OR_RETURN(answer.ca_pem, tls::FetchAuthority(address, tls::kAnyCoordinator,
                                                      token.authority, patience(), options.stop));
  JoinRequest request;
  request.set_token_id(token.id);
  request.set_secret(token.secret);
  request.set_role(tls::RoleName(tls::Role::kWorker));
  ASSIGN_OR_RETURN(*request.mutable_request_pem(), tls::MakeRequest(key));
  ASSIGN_OR_RETURN(const JoinReply reply,
                   Ask(address, answer.ca_pem, request, options, patience()));
  answer.certificate_pem = reply.certificate_pem();
  ASSIGN_OR_RETURN(const tls::Certificate certificate,
                   tls::CheckAnswer(answer.certificate_pem, key, answer.ca_pem, tls::Today()));
  const int port = reply.coordinator_port();
  if (port < 1 || port > kMaxPort) {
    return absl::UnauthenticatedError(
        absl::StrCat(address, " tells of port ", port, " of the coordinator, which can't be"));
  }
  answer.joined.join = address;
  answer.joined.coordinator = absl::StrCat(HostOf(address), ":", port);
  LogInfo("joined as ", tls::Words(certificate.who), " at ", address, ", until ",
          tls::DayOf(certificate.until));
  return answer;
}

absl::Status Store(const Answer& answer, const std::string& key, const std::string& dir) {
  ASSIGN_OR_RETURN(const auto folder, DurableDirectory::Create(dir, true));
  const std::string to = folder->path() + "/";
  RETURN_IF_ERROR(WriteFileDurably(to + tls::kCaFile, answer.ca_pem));
  RETURN_IF_ERROR(WriteFileDurably(to + tls::kCertificateFile, answer.certificate_pem));
  RETURN_IF_ERROR(WriteFileDurably(to + tls::kKeyFile, key, 0600));
  RETURN_IF_ERROR(WriteFileDurably(to + tls::kJoinedFile, TextOf(answer.joined)));
  RETURN_IF_ERROR(folder->Commit());
  if (::chmod(dir.c_str(), 0700) == 0) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, absl::StrCat("chmod ", dir));
}

}  // namespace

absl::StatusOr<Joined> ReadJoined(const std::string& tls_dir) {
  const std::string file = absl::StrCat(tls_dir, "/", tls::kJoinedFile);
  ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(file, kMaxTokenFile));
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  Joined joined;
  joined.tls_dir = tls_dir;
  if (lines.size() == 4 && lines[0] == kFirstLine && absl::StartsWith(lines[1], "coordinator ") &&
      absl::StartsWith(lines[2], "join ")) {
    joined.coordinator = std::string(absl::StripPrefix(lines[1], "coordinator "));
    joined.join = std::string(absl::StripPrefix(lines[2], "join "));
    if (rpc::CheckAddress("", joined.coordinator).ok() && rpc::CheckAddress("", joined.join).ok())
      return joined;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      file, " does not say where the cluster is: remove ", tls_dir, ", and join with a new token"));
}

std::shared_ptr<grpc::Channel> JoinChannel(const std::string& address, const std::string& ca_pem,
                                           const std::string& key_pem,
                                           const std::string& certificate_pem, bool use_proxy) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, use_proxy ? 1 : 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetInt(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, kMaxReplyBytes);
  arguments.SetSslTargetNameOverride(tls::kAnyCoordinator);
  return grpc::CreateCustomChannel(absl::StrCat("dns:///", address),
                                   grpc::SslCredentials({ca_pem, key_pem, certificate_pem}),
                                   arguments);
}

std::string JoinedDir(const std::string& state_dir) { return absl::StrCat(state_dir, "/tls"); }

absl::StatusOr<Joined> JoinCluster(const JoinOptions& options) {
  ::prctl(PR_SET_DUMPABLE, 0);  // from here on token and key are in memory: in no core dump
  absl::StatusOr<Joined> kept = Kept(options);
  if (kept.ok()) RemoveLeftOvers(options.state_dir);
  if (!absl::IsNotFound(kept.status())) return kept;
  if (kept.status().message() != JoinedDir(options.state_dir))
    LogWarning(kept.status().message(), ": joining anew");
  const std::string warning = TokenFileWarning(options.flags.file);
  if (!warning.empty()) LogWarning(warning);
  ASSIGN_OR_RETURN(const tls::JoinToken token, TokenOf(options.flags));
  ASSIGN_OR_RETURN(const std::string key, KeyOf(options.state_dir));
  const absl::Time until = SteadyNow() + options.in_all;
  absl::StatusOr<Answer> answer = absl::UnavailableError("the token names no address");
  for (const std::string& address : token.addresses) {
    answer = AskAt(address, token, key, options, until);
    if (!answer.ok() && Stopped(options)) return absl::CancelledError("joining was ended");
    // Only where nobody of this cluster answered another address may help.
    if (!absl::IsUnavailable(answer.status()) && !absl::IsUnauthenticated(answer.status())) break;
    if (SteadyNow() >= until) break;
  }
  if (absl::IsPermissionDenied(answer.status()) &&
      absl::StrContains(answer.status().message(), tls::kRevokedKeyWords)) {
    RemoveLeftOvers(options.state_dir);
    return absl::PermissionDeniedError(absl::StrCat(answer.status().message(),
                                                    "; that key is removed now: start this program "
                                                    "again, and it makes another"));
  }
  RETURN_IF_ERROR(answer.status());
  answer->joined.tls_dir = JoinedDir(options.state_dir);
  RETURN_IF_ERROR(Store(*answer, key, answer->joined.tls_dir));
  RemoveLeftOvers(options.state_dir);
  return answer->joined;
}

void ReadTokenLine(const std::string& state_dir, JoinFlags* flags) {
  if (flags->token != "-" || !absl::IsNotFound(Held(state_dir).status())) return;
  ::prctl(PR_SET_DUMPABLE, 0);
  flags->token = LineOfInput() + "\n";  // also of an empty line: "-" would be read once more
}

std::string TokenFileWarning(const std::string& file) {
  struct stat info = {};
  if (file.empty() || ::stat(file.c_str(), &info) != 0 || !S_ISREG(info.st_mode) ||
      (info.st_mode & (S_IRGRP | S_IROTH)) == 0)
    return "";
  return absl::StrCat("--join-file ", file,
                      ": other users of this host may read it, and join with it: chmod 600 ", file);
}

std::string WithoutTokens(std::string text) {
  size_t at = 0;
  while ((at = text.find(tls::kTokenPrefix, at)) != std::string::npos) {
    at += sizeof(tls::kTokenPrefix) - 1;
    size_t end = at;
    while (end < text.size() && absl::ascii_isgraph(static_cast<unsigned char>(text[end]))) ++end;
    text.replace(at, end - at, "xxx");
  }
  return text;
}

bool Typed(int argc, const char* const* argv, absl::string_view flag) {
  for (int i = 1; i < argc; ++i) {
    absl::string_view word = argv[i];
    if (absl::ConsumePrefix(&word, flag) && (word.empty() || word.front() == '=')) return true;
  }
  return false;
}

void HideToken(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    char* text = nullptr;
    if (std::strcmp(argv[i], "--join") == 0 && i + 1 < argc) text = argv[i + 1];
    if (std::strncmp(argv[i], "--join=", 7) == 0) text = argv[i] + 7;
    if (text != nullptr) std::memset(text, 'x', std::strlen(text));
  }
}

}  // namespace isthmus::daemon
