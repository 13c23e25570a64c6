#include "daemon/join.h"

#include <sys/prctl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/file/durable_directory.h"
#include "base/file/durable_file.h"
#include "base/file/read_file.h"
#include "base/log.h"
#include "base/rpc/channel.h"
#include "base/status.h"
#include "base/tls/fetch_authority.h"
#include "base/tls/folder.h"
#include "base/tls/join_token.h"
#include "base/tls/request.h"
#include "grpcpp/client_context.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "proto/join.grpc.pb.h"

namespace isthmus::daemon {
namespace {

constexpr char kFirstLine[] = "isthmus joined 1";
constexpr char kJoining[] = "/tls-joining";  // the key, while it has no certificate yet
constexpr int kMaxReplyBytes = 64 << 10;
constexpr int kMaxPort = 65535;

std::string HostOf(const std::string& address) { return address.substr(0, address.rfind(':')); }

absl::StatusOr<std::string> TokenText(const JoinFlags& flags) {
  if (!flags.file.empty()) return ReadSmallFile(flags.file, kMaxTokenFile);
  if (flags.token != "-") return flags.token;
  std::string line;
  char next = 0;
  while (std::cin.get(next) && next != '\n' && static_cast<int64_t>(line.size()) < kMaxTokenFile)
    line.push_back(next);
  return line;
}

absl::StatusOr<tls::JoinToken> TokenOf(const JoinFlags& flags) {
  const std::string flag = flags.file.empty() ? "--join" : "--join-file";
  const absl::StatusOr<std::string> text = TokenText(flags);
  if (!text.ok())
    return absl::InvalidArgumentError(absl::StrCat(flag, ": ", text.status().message()));
  absl::StatusOr<tls::JoinToken> token = tls::ReadJoinToken(*text);
  if (!token.ok()) return Annotate(token.status(), flag);
  for (const std::string& each : token->addresses) RETURN_IF_ERROR(rpc::CheckAddress(flag, each));
  return token;
}

std::string TextOf(const Joined& joined) {
  return absl::StrCat(kFirstLine, "\ncoordinator ", joined.coordinator, "\njoin ", joined.join,
                      "\n");
}

// What this daemon got before. NotFound: nothing, or it has expired.
absl::StatusOr<Joined> Kept(const JoinOptions& options) {
  const std::string dir = JoinedDir(options.state_dir);
  std::error_code error;
  if (!std::filesystem::exists(dir, error)) return absl::NotFoundError(dir);
  if (!std::filesystem::exists(absl::StrCat(dir, "/", tls::kJoinedFile), error)) {
    return absl::InvalidArgumentError(
        absl::StrCat(dir, " is there, and did not come by joining: use it with --tls-dir ", dir,
                     " instead of --join, or move it away"));
  }
  ASSIGN_OR_RETURN(Joined joined, ReadJoined(dir));
  ASSIGN_OR_RETURN(const std::string pem,
                   ReadSmallFile(absl::StrCat(dir, "/", tls::kCertificateFile), tls::kMaxPemBytes));
  ASSIGN_OR_RETURN(const tls::Certificate certificate, tls::ReadCertificate(pem, dir));
  if (tls::Today() > certificate.until) {
    LogWarning("the certificate of ", tls::Words(certificate.who), " expired on ",
               tls::DayOf(certificate.until), ": joining anew");
    return absl::NotFoundError(dir);
  }
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
  return joined;
}

// The key that the certificate will be for: made once, so that who asks again after a lost answer
// asks for the same.
absl::StatusOr<std::string> KeyOf(const std::string& dir) {
  std::error_code error;
  const std::string file = absl::StrCat(dir, "/", tls::kKeyFile);
  if (std::filesystem::exists(file, error)) return ReadSmallFile(file, tls::kMaxPemBytes);
  if (::mkdir(dir.c_str(), 0700) != 0 && errno != EEXIST)
    return absl::ErrnoToStatus(errno, absl::StrCat("making ", dir));
  ASSIGN_OR_RETURN(const std::string key, tls::MakeKey());
  RETURN_IF_ERROR(WriteFileDurably(file, key, 0600));
  return key;
}

absl::StatusOr<JoinReply> Ask(const std::string& address, const std::string& ca_pem,
                              const JoinRequest& request, const JoinOptions& options) {
  const auto channel = JoinChannel(address, ca_pem, "", "", options.use_proxy);
  grpc::ClientContext context;
  context.set_deadline(rpc::DeadlineAfter(options.patience));
  JoinReply reply;
  const grpc::Status status = Join::NewStub(channel)->Join(&context, request, &reply);
  if (status.ok()) return reply;
  if (rpc::Answered(status)) return rpc::FromGrpc(status);
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
                             const std::string& key, const JoinOptions& options) {
  Answer answer;
  ASSIGN_OR_RETURN(answer.ca_pem, tls::FetchAuthority(address, tls::kAnyCoordinator,
                                                      token.authority, options.patience));
  JoinRequest request;
  request.set_token_id(token.id);
  request.set_secret(token.secret);
  request.set_role(tls::RoleName(tls::Role::kWorker));
  ASSIGN_OR_RETURN(*request.mutable_request_pem(), tls::MakeRequest(key));
  ASSIGN_OR_RETURN(const JoinReply reply, Ask(address, answer.ca_pem, request, options));
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
  if (!absl::IsNotFound(kept.status())) return kept;
  ASSIGN_OR_RETURN(const tls::JoinToken token, TokenOf(options.flags));
  const std::string joining = options.state_dir + kJoining;
  ASSIGN_OR_RETURN(const std::string key, KeyOf(joining));
  absl::StatusOr<Answer> answer = absl::UnavailableError("the token names no address");
  for (const std::string& address : token.addresses) {
    answer = AskAt(address, token, key, options);
    // Only where nobody of this cluster answered another address may help.
    if (!absl::IsUnavailable(answer.status()) && !absl::IsUnauthenticated(answer.status())) break;
  }
  RETURN_IF_ERROR(answer.status());
  answer->joined.tls_dir = JoinedDir(options.state_dir);
  RETURN_IF_ERROR(Store(*answer, key, answer->joined.tls_dir));
  std::error_code left;
  std::filesystem::remove_all(joining, left);  // at the next start otherwise
  return answer->joined;
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
