// What a program's --tls-dir holds: ca.pem, cert.pem and key.pem, as `isthmus ca issue` writes
// them; a coordinator's revoked.pem besides. Thread: pure functions but for the reading.
#ifndef ISTHMUS_BASE_TLS_FOLDER_H_
#define ISTHMUS_BASE_TLS_FOLDER_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/tls/certificate.h"

namespace isthmus::tls {

constexpr int64_t kMaxPemBytes = 64 << 10;

inline constexpr char kCaFile[] = "ca.pem";
inline constexpr char kCertificateFile[] = "cert.pem";
inline constexpr char kKeyFile[] = "key.pem";
inline constexpr char kRevokedFile[] = "revoked.pem";

struct Folder {
  std::string path;
  std::string ca_pem;
  std::string certificate_pem;
  std::string key_pem;  // secret: never logged, never sent
  Certificate certificate;
};

// NotFound: a file is missing. PermissionDenied: others may read the key. InvalidArgument: what is
// in it does not belong together, or is of a role that is not among `roles`. FailedPrecondition:
// expired, or not valid yet. Each names the file and the cure.
absl::StatusOr<Folder> ReadFolder(const std::string& path, const std::vector<Role>& roles,
                                  absl::Time now);

}  // namespace isthmus::tls

#endif  // ISTHMUS_BASE_TLS_FOLDER_H_
