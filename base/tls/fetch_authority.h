// The certificate of a cluster's authority, from a server that nobody vouches for yet: what is
// shown there is thrown away unless its SHA-256 is the one that is known. Thread: pure but for the
// connection it makes and closes.
#ifndef ISTHMUS_BASE_TLS_FETCH_AUTHORITY_H_
#define ISTHMUS_BASE_TLS_FETCH_AUTHORITY_H_

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace isthmus::tls {

constexpr long kMaxShownBytes = 16 << 10;  // of the certificates that a server shows

// In PEM. `hash`: its SHA-256, 32 bytes. Unavailable: nobody answers at `address` (host:port), or
// not in TLS 1.3. Unauthenticated: the server shows no such certificate. Nothing is said but the
// handshake. `stop`, where given, ends it early.
absl::StatusOr<std::string> FetchAuthority(const std::string& address,
                                           const std::string& server_name, const std::string& hash,
                                           absl::Duration patience,
                                           const std::function<bool()>& stop = nullptr);

}  // namespace isthmus::tls

#endif  // ISTHMUS_BASE_TLS_FETCH_AUTHORITY_H_
