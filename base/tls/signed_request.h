// A request for a certificate, as the authority reads it. For the .cc files of base/tls alone; made
// in request.cc. Thread: pure functions.
#ifndef ISTHMUS_BASE_TLS_SIGNED_REQUEST_H_
#define ISTHMUS_BASE_TLS_SIGNED_REQUEST_H_

#include <string>

#include "absl/status/statusor.h"
#include "base/tls/openssl.h"

namespace isthmus::tls {

// The public key in it; errors as KeyOfRequest.
absl::StatusOr<Owned<EVP_PKEY>> ReadRequest(const std::string& pem);

}  // namespace isthmus::tls

#endif  // ISTHMUS_BASE_TLS_SIGNED_REQUEST_H_
