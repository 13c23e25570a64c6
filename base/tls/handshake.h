// Why a connection does not come about, as its TLS handshake tells: gRPC says no more than that it
// failed. Only asked after such a failure. Thread: pure but for the connection it makes and closes.
#ifndef ISTHMUS_BASE_TLS_HANDSHAKE_H_
#define ISTHMUS_BASE_TLS_HANDSHAKE_H_

#include <functional>
#include <string>

#include "absl/time/time.h"
#include "base/tls/folder.h"

namespace isthmus::tls {

// In words, with the cure; "" where nobody answers at `address` (host:port), or nothing is amiss.
// `mine`: null for one who would speak plain text. `server_name` is what the certificate there has
// to name.
// `stop`, where given, ends it early: "".
std::string HandshakeFault(const std::string& address, const Folder* mine,
                           const std::string& server_name, absl::Duration patience,
                           const std::function<bool()>& stop = nullptr);

// The same for a client that shows no certificate, and trusts the authority `ca_pem` alone: what is
// wrong with the certificate there; "" also where something else is.
std::string ServerFault(const std::string& address, const std::string& ca_pem,
                        const std::string& server_name, absl::Duration patience,
                        const std::function<bool()>& stop = nullptr);

}  // namespace isthmus::tls

#endif  // ISTHMUS_BASE_TLS_HANDSHAKE_H_
