#include "base/tls/openssl.h"

#include <openssl/bn.h>
#include <openssl/err.h>
#include <openssl/pem.h>

#include <ctime>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace isthmus::tls {
namespace {

Owned<BIO> Reading(const std::string& text) {
  return Owned<BIO>(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

template <typename Write>
std::string Written(Write write) {
  const Owned<BIO> out(BIO_new(BIO_s_mem()));
  write(out.get());
  char* data = nullptr;
  const long bytes = BIO_get_mem_data(out.get(), &data);
  return std::string(data, static_cast<size_t>(bytes));
}

absl::Status Unreadable(absl::string_view where, absl::string_view what) {
  ERR_clear_error();
  return absl::InvalidArgumentError(absl::StrCat(where, ": has no ", what, " in PEM"));
}

// A key with a passphrase is refused, not asked for: daemons have nobody to ask.
int NoPassphrase(char*, int, int, void*) { return 0; }

}  // namespace

absl::Status OpensslError(absl::string_view what) {
  char words[256] = "no reason given";
  if (const unsigned long code = ERR_peek_last_error(); code != 0)
    ERR_error_string_n(code, words, sizeof(words));
  ERR_clear_error();
  return absl::InternalError(absl::StrCat(what, ": ", words));
}

absl::StatusOr<Owned<X509>> ParseCertificate(const std::string& pem, absl::string_view where) {
  Owned<X509> found(PEM_read_bio_X509(Reading(pem).get(), nullptr, NoPassphrase, nullptr));
  if (found == nullptr) return Unreadable(where, "certificate");
  return found;
}

absl::StatusOr<Owned<EVP_PKEY>> ParseKey(const std::string& pem, absl::string_view where) {
  Owned<EVP_PKEY> found(
      PEM_read_bio_PrivateKey(Reading(pem).get(), nullptr, NoPassphrase, nullptr));
  if (found == nullptr) return Unreadable(where, "private key without a passphrase");
  return found;
}

absl::StatusOr<Owned<X509_CRL>> ParseRevoked(const std::string& pem, X509* ca,
                                             absl::string_view where) {
  Owned<X509_CRL> found(PEM_read_bio_X509_CRL(Reading(pem).get(), nullptr, NoPassphrase, nullptr));
  if (found == nullptr) return Unreadable(where, "list of revoked certificates");
  if (X509_CRL_verify(found.get(), X509_get0_pubkey(ca)) == 1) return found;
  ERR_clear_error();
  return absl::InvalidArgumentError(
      absl::StrCat(where, ": is not signed by the authority of ca.pem beside it"));
}

std::string PemOf(X509* certificate) {
  return Written([&](BIO* out) { PEM_write_bio_X509(out, certificate); });
}
std::string PemOf(EVP_PKEY* key) {
  return Written(
      [&](BIO* out) { PEM_write_bio_PrivateKey(out, key, nullptr, nullptr, 0, nullptr, nullptr); });
}
std::string PemOf(X509_CRL* list) {
  return Written([&](BIO* out) { PEM_write_bio_X509_CRL(out, list); });
}
std::string PemOf(X509_REQ* request) {
  return Written([&](BIO* out) { PEM_write_bio_X509_REQ(out, request); });
}

std::string HashOf(X509* certificate) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int bytes = 0;
  X509_digest(certificate, EVP_sha256(), digest, &bytes);
  return std::string(reinterpret_cast<const char*>(digest), bytes);
}

absl::StatusOr<std::string> KeyHashOf(EVP_PKEY* key) {
  unsigned char* encoded = nullptr;
  const int length = i2d_PUBKEY(key, &encoded);
  if (length <= 0) return OpensslError("encoding a public key");
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int bytes = 0;
  EVP_Digest(encoded, static_cast<size_t>(length), digest, &bytes, EVP_sha256(), nullptr);
  OPENSSL_free(encoded);
  return std::string(reinterpret_cast<const char*>(digest), bytes);
}

std::string HexOf(const ASN1_INTEGER* serial) {
  const Owned<BIGNUM> number(ASN1_INTEGER_to_BN(serial, nullptr));
  char* hex = BN_bn2hex(number.get());
  std::string text = absl::AsciiStrToLower(hex);
  OPENSSL_free(hex);
  return text;
}

absl::Time TimeOf(const ASN1_TIME* time) {
  std::tm parts = {};
  if (ASN1_TIME_to_tm(time, &parts) != 1) return absl::InfinitePast();
  return absl::FromTM(parts, absl::UTCTimeZone());
}

}  // namespace isthmus::tls
