#include "base/tls/joins.h"

#include <unistd.h>

#include <algorithm>
#include <set>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/file/durable_file.h"
#include "base/file/read_file.h"
#include "base/status.h"
#include "base/tls/authority.h"
#include "base/tls/folder.h"
#include "base/tls/openssl.h"
#include "base/tls/request.h"
#include "base/tls/signed_request.h"
#include "base/tls/signer.h"

namespace isthmus::tls {
namespace {

constexpr char kTokensDir[] = "tokens";
constexpr int64_t kMaxRecordBytes = 256 << 10;  // kMaxTokenUses hosts in it

bool IsId(const std::string& text) {
  return text.size() == 2 * kTokenIdBytes &&
         text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

absl::Status RevokedKey(const Certificate& certificate) {
  return absl::PermissionDeniedError(absl::StrCat(
      "the certificate of ", Words(certificate.who), ", serial ", certificate.serial,
      ", was revoked, and ", kRevokedKeyWords,
      ": remove the folders tls and tls-joining from this daemon's state directory, and join with "
      "a new token"));
}

bool HalfIsToCome(const Certificate& certificate, absl::Time now) {
  const absl::Duration life = certificate.until - certificate.from - kClockTolerance;
  return now < certificate.until - life / 2;
}

struct Issuance {
  Certificate certificate;
  std::string key;  // SHA-256, hexadecimal
};

// What was issued so far, and whether the key of `hash` may get a certificate.
struct Issuances {
  std::vector<Issuance> live;
  std::vector<NamedCertificate> names;  // of all, also those that hold no more
  std::set<std::string> revoked_keys;

  static absl::StatusOr<Issuances> Read(const std::string& dir, const std::string& ca_pem,
                                        const std::string& hash, absl::Time now);
  // Names that were given, and whose certificates may be still to come.
  void Add(const std::vector<JoinRecord>& records, absl::Time now) {
    for (const JoinRecord& record : records) {
      const bool may_come = !record.revoked && now < record.until;
      for (const JoinUse& use : record.used)
        names.push_back({use.name, may_come && revoked_keys.count(use.key) == 0, record.id});
    }
  }
  // Of that name and role, with another key; null: none.
  const Issuance* Other(const Identity& who, const std::string& key, absl::Time until_at_least,
                        const std::string& but_serial) const {
    return Find(who, until_at_least, [&](const Issuance& each) {
      return each.key != key && each.certificate.serial != but_serial;
    });
  }
  // The one that is good enough for who asks again; null: none.
  const Issuance* Same(const Identity& who, const std::string& key, absl::Time until_at_least,
                       absl::Time now) const {
    return Find(who, until_at_least, [&](const Issuance& each) {
      return each.key == key && HalfIsToCome(each.certificate, now);
    });
  }

 private:
  template <typename Fits>
  const Issuance* Find(const Identity& who, absl::Time until_at_least, const Fits& fits) const {
    for (const Issuance& each : live) {
      const Certificate& it = each.certificate;
      if (it.who.name == who.name && it.who.role == who.role && it.until >= until_at_least &&
          fits(each))
        return &each;
    }
    return nullptr;
  }
};

absl::StatusOr<Issuances> Issuances::Read(const std::string& dir, const std::string& ca_pem,
                                          const std::string& hash, absl::Time now) {
  ASSIGN_OR_RETURN(const Revoked revoked, ReadRevoked(dir, ca_pem));
  const std::string issued = absl::StrCat(dir, "/", kIssuedDir);
  const std::vector<std::string> files = NamesIn(issued);
  if (files.size() > kMaxIssued) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "this authority keeps ", files.size(), " certificates, more than ", kMaxIssued,
        ": on its host remove ", issued,
        "/SERIAL.pem of those that have expired (isthmus ca list "
        "shows serials and ends); of no other, for what is not there can't be revoked"));
  }
  Issuances all;
  for (const std::string& name : files) {
    const std::string file = absl::StrCat(issued, "/", name);
    if (name.size() < 4 || name.substr(name.size() - 4) != ".pem") continue;  // being written
    ASSIGN_OR_RETURN(const std::string pem, ReadSmallFile(file, kMaxPemBytes));
    ASSIGN_OR_RETURN(const Certificate certificate, ReadCertificate(pem, file));
    const bool gone = revoked.Find(certificate.serial) != nullptr;
    const bool holds = !gone && now <= certificate.until;
    all.names.push_back({certificate.who.name, holds});
    if (!gone && !holds) continue;
    ASSIGN_OR_RETURN(const Owned<X509> parsed, ParseCertificate(pem, file));
    ASSIGN_OR_RETURN(std::string key, KeyHashOf(X509_get0_pubkey(parsed.get())));
    key = absl::BytesToHexString(key);
    if (gone && key == hash) return RevokedKey(certificate);
    if (gone) all.revoked_keys.insert(key);
    if (holds) all.live.push_back({certificate, key});
  }
  return all;
}

