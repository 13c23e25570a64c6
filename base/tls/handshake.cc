#include "base/tls/handshake.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "base/tls/openssl.h"
#include "base/tls/socket.h"

namespace isthmus::tls {
namespace {

bool Use(SSL_CTX* context, const Folder& mine) {
  const auto ca = ParseCertificate(mine.ca_pem, kCaFile);
  if (mine.certificate_pem.empty()) {
    return ca.ok() && X509_STORE_add_cert(SSL_CTX_get_cert_store(context), ca->get()) == 1;
  }
  const auto certificate = ParseCertificate(mine.certificate_pem, kCertificateFile);
  const auto key = ParseKey(mine.key_pem, kKeyFile);
  return ca.ok() && certificate.ok() && key.ok() &&
         X509_STORE_add_cert(SSL_CTX_get_cert_store(context), ca->get()) == 1 &&
         SSL_CTX_use_certificate(context, certificate->get()) == 1 &&
         SSL_CTX_use_PrivateKey(context, key->get()) == 1;
}

std::string NameThere(X509* certificate) {
  const auto read = ReadCertificate(PemOf(certificate), "");
  return read.ok() ? Words(read->who) : "none of Isthmus";
}

// What this end finds wrong with the certificate there; a session that fails does not keep it.
struct Seen {
  int error = X509_V_OK;
  Owned<X509> certificate;
};

int See(int ok, X509_STORE_CTX* context) {
  const auto* ssl =
      static_cast<SSL*>(X509_STORE_CTX_get_ex_data(context, SSL_get_ex_data_X509_STORE_CTX_idx()));
  auto* seen = static_cast<Seen*>(SSL_get_app_data(ssl));
  X509* certificate = X509_STORE_CTX_get0_cert(context);
  if (ok == 1 || seen->error != X509_V_OK || certificate == nullptr) return ok;
  seen->error = X509_STORE_CTX_get_error(context);
  X509_up_ref(certificate);
  seen->certificate.reset(certificate);
  return ok;
}

std::string Distrust(const Seen& seen, const std::string& address, const std::string& server_name,
                     bool joins) {
  const X509* there = seen.certificate.get();
  if (there == nullptr) return "";
  const std::string whose =
      absl::StrCat("the certificate at ", address, " (", NameThere(seen.certificate.get()), ") ");
  switch (seen.error) {
    case X509_V_ERR_HOSTNAME_MISMATCH:
      return absl::StrCat(whose, "is not that of ", server_name,
                          ": another program answers there, or its certificate was issued for "
                          "another name or role");
    case X509_V_ERR_CERT_HAS_EXPIRED:
      return absl::StrCat(whose, "expired on ", DayOf(TimeOf(X509_get0_notAfter(there))),
                          ": issue a new one there, or set this host's clock");
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return absl::StrCat(whose, "is not valid yet: set the clock of this host");
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
      return absl::StrCat(whose, "is of another authority than ",
                          joins ? "the join token names" : "this --tls-dir");
    default:
      return absl::StrCat(whose, "is not trusted: ", X509_verify_cert_error_string(seen.error));
  }
}

// What the other end found wrong: it says so in an alert, or only closes.
std::string Refused(const std::string& address, const Folder* mine) {
  const int reason = ERR_GET_REASON(ERR_peek_last_error());
  const std::string who = mine == nullptr ? "" : Words(mine->certificate.who);
  switch (reason) {
    case SSL_R_WRONG_VERSION_NUMBER:
    case SSL_R_HTTP_REQUEST:
    case SSL_R_PACKET_LENGTH_TOO_LONG:
      return mine == nullptr
                 ? ""
                 : absl::StrCat(address,
                                " speaks plain text, and this program TLS alone: start what "
                                "listens there with --tls-dir");
    case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
      return absl::StrCat(address, " does not take the certificate of ", who,
                          ": it is of another authority than its own");
    case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED:
      return absl::StrCat(address, " does not take the certificate of ", who, ": it has expired");
    default:
      return mine == nullptr
                 ? ""
                 : absl::StrCat(address, " does not take the certificate of ", who,
                                ": is it of the same authority, and of a client's role?");
  }
}

std::string WantsTls(const std::string& address) {
  return absl::StrCat(address,
                      " speaks TLS alone, and this program has no certificate: name its folder "
                      "with --tls-dir (isthmus ca issue makes one)");
}

}  // namespace

std::string HandshakeFault(const std::string& address, const Folder* mine,
                           const std::string& server_name, absl::Duration patience,
                           const std::function<bool()>& stop) {
  const NoPipeSignal no_signal;
  Socket socket(SteadyNow() + patience, stop);
  if (!socket.Connect(address)) return "";
  const std::unique_ptr<SSL_CTX, SslFree> context(SSL_CTX_new(TLS_client_method()));
  if (context == nullptr || (mine != nullptr && !Use(context.get(), *mine))) return "";
  SSL_CTX_set_verify(context.get(), mine == nullptr ? SSL_VERIFY_NONE : SSL_VERIFY_PEER,
                     mine == nullptr ? nullptr : See);
  const std::unique_ptr<SSL, SslFree> ssl(SSL_new(context.get()));
  if (ssl == nullptr || SSL_set_fd(ssl.get(), socket.fd()) != 1) return "";
  Seen seen;
  SSL_set_app_data(ssl.get(), &seen);
  SSL_set_alpn_protos(ssl.get(), kHttp2, sizeof(kHttp2));
  SSL_set_tlsext_host_name(ssl.get(), server_name.c_str());
  if (mine != nullptr) SSL_set1_host(ssl.get(), server_name.c_str());
  const Step shaken = Until(socket, ssl.get(), [&] { return SSL_connect(ssl.get()); });
  std::string fault;
  if (shaken == Step::kFailed) {
    const bool joins = mine != nullptr && mine->certificate_pem.empty();
    fault = Distrust(seen, address, server_name, joins);
    if (fault.empty() && !joins) fault = Refused(address, mine);
  } else if (shaken == Step::kDone && mine == nullptr) {
    fault = WantsTls(address);
  } else if (shaken == Step::kDone && !mine->certificate_pem.empty()) {
    // TLS 1.3 judges the client's certificate after the handshake; who takes it sends settings.
    char byte = 0;
    const Step told = Until(socket, ssl.get(), [&] { return SSL_read(ssl.get(), &byte, 1); });
    if (told == Step::kFailed) fault = Refused(address, mine);
  }
  ERR_clear_error();
  return fault;
}

std::string ServerFault(const std::string& address, const std::string& ca_pem,
                        const std::string& server_name, absl::Duration patience,
                        const std::function<bool()>& stop) {
  Folder nobody;
  nobody.ca_pem = ca_pem;
  return HandshakeFault(address, &nobody, server_name, patience, stop);
}

}  // namespace isthmus::tls
