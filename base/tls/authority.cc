#include "base/tls/authority.h"

#include <dirent.h>
#include <fcntl.h>
#include <openssl/bn.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/file/durable_directory.h"
#include "base/file/durable_file.h"
#include "base/file/read_file.h"
#include "base/status.h"
#include "base/tls/folder.h"
#include "base/tls/openssl.h"
#include "base/tls/revoked.h"

namespace isthmus::tls {
namespace {

constexpr char kCaKeyFile[] = "ca.key";
constexpr char kIssuedDir[] = "issued";
constexpr char kCertificatesDir[] = "certificates";
constexpr int kSerialBits = 127;  // positive in 16 bytes
constexpr int kPrivate = 0600;

absl::Status MakeDirectory(const std::string& path, int mode) {
  if (::mkdir(path.c_str(), static_cast<mode_t>(mode)) == 0 || errno == EEXIST)
    return absl::OkStatus();
  return absl::ErrnoToStatus(errno, absl::StrCat("making ", path));
}

// The names in it, sorted; none where it is not there.
std::vector<std::string> NamesIn(const std::string& path) {
  std::vector<std::string> names;
  DIR* dir = ::opendir(path.c_str());
  if (dir == nullptr) return names;
  while (const dirent* entry = ::readdir(dir)) {
    if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
  }
  ::closedir(dir);
  std::sort(names.begin(), names.end());
  return names;
}

// The certificate authority's own certificate and key, under a lock while this lives.
struct Signer {
  Owned<X509> certificate;
  Owned<EVP_PKEY> key;
  std::string pem;
  int lock = -1;

  Signer() = default;
  Signer(Signer&& other) noexcept
      : certificate(std::move(other.certificate)),
        key(std::move(other.key)),
        pem(std::move(other.pem)),
        lock(std::exchange(other.lock, -1)) {}
  Signer& operator=(Signer&&) = delete;
  ~Signer() {
    if (lock >= 0) ::close(lock);
  }