// A certificate that was signed before, once more.
absl::StatusOr<SignedAnswer> Again(const Signer& signer, const std::string& dir,
                                   const Certificate& certificate) {
  SignedAnswer answer;
  answer.ca_pem = signer.pem;
  answer.certificate = certificate;
  ASSIGN_OR_RETURN(answer.certificate_pem, ReadSmallFile(absl::StrCat(dir, "/", kIssuedDir, "/",
                                                                      certificate.serial, ".pem"),
                                                         kMaxPemBytes));
  return answer;
}

absl::StatusOr<SignedAnswer> SignFor(const Signer& signer, const std::string& dir,
                                     const Identity& who, absl::Duration life,
                                     const std::string& request_pem, absl::Time now) {
  ASSIGN_OR_RETURN(const Owned<EVP_PKEY> key, ReadRequest(request_pem));
  ASSIGN_OR_RETURN(const Owned<X509> made, MakeLeaf(signer, who, life, key.get(), now));
  SignedAnswer answer;
  answer.ca_pem = signer.pem;
  answer.certificate_pem = PemOf(made.get());
  ASSIGN_OR_RETURN(answer.certificate,
                   ReadCertificate(answer.certificate_pem, "the new certificate"));
  // Known before it can be used: what is not in the list could not be revoked.
  RETURN_IF_ERROR(
      WriteFileDurably(absl::StrCat(dir, "/", kIssuedDir, "/", answer.certificate.serial, ".pem"),
                       answer.certificate_pem));
  return answer;
}

}  // namespace

absl::StatusOr<Joins> Joins::Open(const std::string& dir) {
  RETURN_IF_ERROR(Authority::Open(dir).status());
  return Joins(dir);
}

absl::StatusOr<std::string> Joins::AuthorityHash() const {
  const std::string file = absl::StrCat(dir_, "/", kCaFile);
  ASSIGN_OR_RETURN(const std::string pem, ReadSmallFile(file, kMaxPemBytes));
  return tls::AuthorityHash(pem, file);
}

std::string Joins::FileOf(const std::string& id) const {
  return absl::StrCat(dir_, "/", kTokensDir, "/", id);
}

absl::StatusOr<JoinRecord> Joins::Find(const std::string& id) const {
  if (!IsId(id) || ::access(FileOf(id).c_str(), F_OK) != 0) {
    return absl::NotFoundError(absl::StrCat("there is no join token '",
                                            absl::CEscape(id.substr(0, 2 * kTokenIdBytes)),
                                            "': isthmus ca token list shows them"));
  }
  ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(FileOf(id), kMaxRecordBytes));
  return ReadJoinRecord(text, FileOf(id));
}

absl::StatusOr<MadeToken> Joins::Create(const TokenOptions& options, absl::Time now) const {
  ASSIGN_OR_RETURN(const Signer signer, Signer::Open(dir_));
  ASSIGN_OR_RETURN(const JoinToken token,
                   NewJoinToken(options.addresses, HashOf(signer.certificate.get())));
  MadeToken made;
  made.text = JoinTokenText(token);
  JoinRecord& record = made.record;
  record.id = absl::BytesToHexString(token.id);
  record.secret_hash = absl::BytesToHexString(Sha256(token.secret));
  record.role = options.role;
  record.names = options.names;
  record.uses = options.uses;
  record.until = now + options.life;
  record.certificate_life = options.certificate_life;
  record.made_by = options.made_by;
  record.made_at = now;
  RETURN_IF_ERROR(CheckJoinRecord(record, now));
  RETURN_IF_ERROR(MakeDirectory(absl::StrCat(dir_, "/", kTokensDir), 0700));
  ASSIGN_OR_RETURN(const std::vector<JoinRecord> before, List());
  size_t kept = 0;
  for (const JoinRecord& each : before) {
    if (each.until + kKeepEnded >= now || ::unlink(FileOf(each.id).c_str()) != 0) ++kept;
  }
  if (kept >= kMaxTokens) {
    return absl::ResourceExhaustedError(absl::StrCat(
        dir_, " keeps ", kept, " join tokens, at most ", kMaxTokens,
        ": they are forgotten 30 days after their end; one token may have several --uses"));
  }
  RETURN_IF_ERROR(WriteFileDurably(FileOf(record.id), JoinRecordText(record), kPrivate));
  return made;
}

