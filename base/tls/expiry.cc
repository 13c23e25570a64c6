#include "base/tls/expiry.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace isthmus::tls {

std::string ExpiryWarning(const Certificate& certificate, absl::Time now) {
  const absl::Duration left = certificate.until - now;
  const absl::Duration life = certificate.until - certificate.from;
  if (left >= std::min(kExpiresSoon, life / 4)) return "";  // renewed ones are by a third
  return absl::StrCat("the certificate of ", Words(certificate.who), " ends in ",
                      absl::ToInt64Hours(left) / 24, " days, on ", DayOf(certificate.until),
                      ": issue another (isthmus ca issue ", certificate.who.name, " --role ",
                      RoleName(certificate.who.role),
                      " --out FOLDER), put it in the place of this one and restart");
}

}  // namespace isthmus::tls
