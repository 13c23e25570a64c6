// Which role may call what. Thread: pure functions.
#ifndef ISTHMUS_BASE_RPC_ALLOWED_CALLS_H_
#define ISTHMUS_BASE_RPC_ALLOWED_CALLS_H_

#include <initializer_list>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/tls/certificate.h"

namespace isthmus::rpc {

class Roles {
 public:
  constexpr Roles(std::initializer_list<tls::Role> roles) {
    for (const tls::Role role : roles) bits_ |= 1u << static_cast<unsigned>(role);
  }
  constexpr bool Has(tls::Role role) const {
    return (bits_ >> static_cast<unsigned>(role) & 1u) != 0;
  }

 private:
  unsigned bits_ = 0;
};

struct AllowedCall {
  absl::string_view call;  // "/isthmus.Jobs/Stop", as HTTP/2 has it
  Roles roles;
};

// PermissionDenied names who, what, and which roles may. Unimplemented: the call is not in the
// table, as another build's may be.
absl::Status CheckCall(absl::Span<const AllowedCall> table, const tls::Identity& who,
                       absl::string_view call);

std::string CallName(absl::string_view call);  // "Jobs.Stop" of "/isthmus.Jobs/Stop"

}  // namespace isthmus::rpc

#endif  // ISTHMUS_BASE_RPC_ALLOWED_CALLS_H_
