#include "base/tls/revoked.h"

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/tls/openssl.h"

namespace isthmus::tls {

absl::StatusOr<Revoked> Revoked::Read(const std::string& pem, const std::string& ca_pem,
                                      absl::string_view where) {
  if (static_cast<int64_t>(pem.size()) > kMaxRevokedBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": has ", pem.size(), " bytes; at most ", kMaxRevokedBytes));
  }
  ASSIGN_OR_RETURN(const Owned<X509> ca, ParseCertificate(ca_pem, "ca.pem"));
  ASSIGN_OR_RETURN(const Owned<X509_CRL> list, ParseRevoked(pem, ca.get(), where));
  Revoked revoked;
  revoked.pem_ = pem;
  STACK_OF(X509_REVOKED)* entries = X509_CRL_get_REVOKED(list.get());
  for (int i = 0; i < sk_X509_REVOKED_num(entries); ++i) {
    const X509_REVOKED* entry = sk_X509_REVOKED_value(entries, i);
    revoked.when_[HexOf(X509_REVOKED_get0_serialNumber(entry))] =
        TimeOf(X509_REVOKED_get0_revocationDate(entry));
  }
  return revoked;
}

const absl::Time* Revoked::Find(const std::string& serial) const {
  const auto it = when_.find(serial);
  return it == when_.end() ? nullptr : &it->second;
}

bool Revoked::Covers(const Revoked& other) const {
  for (const auto& [serial, when] : other.when_) {
    if (when_.count(serial) == 0) return false;
  }
  return true;
}

}  // namespace isthmus::tls
