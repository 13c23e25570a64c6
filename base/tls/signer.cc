#include "base/tls/signer.h"

#include <dirent.h>
#include <fcntl.h>
#include <openssl/bn.h>
#include <openssl/x509v3.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/file/read_file.h"
#include "base/status.h"
#include "base/tls/authority.h"
#include "base/tls/folder.h"

namespace isthmus::tls {
namespace {

constexpr absl::Duration kLookForLock = absl::Milliseconds(20);
constexpr int kSerialBits = 127;  // positive in 16 bytes

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

}  // namespace

absl::Status MakeDirectory(const std::string& path, int mode) {
  if (::mkdir(path.c_str(), static_cast<mode_t>(mode)) == 0 || errno == EEXIST)
    return absl::OkStatus();
  return absl::ErrnoToStatus(errno, absl::StrCat("making ", path));
}

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

Signer::Signer(Signer&& other) noexcept
    : certificate(std::move(other.certificate)),
      key(std::move(other.key)),
      pem(std::move(other.pem)),
      lock(std::exchange(other.lock, -1)) {}

Signer::~Signer() {
  if (lock >= 0) ::close(lock);
}

absl::StatusOr<Signer> Signer::Open(const std::string& dir, absl::Duration patience) {
  const std::string key_file = absl::StrCat(dir, "/", kCaKeyFile);
  const std::string ca_file = absl::StrCat(dir, "/", kCaFile);
  Signer signer;
  signer.lock = ::open(key_file.c_str(), O_RDONLY | O_CLOEXEC);
  if (signer.lock < 0) return absl::ErrnoToStatus(errno, absl::StrCat("opening ", key_file));
  const absl::Time until = SteadyNow() + patience;
  while (::flock(signer.lock, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR)
      return absl::ErrnoToStatus(errno, absl::StrCat("locking ", key_file));
    if (SteadyNow() >= until) {
      return absl::AbortedError(absl::StrCat("another isthmus ca, or a coordinator, works on ", dir,
                                             " and does not end: try again"));
    }
    absl::SleepFor(kLookForLock);
  }
  ASSIGN_OR_RETURN(signer.pem, ReadSmallFile(ca_file, kMaxPemBytes));
  ASSIGN_OR_RETURN(signer.certificate, ParseCertificate(signer.pem, ca_file));
  ASSIGN_OR_RETURN(const std::string key_pem, ReadSmallFile(key_file, kMaxPemBytes));
  ASSIGN_OR_RETURN(signer.key, ParseKey(key_pem, key_file));
  return signer;
}

absl::StatusOr<Owned<X509>> MakeLeaf(const Signer& signer, const Identity& who, absl::Duration life,
                                     EVP_PKEY* key, absl::Time now) {
  const absl::Time until =
      std::min(now + life, TimeOf(X509_get0_notAfter(signer.certificate.get())));
  ASSIGN_OR_RETURN(Owned<X509> made, Blank(key, now - kClockTolerance, until));
  X509* ca = signer.certificate.get();
  RETURN_IF_ERROR(SetSubject(made.get(), "O", RoleName(who.role)));
  RETURN_IF_ERROR(SetSubject(made.get(), "CN", who.name));
  X509_set_issuer_name(made.get(), X509_get_subject_name(ca));
  RETURN_IF_ERROR(Extend(made.get(), ca, NID_basic_constraints, "critical,CA:FALSE"));
  RETURN_IF_ERROR(Extend(made.get(), ca, NID_key_usage, "critical,digitalSignature"));
  RETURN_IF_ERROR(Extend(made.get(), ca, NID_ext_key_usage, UsesOf(who.role)));
  RETURN_IF_ERROR(Extend(made.get(), ca, NID_subject_alt_name, AlternativeNames(who)));
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

absl::StatusOr<Revoked> ReadRevoked(const std::string& dir, const std::string& ca_pem) {
  const std::string file = absl::StrCat(dir, "/", kRevokedFile);
  ASSIGN_OR_RETURN(const std::string pem, ReadSmallFile(file, kMaxRevokedBytes));
  return Revoked::Read(pem, ca_pem, file);
}

}  // namespace isthmus::tls
