// How a daemon that has no certificate gets one: by a token, for a key that it makes itself and
// that never leaves it. What it got lies in `tls` of its state directory, durably, with `joined`
// beside the files of any TLS folder; a restart takes that and needs no token. Thread: one owner.
#ifndef ISTHMUS_DAEMON_JOIN_H_
#define ISTHMUS_DAEMON_JOIN_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace grpc {
class Channel;
}  // namespace grpc

namespace isthmus::daemon {

constexpr int64_t kMaxTokenFile = 4096;  // bytes

struct JoinFlags {
  std::string token;  // --join: the text itself, or "-" for a line of the standard input
  std::string file;   // --join-file
  bool given() const { return !token.empty() || !file.empty(); }
};

struct JoinOptions {
  JoinFlags flags;
  std::string state_dir;  // locked by the caller
  bool use_proxy = false;
  absl::Duration patience = absl::Seconds(20);  // with each address, for each of two handshakes
  absl::Duration in_all = absl::Seconds(60);    // with all addresses together
  std::function<bool()> stop{};                 // where given, ends it early; asked often
};

struct Joined {
  std::string tls_dir;
  std::string coordinator;  // host:port: the host that the token names, with the port it told
  std::string join;         // host:port where certificates are renewed
};

std::string JoinedDir(const std::string& state_dir);

// InvalidArgument: the token can't be read, or the state directory holds a certificate that did not
// come by joining, or one of another authority. FailedPrecondition: what it holds can't be used,
// which a new certificate must not hide; or a clock is wrong. PermissionDenied, AlreadyExists: the
// coordinator refused. Unauthenticated: who answers is not of the token's cluster. Unavailable:
// nobody answers. Cancelled: `stop`.
absl::StatusOr<Joined> JoinCluster(const JoinOptions& options);

// "--join -": reads the line, if the state directory holds no certificate that can be used. Waits
// for whoever types it: before signals are blocked.
void ReadTokenLine(const std::string& state_dir, JoinFlags* flags);

// "" unless other users may read the file.
std::string TokenFileWarning(const std::string& file);
// `text` with xxx in the place of the secrets of join tokens.
std::string WithoutTokens(std::string text);

// What lies in `joined` of a folder. NotFound: it did not come by joining.
absl::StatusOr<Joined> ReadJoined(const std::string& tls_dir);

// To the coordinator's --join-listen, trusting that authority alone; with a certificate, or as one
// who has none ("").
std::shared_ptr<grpc::Channel> JoinChannel(const std::string& address, const std::string& ca_pem,
                                           const std::string& key_pem,
                                           const std::string& certificate_pem, bool use_proxy);

// Whether `flag` stands among the arguments, and not in the environment alone.
bool Typed(int argc, const char* const* argv, absl::string_view flag);

// Overwrites what stands behind --join in the process's arguments: every user of the host may read
// them for as long as it runs.
void HideToken(int argc, char** argv);

}  // namespace isthmus::daemon

#endif  // ISTHMUS_DAEMON_JOIN_H_
