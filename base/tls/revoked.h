// The certificates that hold no longer, as the authority signed it: a certificate revocation list.
// Thread: an immutable value.
#ifndef ISTHMUS_BASE_TLS_REVOKED_H_
#define ISTHMUS_BASE_TLS_REVOKED_H_

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace isthmus::tls {

constexpr int64_t kMaxRevokedBytes = 1 << 20;  // of the file: about 20,000 certificates

class Revoked {
 public:
  // InvalidArgument: no such list, one of another authority than `ca_pem`, or too long; `where`
  // names it.
  static absl::StatusOr<Revoked> Read(const std::string& pem, const std::string& ca_pem,
                                      absl::string_view where);

  // When the certificate of that serial was revoked; null: it was not.
  const absl::Time* Find(const std::string& serial) const;
  // Whether all that `other` revokes is revoked here too: lists only grow.
  bool Covers(const Revoked& other) const;
  size_t size() const { return when_.size(); }
  const std::string& pem() const { return pem_; }

 private:
  std::string pem_;
  std::map<std::string, absl::Time> when_;  // by serial
};

}  // namespace isthmus::tls

#endif  // ISTHMUS_BASE_TLS_REVOKED_H_
