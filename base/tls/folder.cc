#include "base/tls/folder.h"

#include <openssl/err.h>
#include <sys/stat.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/file/read_file.h"
#include "base/status.h"
#include "base/tls/openssl.h"

namespace isthmus::tls {
namespace {

std::string FileOf(const std::string& path, const char* file) {
  return absl::StrCat(path, "/", file);
}

absl::StatusOr<std::string> ReadPem(const std::string& path, const char* file) {
  const absl::StatusOr<std::string> pem = ReadSmallFile(FileOf(path, file), kMaxPemBytes);
  if (pem.ok()) return pem;
  return Reword(pem.status(), absl::StrCat(pem.status().message(), "; a TLS folder has ", kCaFile,
                                           ", ", kCertificateFile, " and ", kKeyFile,
                                           ", as `isthmus ca issue NAME --role ROLE` writes it"));
}

absl::Status CheckKeyMode(const std::string& file) {
  struct stat info = {};
  if (::stat(file.c_str(), &info) != 0) return absl::OkStatus();
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(
        file, S_ISDIR(info.st_mode) ? " is a directory" : " is no regular file",
        ", and has to hold the key, as `isthmus ca issue NAME --role ROLE` writes it"));
  }
  if ((info.st_mode & 07) == 0) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat(file, ": every user of this host may read it: chmod 600 ", file));
}

absl::Status CheckTogether(const Folder& folder) {
  ASSIGN_OR_RETURN(const Owned<X509> ca,
                   ParseCertificate(folder.ca_pem, FileOf(folder.path, kCaFile)));
  ASSIGN_OR_RETURN(const Owned<X509> mine,
                   ParseCertificate(folder.certificate_pem, FileOf(folder.path, kCertificateFile)));
  ASSIGN_OR_RETURN(const Owned<EVP_PKEY> key,
                   ParseKey(folder.key_pem, FileOf(folder.path, kKeyFile)));
  const bool signed_by = X509_verify(mine.get(), X509_get0_pubkey(ca.get())) == 1;
  const bool keyed = X509_check_private_key(mine.get(), key.get()) == 1;
  ERR_clear_error();
  if (!signed_by) {
    return absl::InvalidArgumentError(
        absl::StrCat(FileOf(folder.path, kCertificateFile), ": is not signed by the authority of ",
                     kCaFile, " beside it: copy a folder of `isthmus ca issue` as a whole"));
  }
  if (keyed) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(FileOf(folder.path, kKeyFile), ": is not the key of ", kCertificateFile,
                   " beside it: copy a folder of `isthmus ca issue` as a whole"));
}

}  // namespace

absl::StatusOr<Folder> ReadFolder(const std::string& path, const std::vector<Role>& roles,
                                  absl::Time now) {
  Folder folder;
  folder.path = path;
  ASSIGN_OR_RETURN(folder.ca_pem, ReadPem(path, kCaFile));
  ASSIGN_OR_RETURN(folder.certificate_pem, ReadPem(path, kCertificateFile));
  RETURN_IF_ERROR(CheckKeyMode(FileOf(path, kKeyFile)));
  ASSIGN_OR_RETURN(folder.key_pem, ReadPem(path, kKeyFile));
  ASSIGN_OR_RETURN(folder.certificate,
                   ReadCertificate(folder.certificate_pem, FileOf(path, kCertificateFile)));
  RETURN_IF_ERROR(CheckTogether(folder));
  RETURN_IF_ERROR(Annotate(CheckTimes(folder.certificate, now), path));
  const Role mine = folder.certificate.who.role;
  if (std::find(roles.begin(), roles.end(), mine) != roles.end()) return folder;
  return absl::InvalidArgumentError(absl::StrCat(
      path, ": it is the certificate of ", Words(folder.certificate.who),
      "; this program needs one of role ",
      absl::StrJoin(roles, " or ",
                    [](std::string* out, Role role) { absl::StrAppend(out, RoleName(role)); }),
      ": isthmus ca issue NAME --role ", RoleName(roles.front())));
}

}  // namespace isthmus::tls
