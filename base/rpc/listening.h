// What an address to listen on, or to dial, asks of TLS: nothing on loopback, certificates
// elsewhere, or a user who says --insecure. Thread: pure functions.
#ifndef ISTHMUS_BASE_RPC_LISTENING_H_
#define ISTHMUS_BASE_RPC_LISTENING_H_

#include <string>

#include "absl/status/status.h"
#include "base/tls/certificate.h"

namespace isthmus::rpc {

// Is HOST of host:port this machine alone? A name other than localhost is not looked up: no.
bool IsLoopback(const std::string& address);

struct Secured {
  bool tls = false;       // --tls-dir is given
  bool insecure = false;  // --insecure is
};

// Of a flag and a variable of the environment that exclude each other the typed one holds. `argv`
// as main has it.
void TypedWins(int argc, const char* const* argv, std::string* tls_dir, bool* insecure);

// What is wrong with a command line, from CLI11's words: of ISTHMUS_INSECURE they name the flag
// alone, and the user has typed none.
std::string NameTheVariable(const std::string& error);

// InvalidArgument: a server at `address` could be reached by anybody; with the commands that make
// certificates for one of `role`, or both flags are given.
absl::Status CheckListening(const std::string& address, const Secured& secured, tls::Role role);

// InvalidArgument: `address` is another machine, and what would be said could be read and changed
// on the way; with the commands that make a certificate.
absl::Status CheckDialling(const std::string& flag, const std::string& address,
                           const Secured& secured, tls::Role role);

}  // namespace isthmus::rpc

#endif  // ISTHMUS_BASE_RPC_LISTENING_H_
