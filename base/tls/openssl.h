// Owners of OpenSSL's objects, and what went wrong in it as a Status. For the .cc files of base/tls
// alone. Thread: values.
#ifndef ISTHMUS_BASE_TLS_OPENSSL_H_
#define ISTHMUS_BASE_TLS_OPENSSL_H_

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/x509.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace isthmus::tls {

struct OpensslFree {
  void operator()(BIO* p) const { BIO_free_all(p); }
  void operator()(EVP_PKEY* p) const { EVP_PKEY_free(p); }
  void operator()(X509* p) const { X509_free(p); }
  void operator()(X509_REQ* p) const { X509_REQ_free(p); }
  void operator()(X509_CRL* p) const { X509_CRL_free(p); }
  void operator()(ASN1_STRING* p) const { ASN1_STRING_free(p); }  // times and integers, too
  void operator()(BIGNUM* p) const { BN_free(p); }
};
template <typename T>
using Owned = std::unique_ptr<T, OpensslFree>;

// Internal, with the library's own words; its queue of errors is empty afterwards.
absl::Status OpensslError(absl::string_view what);

// InvalidArgument: no certificate, key or list in it; `where` names the file. The last one must be
// signed by the authority `ca`.
absl::StatusOr<Owned<X509>> ParseCertificate(const std::string& pem, absl::string_view where);
absl::StatusOr<Owned<EVP_PKEY>> ParseKey(const std::string& pem, absl::string_view where);
absl::StatusOr<Owned<X509_CRL>> ParseRevoked(const std::string& pem, X509* ca,
                                             absl::string_view where);

std::string PemOf(X509* certificate);
std::string PemOf(EVP_PKEY* key);
std::string PemOf(X509_CRL* list);
std::string PemOf(X509_REQ* request);

// SHA-256, 32 bytes: of the certificate as a whole, and of the public key alone.
std::string HashOf(X509* certificate);
absl::StatusOr<std::string> KeyHashOf(EVP_PKEY* key);

std::string HexOf(const ASN1_INTEGER* serial);  // lower case
absl::Time TimeOf(const ASN1_TIME* time);

}  // namespace isthmus::tls

#endif  // ISTHMUS_BASE_TLS_OPENSSL_H_