absl::StatusOr<std::vector<JoinRecord>> Joins::List() const {
  std::vector<JoinRecord> all;
  for (const std::string& id : NamesIn(absl::StrCat(dir_, "/", kTokensDir))) {
    if (!IsId(id)) continue;  // one that was being written
    ASSIGN_OR_RETURN(JoinRecord record, Find(id));
    all.push_back(std::move(record));
  }
  std::sort(all.begin(), all.end(),
            [](const JoinRecord& a, const JoinRecord& b) { return a.made_at < b.made_at; });
  return all;
}

absl::StatusOr<JoinRecord> Joins::Revoke(const std::string& id) const {
  ASSIGN_OR_RETURN(const Signer signer, Signer::Open(dir_));
  ASSIGN_OR_RETURN(JoinRecord record, Find(id));
  record.revoked = true;
  RETURN_IF_ERROR(WriteFileDurably(FileOf(id), JoinRecordText(record), kPrivate));
  return record;
}

absl::StatusOr<SignedAnswer> Joins::Join(const JoinAsk& ask, absl::Time now) const {
  ASSIGN_OR_RETURN(const std::string key, KeyOfRequest(ask.request_pem));
  const std::string id = absl::BytesToHexString(ask.id);
  ASSIGN_OR_RETURN(const Signer signer, Signer::Open(dir_));
  absl::StatusOr<JoinRecord> record = Find(id);
  if (absl::IsNotFound(record.status())) return UnknownToken();
  RETURN_IF_ERROR(record.status());
  RETURN_IF_ERROR(JudgeJoin(*record, ask.secret, ask.role, key, now));
  ASSIGN_OR_RETURN(Issuances issued, Issuances::Read(dir_, signer.pem, key, now));
  Identity who = {"", record->role};
  if (const JoinUse* before = UseBy(*record, key); before != nullptr) {
    who.name = before->name;
    if (const Issuance* other = issued.Other(who, key, now, ""); other != nullptr) {
      return absl::AlreadyExistsError(
          absl::StrCat("another host's certificate of ", Words(who), ", serial ",
                       other->certificate.serial, ", holds: revoke it (isthmus ca revoke ",
                       other->certificate.serial, "), or make a token with another --name"));
    }
    if (const Issuance* same = issued.Same(who, key, now, now); same != nullptr)
      return Again(signer, dir_, same->certificate);
  } else {
    ASSIGN_OR_RETURN(const std::vector<JoinRecord> records, List());
    issued.Add(records, now);
    ASSIGN_OR_RETURN(who.name, NextName(record->names, issued.names));
    record->used.push_back({who.name, key});
    RETURN_IF_ERROR(WriteFileDurably(FileOf(id), JoinRecordText(*record), kPrivate));
  }
  return SignFor(signer, dir_, who, record->certificate_life, ask.request_pem, now);
}

absl::StatusOr<SignedAnswer> Joins::Renew(const Certificate& old, const std::string& request_pem,
                                          absl::Time now) const {
  ASSIGN_OR_RETURN(const std::string key, KeyOfRequest(request_pem));
  const auto denied = [&](absl::string_view why) {
    return absl::PermissionDeniedError(
        absl::StrCat("the certificate of ", Words(old.who), " is not renewed: ", why));
  };
  if (old.who.role != Role::kWorker) return denied("only a daemon's is");
  ASSIGN_OR_RETURN(const Signer signer, Signer::Open(dir_));
  ASSIGN_OR_RETURN(const Revoked revoked, ReadRevoked(dir_, signer.pem));
  if (revoked.Find(old.serial) != nullptr) return denied("it was revoked");
  const std::string file = absl::StrCat(dir_, "/", kIssuedDir, "/", old.serial, ".pem");
  const absl::StatusOr<std::string> pem = ReadSmallFile(file, kMaxPemBytes);
  if (!pem.ok()) return denied("this authority has not issued it");
  ASSIGN_OR_RETURN(const Certificate issued, ReadCertificate(*pem, file));
  if (issued.fingerprint != old.fingerprint) return denied("this authority has not issued it");
  if (now > old.until) return denied("it has expired; join again with a token");
  if (HalfIsToCome(old, now)) return denied("more than half of its life is to come");
  ASSIGN_OR_RETURN(const Issuances all, Issuances::Read(dir_, signer.pem, key, now));
  // Renewed before, and the answer was lost: else each call would leave another certificate.
  if (const Issuance* other = all.Other(old.who, key, old.until, old.serial); other != nullptr) {
    return denied(absl::StrCat("a newer one, serial ", other->certificate.serial,
                               ", holds for another key; isthmus ca revoke ",
                               other->certificate.serial, " if that is not to be"));
  }
  if (const Issuance* same = all.Same(old.who, key, old.until, now); same != nullptr)
    return Again(signer, dir_, same->certificate);
  const absl::Duration life = old.until - old.from - kClockTolerance;
  return SignFor(signer, dir_, old.who, std::min(life, kMaxJoinedLife), request_pem, now);
}

}  // namespace isthmus::tls
