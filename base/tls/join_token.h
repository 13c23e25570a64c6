// The text by which a host joins a cluster, as a user copies it: where to ask, the SHA-256 of the
// authority's certificate by which that place is told from others, and a secret that the authority
// counts. The authority keeps no more of the secret than its hash. Thread: values, pure but for
// the system's random bytes.
#ifndef ISTHMUS_BASE_TLS_JOIN_TOKEN_H_
#define ISTHMUS_BASE_TLS_JOIN_TOKEN_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace isthmus::tls {

constexpr size_t kMaxTokenAddresses = 4;
constexpr size_t kMaxTokenAddressBytes = 128;
constexpr size_t kMaxTokenText = 1024;  // characters; a longer text is not looked at
constexpr size_t kTokenIdBytes = 8;
constexpr size_t kTokenSecretBytes = 32;

inline constexpr char kTokenPrefix[] = "isthmus-join-";  // of its text

struct JoinToken {
  std::vector<std::string> addresses;  // host:port of the coordinator's --join-listen, by turns
  std::string authority;               // SHA-256 of its certificate, 32 bytes
  std::string id;                      // kTokenIdBytes; not secret
  std::string secret;                  // kTokenSecretBytes; never logged
};

// With a new id and secret. InvalidArgument: addresses that a token can't hold.
absl::StatusOr<JoinToken> NewJoinToken(const std::vector<std::string>& addresses,
                                       const std::string& authority);

// "isthmus-join-...": letters, digits, '-' and '_' alone.
std::string JoinTokenText(const JoinToken& token);

// InvalidArgument: it is none, was cut off or mistyped, or is of a newer version; the message holds
// nothing of it. Blanks and line breaks around it are not looked at.
absl::StatusOr<JoinToken> ReadJoinToken(absl::string_view text);

// Of a secret, a key or a certificate: SHA-256, 32 bytes.
std::string Sha256(absl::string_view bytes);
// In a time that tells nothing of where they differ.
bool SameSecret(absl::string_view a, absl::string_view b);
// The bytes of the certificate in `pem`, hashed. InvalidArgument: there is none.
absl::StatusOr<std::string> AuthorityHash(const std::string& pem, absl::string_view where);

}  // namespace isthmus::tls

#endif  // ISTHMUS_BASE_TLS_JOIN_TOKEN_H_
