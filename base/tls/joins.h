// Hosts that join a cluster by themselves: the tokens that an authority made, tokens/ID in its
// directory, and the certificates that are signed for them. What a token allows is counted before
// anything is signed: a crash in between loses a use, and never gives one. Several processes may
// work on one directory, as with Authority. Thread: any; the directory's lock orders calls.
#ifndef ISTHMUS_BASE_TLS_JOINS_H_
#define ISTHMUS_BASE_TLS_JOINS_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/tls/certificate.h"
#include "base/tls/join_record.h"
#include "base/tls/join_token.h"

namespace isthmus::tls {

constexpr size_t kMaxTokens = 1000;                          // that are kept at a time
constexpr absl::Duration kKeepEnded = absl::Hours(24 * 30);  // then a token is forgotten
constexpr size_t kMaxIssued = 100'000;  // certificates; an authority with more signs no join

struct TokenOptions {
  std::vector<std::string> addresses;  // of --join-listen, as hosts reach it
  Role role = Role::kWorker;
  std::string names = "node-*";
  int uses = 1;
  absl::Duration life = absl::Hours(24);
  absl::Duration certificate_life = absl::Hours(24 * 7);
  std::string made_by;
};

struct MadeToken {
  std::string text;  // secret; shown once, kept nowhere
  JoinRecord record;
};

struct JoinAsk {
  std::string id;      // of the token, as it came: bytes
  std::string secret;  // likewise
  Role role = Role::kWorker;
  std::string request_pem;
};

struct SignedAnswer {
  Certificate certificate;
  std::string certificate_pem;
  std::string ca_pem;
};

class Joins {
 public:
  // NotFound: there is no authority.
  static absl::StatusOr<Joins> Open(const std::string& dir);

  // SHA-256 of its certificate, 32 bytes.
  absl::StatusOr<std::string> AuthorityHash() const;
  // InvalidArgument: as CheckJoinRecord. ResourceExhausted: kMaxTokens are kept already.
  absl::StatusOr<MadeToken> Create(const TokenOptions& options, absl::Time now) const;
  // The newest last.
  absl::StatusOr<std::vector<JoinRecord>> List() const;
  // NotFound: there is none of that id.
  absl::StatusOr<JoinRecord> Revoke(const std::string& id) const;

  // A host that asks again gets the certificate that it has, while more than half of its life is
  // to come. PermissionDenied: as JudgeJoin, or the key was revoked. AlreadyExists: the name is
  // another host's, or a host that asked first may still come for it. InvalidArgument: as
  // KeyOfRequest. ResourceExhausted: kMaxIssued, or as NextName. The message is for whoever asked.
  absl::StatusOr<SignedAnswer> Join(const JoinAsk& ask, absl::Time now) const;
  // Another certificate for the host that `old` names, which TLS has found to be the caller's; of
  // as long a life; the one of an earlier call, where that is as good.
  // PermissionDenied: it was revoked, is of another authority or role than worker, has more than
  // half of its life to come, or a newer one of its name holds for another key.
  absl::StatusOr<SignedAnswer> Renew(const Certificate& old, const std::string& request_pem,
                                     absl::Time now) const;

 private:
  explicit Joins(std::string dir) : dir_(std::move(dir)) {}
  std::string FileOf(const std::string& id) const;
  absl::StatusOr<JoinRecord> Find(const std::string& id) const;
  std::string dir_;
};

}  // namespace isthmus::tls

#endif  // ISTHMUS_BASE_TLS_JOINS_H_
