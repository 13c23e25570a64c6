// What the authority keeps of a join token: not its secret, but the hash of it; for whom, how often
// and until when it is good, and who used it. Whether a host may join by it is decided here,
// without files and clocks. Thread: values, pure functions.
#ifndef ISTHMUS_BASE_TLS_JOIN_RECORD_H_
#define ISTHMUS_BASE_TLS_JOIN_RECORD_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/tls/certificate.h"

namespace isthmus::tls {

constexpr int kMaxTokenUses = 1000;
constexpr absl::Duration kMaxTokenLife = absl::Hours(24 * 30);
// Of the certificate that a host gets by a token.
constexpr absl::Duration kMinJoinedLife = absl::Seconds(10);
constexpr absl::Duration kMaxJoinedLife = absl::Hours(24 * 365);

struct JoinUse {
  std::string name;  // in the certificate
  std::string key;   // SHA-256 of the host's public key, hexadecimal
};

struct JoinRecord {
  std::string id;           // hexadecimal
  std::string secret_hash;  // SHA-256, hexadecimal
  Role role = Role::kWorker;
  std::string names;  // "home-pc", or with one '*' for a number: "gpu-*"
  int uses = 1;       // in all
  absl::Time until;
  absl::Duration certificate_life;
  std::string made_by;  // as the user's system calls him
  absl::Time made_at;
  bool revoked = false;
  std::vector<JoinUse> used;
};

// InvalidArgument: a role that joins by no token, names, uses or times that can't be; the message
// names the flag of isthmus ca token create.
absl::Status CheckJoinRecord(const JoinRecord& record, absl::Time now);

std::string JoinRecordText(const JoinRecord& record);
// DataLoss: the file `where` holds no record.
absl::StatusOr<JoinRecord> ReadJoinRecord(const std::string& text, const std::string& where);

// PermissionDenied: it may not join, and what to do. Of a wrong secret no more is said than of a
// token that does not exist. A host whose key is among those that used the token may come again:
// its answer may have been lost.
absl::Status JudgeJoin(const JoinRecord& record, absl::string_view secret, Role role,
                       const std::string& key, absl::Time now);
absl::Status UnknownToken();

// The use by a host of that key; null: none.
const JoinUse* UseBy(const JoinRecord& record, const std::string& key);

// "holds", "expired", "used up" or "revoked".
std::string JoinState(const JoinRecord& record, absl::Time now);

// A name that was given: by a certificate, or by a token whose certificate may still be to come.
struct NamedCertificate {
  std::string name;
  bool holds = false;   // its host may use it, or come for it again
  std::string token{};  // whose record has the name; of a certificate empty
};
// The name of the next host: `names` itself, or with the lowest number that nobody of `all` ever
// had. AlreadyExists: another host holds it. ResourceExhausted: with that number it is too long.
absl::StatusOr<std::string> NextName(const std::string& names,
                                     const std::vector<NamedCertificate>& all);

}  // namespace isthmus::tls

#endif  // ISTHMUS_BASE_TLS_JOIN_RECORD_H_
