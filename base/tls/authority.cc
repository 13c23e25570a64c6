#include "base/tls/authority.h"

#include <openssl/bn.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/file/durable_directory.h"
#include "base/file/durable_file.h"
#include "base/file/read_file.h"
#include "base/status.h"
#include "base/tls/folder.h"
#include "base/tls/openssl.h"
#include "base/tls/revoked.h"
#include "base/tls/signer.h"

namespace isthmus::tls {
namespace {

constexpr char kCertificatesDir[] = "certificates";

// The list of `before` (null: an empty one) and `more`, signed.
absl::StatusOr<std::string> MakeRevoked(const Signer& signer, X509_CRL* before,
                                        const std::vector<Certificate>& more, absl::Time now) {
  const Owned<X509_CRL> list(before == nullptr ? X509_CRL_new() : X509_CRL_dup(before));
  const Owned<ASN1_TIME> when(ASN1_TIME_set(nullptr, absl::ToTimeT(now)));
  const Owned<ASN1_TIME> next(
      ASN1_TIME_set(nullptr, absl::ToTimeT(now + absl::Hours(24) * kMaxDays)));
  if (list == nullptr || when == nullptr || next == nullptr ||
      X509_CRL_set_version(list.get(), 1) != 1 ||
      X509_CRL_set_issuer_name(list.get(), X509_get_subject_name(signer.certificate.get())) != 1 ||
      X509_CRL_set1_lastUpdate(list.get(), when.get()) != 1 ||
      X509_CRL_set1_nextUpdate(list.get(), next.get()) != 1)
    return OpensslError("making the list of revoked certificates");
  for (const Certificate& each : more) {
    BIGNUM* raw = nullptr;
    BN_hex2bn(&raw, each.serial.c_str());
    const Owned<BIGNUM> number(raw);
    const Owned<ASN1_INTEGER> serial(BN_to_ASN1_INTEGER(number.get(), nullptr));
    X509_REVOKED* entry = X509_REVOKED_new();
    X509_REVOKED_set_serialNumber(entry, serial.get());
    X509_REVOKED_set_revocationDate(entry, when.get());
    X509_CRL_add0_revoked(list.get(), entry);
  }
  X509_CRL_sort(list.get());
  if (X509_CRL_sign(list.get(), signer.key.get(), EVP_sha256()) <= 0)
    return OpensslError("signing the list of revoked certificates");
  return PemOf(list.get());
}

}  // namespace

absl::Status Authority::Init(const std::string& dir, absl::Time now) {
  RETURN_IF_ERROR(MakeDirectory(dir, 0700));
  const std::string key_file = absl::StrCat(dir, "/", kCaKeyFile);
  if (::access(key_file.c_str(), F_OK) == 0) {
    return absl::AlreadyExistsError(absl::StrCat(
        dir, " holds an authority already: issue certificates with it, or name another --dir"));
  }
  Signer signer;
  signer.key.reset(EVP_EC_gen("P-256"));
  if (signer.key == nullptr) return OpensslError("making a key");
  ASSIGN_OR_RETURN(signer.pem, MakeCa(signer.key.get(), now));
  ASSIGN_OR_RETURN(signer.certificate, ParseCertificate(signer.pem, kCaFile));
  ASSIGN_OR_RETURN(const std::string revoked, MakeRevoked(signer, nullptr, {}, now));
  RETURN_IF_ERROR(MakeDirectory(absl::StrCat(dir, "/", kIssuedDir), 0700));
  RETURN_IF_ERROR(MakeDirectory(absl::StrCat(dir, "/", kCertificatesDir), 0700));
  RETURN_IF_ERROR(WriteFileDurably(absl::StrCat(dir, "/", kCaFile), signer.pem));
  RETURN_IF_ERROR(WriteFileDurably(absl::StrCat(dir, "/", kRevokedFile), revoked));
  return WriteFileDurably(key_file, PemOf(signer.key.get()), kPrivate);  // last: it is there
}

absl::StatusOr<Authority> Authority::Open(const std::string& dir) {
  if (::access(absl::StrCat(dir, "/", kCaKeyFile).c_str(), F_OK) == 0) return Authority(dir);
  return absl::NotFoundError(absl::StrCat(dir, " holds no certificate authority (", kCaKeyFile,
                                          "): isthmus ca init makes one, --dir names another"));
}

absl::StatusOr<Issued> Authority::Issue(const IssueOptions& options, absl::Time now) const {
  RETURN_IF_ERROR(CheckName(options.who.name));
  if (options.days < 1 || options.days > kMaxDays) {
    return absl::InvalidArgumentError(
        absl::StrCat("--days ", options.days, ": a certificate is valid for 1 to ", kMaxDays));
  }
  ASSIGN_OR_RETURN(const Signer signer, Signer::Open(dir_));
  const Owned<EVP_PKEY> key(EVP_EC_gen("P-256"));
  if (key == nullptr) return OpensslError("making a key");
  ASSIGN_OR_RETURN(const Owned<X509> made,
                   MakeLeaf(signer, options.who, absl::Hours(24) * options.days, key.get(), now));
  const std::string pem = PemOf(made.get());
  Issued issued;
  ASSIGN_OR_RETURN(issued.certificate, ReadCertificate(pem, "the new certificate"));
  issued.folder = options.folder.empty()
                      ? absl::StrCat(dir_, "/", kCertificatesDir, "/", options.who.name)
                      : options.folder;
  if (!NamesIn(issued.folder).empty()) {
    return absl::AlreadyExistsError(
        absl::StrCat(issued.folder, " is not empty: name another folder with --out, or remove it"));
  }
  ASSIGN_OR_RETURN(const auto folder, DurableDirectory::Create(issued.folder, true));
  const std::string to = folder->path() + "/";
  RETURN_IF_ERROR(WriteFileDurably(to + kCaFile, signer.pem));
  RETURN_IF_ERROR(WriteFileDurably(to + kCertificateFile, pem));
  RETURN_IF_ERROR(WriteFileDurably(to + kKeyFile, PemOf(key.get()), kPrivate));
  if (options.who.role == Role::kCoordinator) {
    ASSIGN_OR_RETURN(const Revoked revoked, ReadRevoked(dir_, signer.pem));
    RETURN_IF_ERROR(WriteFileDurably(to + kRevokedFile, revoked.pem()));
  }
  // Known before it can be used: what is not in the list could not be revoked.
  RETURN_IF_ERROR(WriteFileDurably(
      absl::StrCat(dir_, "/", kIssuedDir, "/", issued.certificate.serial, ".pem"), pem));
  RETURN_IF_ERROR(folder->Commit());
  if (::chmod(issued.folder.c_str(), 0700) != 0)
    return absl::ErrnoToStatus(errno, absl::StrCat("chmod ", issued.folder));
  return issued;
}

absl::StatusOr<std::vector<Listed>> Authority::List() const {
  ASSIGN_OR_RETURN(const std::string ca,
                   ReadSmallFile(absl::StrCat(dir_, "/", kCaFile), kMaxPemBytes));
  ASSIGN_OR_RETURN(const Revoked revoked, ReadRevoked(dir_, ca));
  std::vector<Listed> all;
  const std::string issued = absl::StrCat(dir_, "/", kIssuedDir);
  for (const std::string& name : NamesIn(issued)) {
    if (!absl::EndsWith(name, ".pem")) continue;  // one that was being written
    const std::string file = absl::StrCat(issued, "/", name);
    ASSIGN_OR_RETURN(const std::string pem, ReadSmallFile(file, kMaxPemBytes));
    Listed listed;
    ASSIGN_OR_RETURN(listed.certificate, ReadCertificate(pem, file));
    const absl::Time* when = revoked.Find(listed.certificate.serial);
    listed.revoked = when != nullptr;
    if (when != nullptr) listed.revoked_at = *when;
    all.push_back(std::move(listed));
  }
  std::sort(all.begin(), all.end(), [](const Listed& a, const Listed& b) {
    const Certificate& x = a.certificate;
    const Certificate& y = b.certificate;
    return x.who.name != y.who.name ? x.who.name < y.who.name : x.from > y.from;
  });
  return all;
}

absl::StatusOr<std::vector<Certificate>> Authority::Revoke(const std::string& name_or_serial,
                                                           absl::Time now) const {
  ASSIGN_OR_RETURN(const Signer signer, Signer::Open(dir_));
  ASSIGN_OR_RETURN(const std::vector<Listed> all, List());
  std::vector<Certificate> known, chosen;
  for (const Listed& each : all) {
    if (each.certificate.who.name != name_or_serial && each.certificate.serial != name_or_serial)
      continue;
    known.push_back(each.certificate);
    if (!each.revoked) chosen.push_back(each.certificate);
  }
  if (known.empty()) {
    return absl::NotFoundError(absl::StrCat("no certificate has the name or serial '",
                                            name_or_serial.substr(0, 80),
                                            "': isthmus ca list shows them"));
  }
  ASSIGN_OR_RETURN(const Revoked before, ReadRevoked(dir_, signer.pem));
  std::string pem = before.pem();
  if (!chosen.empty()) {
    ASSIGN_OR_RETURN(const Owned<X509_CRL> list,
                     ParseRevoked(pem, signer.certificate.get(), kRevokedFile));
    ASSIGN_OR_RETURN(pem, MakeRevoked(signer, list.get(), chosen, now));
    RETURN_IF_ERROR(WriteFileDurably(absl::StrCat(dir_, "/", kRevokedFile), pem));
  }
  absl::Status copied;  // one that fails keeps no other from being written
  const std::string folders = absl::StrCat(dir_, "/", kCertificatesDir);
  for (const std::string& name : NamesIn(folders)) {
    const std::string copy = absl::StrCat(folders, "/", name, "/", kRevokedFile);
    if (::access(copy.c_str(), F_OK) == 0) copied.Update(WriteFileDurably(copy, pem));
  }
  RETURN_IF_ERROR(Annotate(copied, "revoked, but not every copy could be written; call it again"));
  return chosen.empty() ? known : chosen;
}

}  // namespace isthmus::tls
