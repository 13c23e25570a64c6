// Who somebody is, as a certificate says it: a name and a role. Both stand in one name of the
// certificate, "home-pc.worker.isthmus", which TLS itself compares when a server is dialled; what
// else people read of them (CN, O) is for people. Thread: values and pure functions.
#ifndef ISTHMUS_BASE_TLS_CERTIFICATE_H_
#define ISTHMUS_BASE_TLS_CERTIFICATE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace isthmus::tls {

enum class Role {
  kCoordinator,  // serves; never a client
  kWorker,       // a daemon: acts for the node of its name
  kOperator,     // everything the command line can do
  kViewer,       // looks only
};

// Every coordinator's certificate has this name besides its own: clients know its address alone.
inline constexpr char kAnyCoordinator[] = "coordinator.isthmus";

constexpr size_t kMaxNameBytes = 40;

std::string RoleName(Role role);                      // "worker"
absl::StatusOr<Role> RoleOf(absl::string_view text);  // InvalidArgument names them all
std::vector<std::string> RoleNames();

// InvalidArgument unless it is lower-case letters, digits, '-' and '.', as in a host's name.
absl::Status CheckName(absl::string_view name);

struct Identity {
  std::string name;
  Role role = Role::kViewer;
};
std::string ServerName(const Identity& who);  // "home-pc.worker.isthmus"
std::string Words(const Identity& who);       // "home-pc (worker)"
// The one that the names of a certificate tell. Unauthenticated: none of them does.
absl::StatusOr<Identity> IdentityOf(const std::vector<std::string>& names);

struct Certificate {
  Identity who;
  std::string serial;       // hexadecimal, lower case
  std::string fingerprint;  // SHA-256, hexadecimal
  absl::Time from;
  absl::Time until;
};
// InvalidArgument: `pem` is none of ours; `where` names it.
absl::StatusOr<Certificate> ReadCertificate(const std::string& pem, absl::string_view where);

// FailedPrecondition: expired, or not valid yet, with the times and the cure.
absl::Status CheckTimes(const Certificate& certificate, absl::Time now);
std::string DayOf(absl::Time time);  // "2027-11-30", UTC
absl::Time Today();                  // the wall clock, by which certificates hold

}  // namespace isthmus::tls

#endif  // ISTHMUS_BASE_TLS_CERTIFICATE_H_
