// Certificates end; what is said of it in time. Thread: pure functions.
#ifndef ISTHMUS_BASE_TLS_EXPIRY_H_
#define ISTHMUS_BASE_TLS_EXPIRY_H_

#include <string>

#include "absl/time/time.h"
#include "base/tls/certificate.h"

namespace isthmus::tls {

constexpr absl::Duration kExpiresSoon = absl::Hours(24 * 30);

// "" while it holds for kExpiresSoon, or a quarter of its life where that is less; else when it
// ends, and what to do.
std::string ExpiryWarning(const Certificate& certificate, absl::Time now);

}  // namespace isthmus::tls

#endif  // ISTHMUS_BASE_TLS_EXPIRY_H_
