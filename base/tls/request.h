// A host's own key, and its request for a certificate of it. The key never leaves the host; of the
// request the authority takes the public key and nothing else. Thread: pure functions.
#ifndef ISTHMUS_BASE_TLS_REQUEST_H_
#define ISTHMUS_BASE_TLS_REQUEST_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/tls/certificate.h"

namespace isthmus::tls {

// In a TLS folder that a daemon got by joining: where its certificate is renewed.
inline constexpr char kJoinedFile[] = "joined";

// In what an authority answers to a host whose key was revoked: a new key helps, and nothing else.
inline constexpr char kRevokedKeyWords[] = "its key gets no other";

constexpr size_t kMaxRequestBytes = 4096;  // of the PEM; one has about 400

// A new P-256 key in PEM. Secret.
absl::StatusOr<std::string> MakeKey();

// The request for that key, signed by it, in PEM.
absl::StatusOr<std::string> MakeRequest(const std::string& key_pem);

// SHA-256 of the public key in a request, hexadecimal. InvalidArgument: it is none, is too long, is
// not signed by its own key, or the key is not P-256.
absl::StatusOr<std::string> KeyOfRequest(const std::string& request_pem);

// What an authority answered, looked at by the host that asked with `key_pem`. Unauthenticated: it
// is not signed by `ca_pem`, not for that key, or of another role than worker. FailedPrecondition:
// it holds not now: one of the clocks is wrong.
absl::StatusOr<Certificate> CheckAnswer(const std::string& certificate_pem,
                                        const std::string& key_pem, const std::string& ca_pem,
                                        absl::Time now);

// When a certificate is to be renewed: a third of its life before its end.
absl::Time RenewalTime(const Certificate& certificate);

}  // namespace isthmus::tls

#endif  // ISTHMUS_BASE_TLS_REQUEST_H_
