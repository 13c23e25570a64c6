#include "base/tls/fetch_authority.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "base/tls/join_token.h"
#include "base/tls/openssl.h"
#include "base/tls/socket.h"

namespace isthmus::tls {

absl::StatusOr<std::string> FetchAuthority(const std::string& address,
                                           const std::string& server_name, const std::string& hash,
                                           absl::Duration patience,
                                           const std::function<bool()>& stop) {
  const NoPipeSignal no_signal;
  Socket socket(SteadyNow() + patience, stop);
  if (!socket.Connect(address)) {
    return absl::UnavailableError(
        absl::StrCat("nobody answers at ", address,
                     ": see that isthmus-coordinator runs there with --join-listen, and that its "
                     "port is open to this host"));
  }
  const std::unique_ptr<SSL_CTX, SslFree> context(SSL_CTX_new(TLS_client_method()));
  if (context == nullptr) return OpensslError("preparing a handshake");
  SSL_CTX_set_min_proto_version(context.get(), TLS1_3_VERSION);
  SSL_CTX_set_max_cert_list(context.get(), kMaxShownBytes);
  // Whoever answers is judged by the hash below, and by a second handshake with what is found.
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_NONE, nullptr);
  const std::unique_ptr<SSL, SslFree> ssl(SSL_new(context.get()));
  if (ssl == nullptr || SSL_set_fd(ssl.get(), socket.fd()) != 1)
    return OpensslError("preparing a handshake");
  SSL_set_alpn_protos(ssl.get(), kHttp2, sizeof(kHttp2));
  SSL_set_tlsext_host_name(ssl.get(), server_name.c_str());
  const Step shaken = Until(socket, ssl.get(), [&] { return SSL_connect(ssl.get()); });
  ERR_clear_error();
  if (shaken != Step::kDone) {
    return absl::UnavailableError(absl::StrCat(
        "what answers at ", address, " does not speak TLS 1.3: is it the port of --join-listen?"));
  }
  STACK_OF(X509)* shown = SSL_get_peer_cert_chain(ssl.get());
  for (int i = 0; i < sk_X509_num(shown); ++i) {
    X509* each = sk_X509_value(shown, i);
    if (SameSecret(HashOf(each), hash)) return PemOf(each);
  }
  return absl::UnauthenticatedError(absl::StrCat(
      "what answers at ", address,
      " does not show the authority that the join token names: the token is of another cluster, or "
      "this is not the port of --join-listen, or somebody stands in the way. Nothing was told to "
      "it"));
}

}  // namespace isthmus::tls