  static absl::StatusOr<Signer> Open(const std::string& dir) {
    const std::string key_file = absl::StrCat(dir, "/", kCaKeyFile);
    const std::string ca_file = absl::StrCat(dir, "/", kCaFile);
    Signer signer;
    signer.lock = ::open(key_file.c_str(), O_RDONLY | O_CLOEXEC);
    if (signer.lock < 0 || ::flock(signer.lock, LOCK_EX) != 0)
      return absl::ErrnoToStatus(errno, absl::StrCat("opening ", key_file));
    ASSIGN_OR_RETURN(signer.pem, ReadSmallFile(ca_file, kMaxPemBytes));
    ASSIGN_OR_RETURN(signer.certificate, ParseCertificate(signer.pem, ca_file));
    ASSIGN_OR_RETURN(const std::string key_pem, ReadSmallFile(key_file, kMaxPemBytes));
    ASSIGN_OR_RETURN(signer.key, ParseKey(key_pem, key_file));
    return signer;
  }
};

absl::Status Extend(X509* certificate, X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str());
  if (extension == nullptr) return OpensslError(absl::StrCat("certificate field ", value));
  X509_add_ext(certificate, extension, -1);
  X509_EXTENSION_free(extension);
  return absl::OkStatus();
}

absl::Status SetSubject(X509* certificate, const char* field, const std::string& text) {
  X509_NAME* subject = X509_get_subject_name(certificate);
  const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
  if (X509_NAME_add_entry_by_txt(subject, field, MBSTRING_UTF8, bytes,
                                 static_cast<int>(text.size()), -1, 0) == 1)
    return absl::OkStatus();
  return OpensslError(absl::StrCat("certificate field ", field));
}

// All but subject, issuer, extensions and signature.
absl::StatusOr<Owned<X509>> Blank(EVP_PKEY* key, absl::Time from, absl::Time until) {
  Owned<X509> made(X509_new());
  const Owned<BIGNUM> serial(BN_new());
  if (made == nullptr || serial == nullptr || X509_set_version(made.get(), 2) != 1 ||
      BN_rand(serial.get(), kSerialBits, BN_RAND_TOP_ONE, BN_RAND_BOTTOM_ANY) != 1 ||
      BN_to_ASN1_INTEGER(serial.get(), X509_get_serialNumber(made.get())) == nullptr ||
      ASN1_TIME_set(X509_getm_notBefore(made.get()), absl::ToTimeT(from)) == nullptr ||
      ASN1_TIME_set(X509_getm_notAfter(made.get()), absl::ToTimeT(until)) == nullptr ||
      X509_set_pubkey(made.get(), key) != 1)
    return OpensslError("making a certificate");
  return made;
}

absl::Status Sign(X509* certificate, EVP_PKEY* key) {
  return X509_sign(certificate, key, EVP_sha256()) > 0 ? absl::OkStatus()
                                                       : OpensslError("signing a certificate");
}

std::string AlternativeNames(const Identity& who) {
  std::string names = absl::StrCat("DNS:", ServerName(who));
  if (who.role == Role::kCoordinator) absl::StrAppend(&names, ",DNS:", kAnyCoordinator);
  return names;
}

// What a role may be in a handshake: a server, a client, or either.
const char* UsesOf(Role role) {
  if (role == Role::kCoordinator) return "serverAuth";
  return role == Role::kWorker ? "serverAuth,clientAuth" : "clientAuth";
}

absl::StatusOr<Owned<X509>> MakeLeaf(const Signer& signer, const IssueOptions& options,
                                     EVP_PKEY* key, absl::Time now) {
  const absl::Time until = std::min(now + absl::Hours(24) * options.days,
                                    TimeOf(X509_get0_notAfter(signer.certificate.get())));
  ASSIGN_OR_RETURN(Owned<X509> made, Blank(key, now - kClockTolerance, until));
  X509* ca = signer.certificate.get();
  RETURN_IF_ERROR(SetSubject(made.get(), "O", RoleName(options.who.role)));
  RETURN_IF_ERROR(SetSubject(made.get(), "CN", options.who.name));
  X509_set_issuer_name(made.get(), X509_get_subject_name(ca));
  RETURN_IF_ERROR(Extend(made.get(), ca, NID_basic_constraints, "critical,CA:FALSE"));
  RETURN_IF_ERROR(Extend(made.get(), ca, NID_key_usage, "critical,digitalSignature"));
  RETURN_IF_ERROR(Extend(made.get(), ca, NID_ext_key_usage, UsesOf(options.who.role)));
  RETURN_IF_ERROR(Extend(made.get(), ca, NID_subject_alt_name, AlternativeNames(options.who)));
  RETURN_IF_ERROR(Extend(made.get(), ca, NID_authority_key_identifier, "keyid"));
  RETURN_IF_ERROR(Sign(made.get(), signer.key.get()));
  return made;
}

absl::StatusOr<std::string> MakeCa(EVP_PKEY* key, absl::Time now) {
  ASSIGN_OR_RETURN(const Owned<X509> made,
                   Blank(key, now - kClockTolerance, now + absl::Hours(24) * kMaxDays));
  RETURN_IF_ERROR(SetSubject(made.get(), "O", "Isthmus"));
  // Two authorities differ in name, so that a certificate of the other is told as such.
  RETURN_IF_ERROR(SetSubject(
      made.get(), "CN",
      absl::StrCat("authority ", HexOf(X509_get0_serialNumber(made.get())).substr(0, 12))));
  X509_set_issuer_name(made.get(), X509_get_subject_name(made.get()));
  RETURN_IF_ERROR(
      Extend(made.get(), made.get(), NID_basic_constraints, "critical,CA:TRUE,pathlen:0"));
  RETURN_IF_ERROR(Extend(made.get(), made.get(), NID_key_usage, "critical,keyCertSign,cRLSign"));
  RETURN_IF_ERROR(Extend(made.get(), made.get(), NID_subject_key_identifier, "hash"));
  RETURN_IF_ERROR(Sign(made.get(), key));
  return PemOf(made.get());
}

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

absl::StatusOr<Revoked> ReadRevoked(const std::string& dir, const std::string& ca_pem) {
  const std::string file = absl::StrCat(dir, "/", kRevokedFile);
  ASSIGN_OR_RETURN(const std::string pem, ReadSmallFile(file, kMaxRevokedBytes));
  return Revoked::Read(pem, ca_pem, file);
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
  ASSIGN_OR_RETURN(const Owned<X509> made, MakeLeaf(signer, options, key.get(), now));
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
