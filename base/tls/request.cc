#include "base/tls/request.h"

#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/pem.h>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/tls/authority.h"
#include "base/tls/openssl.h"
#include "base/tls/signed_request.h"

namespace isthmus::tls {
namespace {

constexpr char kGroup[] = "prime256v1";  // P-256, as OpenSSL calls it
constexpr int kOfRenewal = 3;            // a third of the life is left

absl::Status Bad(absl::string_view why) {
  ERR_clear_error();
  return absl::InvalidArgumentError(absl::StrCat("the request for a certificate ", why));
}

bool IsP256(const EVP_PKEY* key) {
  char group[32] = {};
  size_t bytes = 0;
  return EVP_PKEY_get_group_name(key, group, sizeof(group), &bytes) == 1 &&
         absl::string_view(group, bytes) == kGroup;
}

}  // namespace

absl::StatusOr<Owned<EVP_PKEY>> ReadRequest(const std::string& pem) {
  if (pem.size() > kMaxRequestBytes)
    return Bad(absl::StrCat("has ", pem.size(), " bytes; at most ", kMaxRequestBytes));
  const Owned<BIO> in(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  const Owned<X509_REQ> request(PEM_read_bio_X509_REQ(in.get(), nullptr, nullptr, nullptr));
  if (request == nullptr) return Bad("is none in PEM");
  Owned<EVP_PKEY> key(X509_REQ_get_pubkey(request.get()));
  if (key == nullptr || !IsP256(key.get())) return Bad("is not for a key of P-256");
  if (X509_REQ_verify(request.get(), key.get()) != 1)
    return Bad("is not signed by its own key: whoever sends it does not have that key");
  return key;
}

absl::StatusOr<std::string> MakeKey() {
  const Owned<EVP_PKEY> key(EVP_EC_gen("P-256"));
  if (key == nullptr) return OpensslError("making a key");
  return PemOf(key.get());
}

absl::StatusOr<std::string> MakeRequest(const std::string& key_pem) {
  ASSIGN_OR_RETURN(const Owned<EVP_PKEY> key, ParseKey(key_pem, "the key of this host"));
  const Owned<X509_REQ> request(X509_REQ_new());
  if (request == nullptr || X509_REQ_set_version(request.get(), X509_REQ_VERSION_1) != 1 ||
      X509_REQ_set_pubkey(request.get(), key.get()) != 1 ||
      X509_REQ_sign(request.get(), key.get(), EVP_sha256()) <= 0)
    return OpensslError("making a request for a certificate");
  return PemOf(request.get());
}

absl::StatusOr<std::string> KeyOfRequest(const std::string& request_pem) {
  ASSIGN_OR_RETURN(const Owned<EVP_PKEY> key, ReadRequest(request_pem));
  ASSIGN_OR_RETURN(const std::string hash, KeyHashOf(key.get()));
  return absl::BytesToHexString(hash);
}

absl::StatusOr<Certificate> CheckAnswer(const std::string& certificate_pem,
                                        const std::string& key_pem, const std::string& ca_pem,
                                        absl::Time now) {
  constexpr char kWhere[] = "the coordinator's answer";
  const auto untrusted = [&](absl::string_view why) {
    ERR_clear_error();
    return absl::UnauthenticatedError(absl::StrCat(kWhere, " ", why, ": it is not taken"));
  };
  ASSIGN_OR_RETURN(const Owned<X509> made, ParseCertificate(certificate_pem, kWhere));
  ASSIGN_OR_RETURN(const Owned<X509> ca, ParseCertificate(ca_pem, "the authority's certificate"));
  ASSIGN_OR_RETURN(const Owned<EVP_PKEY> key, ParseKey(key_pem, "the key of this host"));
  if (X509_verify(made.get(), X509_get0_pubkey(ca.get())) != 1)
    return untrusted("is not signed by the authority");
  if (X509_check_private_key(made.get(), key.get()) != 1)
    return untrusted("is a certificate for another key than this host's");
  ASSIGN_OR_RETURN(const Certificate certificate, ReadCertificate(certificate_pem, kWhere));
  if (certificate.who.role != Role::kWorker)
    return untrusted(absl::StrCat("is the certificate of ", Words(certificate.who)));
  if (CheckTimes(certificate, now).ok()) return certificate;
  const auto moment = [](absl::Time time) {
    return absl::FormatTime(absl::RFC3339_sec, time, absl::UTCTimeZone());
  };
  return absl::FailedPreconditionError(
      absl::StrCat(kWhere, " is a certificate from ", moment(certificate.from), " until ",
                   moment(certificate.until), ", and this host's clock says ", moment(now),
                   ": set the clock of this host, or of the coordinator's"));
}

absl::Time RenewalTime(const Certificate& certificate) {
  return certificate.until - (certificate.until - certificate.from - kClockTolerance) / kOfRenewal;
}

}  // namespace isthmus::tls
