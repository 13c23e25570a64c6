#include "base/rpc/listening.h"

#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace isthmus::rpc {
namespace {

std::string HostPart(const std::string& address) { return address.substr(0, address.rfind(':')); }

absl::Status CheckFlags(const Secured& secured) {
  if (!secured.tls || !secured.insecure) return absl::OkStatus();
  return absl::InvalidArgumentError("--tls-dir and --insecure exclude each other");
}

std::string Commands(tls::Role role) {
  const std::string name = role == tls::Role::kCoordinator ? "coordinator" : "NAME";
  return absl::StrCat("\n  isthmus ca init\n  isthmus ca issue ", name, " --role ",
                      tls::RoleName(role), "\nand give --tls-dir isthmus-ca/certificates/", name);
}

}  // namespace

bool IsLoopback(const std::string& address) {
  const std::string host = HostPart(address);
  if (host == "localhost" || host == "[::1]") return true;
  return absl::StartsWith(host, "127.") &&
         host.find_first_not_of("0123456789.") == std::string::npos;
}

void TypedWins(int argc, const char* const* argv, std::string* tls_dir, bool* insecure) {
  const auto typed = [&](absl::string_view flag) {
    for (int i = 1; i < argc; ++i) {
      const absl::string_view word = argv[i];
      if (word == flag || absl::StartsWith(word, absl::StrCat(flag, "="))) return true;
    }
    return false;
  };
  if (typed("--insecure") && !typed("--tls-dir")) tls_dir->clear();
  if (typed("--tls-dir") && !typed("--insecure")) *insecure = false;
}

std::string NameTheVariable(const std::string& error) {
  const char* const value = std::getenv("ISTHMUS_INSECURE");
  if (value == nullptr || !absl::StrContains(error, absl::StrCat("--insecure = ", value)))
    return error;
  return absl::StrCat("the environment says ISTHMUS_INSECURE=", value,
                      ": set it to 1 or 0, or unset it\n");
}

absl::Status CheckListening(const std::string& address, const Secured& secured, tls::Role role) {
  if (const absl::Status bad = CheckFlags(secured); !bad.ok()) return bad;
  if (secured.tls || secured.insecure || IsLoopback(address)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "--listen ", address,
      ": whoever reaches that address could command this program, and read and change what it "
      "sends. Make certificates:",
      Commands(role),
      "; or listen on 127.0.0.1; or, in a network that is private already, --insecure"));
}

absl::Status CheckDialling(const std::string& flag, const std::string& address,
                           const Secured& secured, tls::Role role) {
  if (const absl::Status bad = CheckFlags(secured); !bad.ok()) return bad;
  if (secured.tls || secured.insecure || IsLoopback(address)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      flag, " ", address,
      " is another machine, and without a certificate what is said could be read and changed on "
      "the way. Make one where the cluster's authority is:",
      Commands(role),
      " (or ISTHMUS_TLS_DIR); or, in a network that is private already, --insecure"));
}

}  // namespace isthmus::rpc
