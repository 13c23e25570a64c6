// A certificate authority in a directory: ca.pem, ca.key (mode 0600), issued/SERIAL.pem of every
// certificate, revoked.pem, certificates/NAME with what is copied to a host. Keys are P-256; no
// cryptography but OpenSSL's. Two processes may work on one directory: a lock on ca.key orders what
// they change. Thread: one owner.
#ifndef ISTHMUS_BASE_TLS_AUTHORITY_H_
#define ISTHMUS_BASE_TLS_AUTHORITY_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/tls/certificate.h"

namespace isthmus::tls {

constexpr int kMaxDays = 3650;                                 // also of the authority itself
constexpr absl::Duration kClockTolerance = absl::Minutes(10);  // of hosts whose clocks are behind

struct IssueOptions {
  Identity who;
  int days = 365;
  std::string folder;  // where to; empty: certificates/NAME in the directory
};

struct Issued {
  Certificate certificate;
  std::string folder;
};

struct Listed {
  Certificate certificate;
  bool revoked = false;
  absl::Time revoked_at;
};

class Authority {
 public:
  // Makes the directory. AlreadyExists: it holds an authority.
  static absl::Status Init(const std::string& dir, absl::Time now);
  // NotFound: there is none; the message says how to make it.
  static absl::StatusOr<Authority> Open(const std::string& dir);

  // InvalidArgument: a name or number of days that can't be, or a folder that is not empty.
  absl::StatusOr<Issued> Issue(const IssueOptions& options, absl::Time now) const;
  // Every certificate, by name, the newest of a name first.
  absl::StatusOr<std::vector<Listed>> List() const;
  // All certificates of that name that hold, or the one of that serial, join revoked.pem, also that
  // of each coordinator's folder in the directory; where all are revoked already the copies are
  // written again, and they are returned. NotFound: there is none.
  absl::StatusOr<std::vector<Certificate>> Revoke(const std::string& name_or_serial,
                                                  absl::Time now) const;

  const std::string& dir() const { return dir_; }

 private:
  explicit Authority(std::string dir) : dir_(std::move(dir)) {}
  std::string dir_;
};

}  // namespace isthmus::tls

#endif  // ISTHMUS_BASE_TLS_AUTHORITY_H_
