// What signs in an authority's directory, and the steps that its files have in common. For the .cc
// files of base/tls alone. Thread: one owner; a Signer keeps other processes out while it lives.
#ifndef ISTHMUS_BASE_TLS_SIGNER_H_
#define ISTHMUS_BASE_TLS_SIGNER_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/tls/certificate.h"
#include "base/tls/openssl.h"
#include "base/tls/revoked.h"

namespace isthmus::tls {

inline constexpr char kCaKeyFile[] = "ca.key";
inline constexpr char kIssuedDir[] = "issued";
inline constexpr int kPrivate = 0600;

absl::Status MakeDirectory(const std::string& path, int mode);
// The names in it, sorted; none where it is not there.
std::vector<std::string> NamesIn(const std::string& path);

// The certificate authority's own certificate and key, under a lock while this lives.
// Who can't have that lock within kLockPatience gets Aborted.
constexpr absl::Duration kLockPatience = absl::Seconds(10);
struct Signer {
  Owned<X509> certificate;
  Owned<EVP_PKEY> key;
  std::string pem;
  int lock = -1;

  Signer() = default;
  Signer(Signer&& other) noexcept;
  Signer& operator=(Signer&&) = delete;
  ~Signer();
  static absl::StatusOr<Signer> Open(const std::string& dir,
                                     absl::Duration patience = kLockPatience);
};

// A certificate for `key`, from kClockTolerance before `now`; it ends with the authority at latest.
absl::StatusOr<Owned<X509>> MakeLeaf(const Signer& signer, const Identity& who, absl::Duration life,
                                     EVP_PKEY* key, absl::Time now);
// The authority's own, in PEM.
absl::StatusOr<std::string> MakeCa(EVP_PKEY* key, absl::Time now);

absl::StatusOr<Revoked> ReadRevoked(const std::string& dir, const std::string& ca_pem);

}  // namespace isthmus::tls

#endif  // ISTHMUS_BASE_TLS_SIGNER_H_
