#include "base/tls/certificate.h"

#include <openssl/x509v3.h>

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "base/status.h"
#include "base/suggest.h"
#include "base/tls/openssl.h"

namespace isthmus::tls {
namespace {

constexpr char kEnding[] = ".isthmus";

constexpr std::pair<Role, absl::string_view> kRoles[] = {{Role::kCoordinator, "coordinator"},
                                                         {Role::kWorker, "worker"},
                                                         {Role::kOperator, "operator"},
                                                         {Role::kViewer, "viewer"}};

std::vector<std::string> NamesOf(X509* certificate) {
  std::vector<std::string> names;
  auto* alternatives = static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr));
  for (int i = 0; i < sk_GENERAL_NAME_num(alternatives); ++i) {
    const GENERAL_NAME* each = sk_GENERAL_NAME_value(alternatives, i);
    if (each->type != GEN_DNS) continue;
    names.emplace_back(reinterpret_cast<const char*>(ASN1_STRING_get0_data(each->d.dNSName)),
                       static_cast<size_t>(ASN1_STRING_length(each->d.dNSName)));
  }
  GENERAL_NAMES_free(alternatives);
  return names;
}

}  // namespace

std::string RoleName(Role role) {
  for (const auto& [each, name] : kRoles) {
    if (each == role) return std::string(name);
  }
  return "";
}

std::vector<std::string> RoleNames() {
  std::vector<std::string> names;
  for (const auto& [role, name] : kRoles) names.emplace_back(name);
  return names;
}

absl::StatusOr<Role> RoleOf(absl::string_view text) {
  for (const auto& [role, name] : kRoles) {
    if (name == text) return role;
  }
  const std::string near = DidYouMean(text, RoleNames());
  return absl::InvalidArgumentError(absl::StrCat("there is no role '", text.substr(0, 60), "'",
                                                 near.empty() ? "" : "; ", near, "; the roles are ",
                                                 absl::StrJoin(RoleNames(), ", ")));
}

absl::Status CheckName(absl::string_view name) {
  const auto good = [](char c) {
    return absl::ascii_islower(static_cast<unsigned char>(c)) ||
           absl::ascii_isdigit(static_cast<unsigned char>(c));
  };
  const bool all = std::all_of(name.begin(), name.end(),
                               [&](char c) { return good(c) || c == '-' || c == '.'; });
  if (!name.empty() && name.size() <= kMaxNameBytes && all && good(name.front()) &&
      good(name.back()) && name.find("..") == absl::string_view::npos)
    return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "'", absl::CEscape(name.substr(0, 60)), "' can't be the name in a certificate: 1 to ",
      kMaxNameBytes, " lower-case letters, digits, '-' and '.', as in a host's name"));
}

std::string ServerName(const Identity& who) {
  return absl::StrCat(who.name, ".", RoleName(who.role), kEnding);
}

std::string Words(const Identity& who) {
  return absl::StrCat(who.name, " (", RoleName(who.role), ")");
}

absl::StatusOr<Identity> IdentityOf(const std::vector<std::string>& names) {
  for (const std::string& each : names) {
    absl::string_view rest = each;
    if (!absl::ConsumeSuffix(&rest, kEnding)) continue;
    const size_t dot = rest.rfind('.');
    if (dot == absl::string_view::npos) continue;
    const absl::StatusOr<Role> role = RoleOf(rest.substr(dot + 1));
    const absl::string_view name = rest.substr(0, dot);
    if (role.ok() && CheckName(name).ok()) return Identity{std::string(name), *role};
  }
  return absl::UnauthenticatedError(
      "the certificate names no node and role of Isthmus: make one with isthmus ca issue");
}

absl::StatusOr<Certificate> ReadCertificate(const std::string& pem, absl::string_view where) {
  ASSIGN_OR_RETURN(const Owned<X509> read, ParseCertificate(pem, where));
  const absl::StatusOr<Identity> who = IdentityOf(NamesOf(read.get()));
  if (!who.ok())
    return absl::InvalidArgumentError(absl::StrCat(where, ": ", who.status().message()));
  return Certificate{
      *who, HexOf(X509_get0_serialNumber(read.get())), absl::BytesToHexString(HashOf(read.get())),
      TimeOf(X509_get0_notBefore(read.get())), TimeOf(X509_get0_notAfter(read.get()))};
}

absl::Status CheckTimes(const Certificate& certificate, absl::Time now) {
  if (now > certificate.until) {
    return absl::FailedPreconditionError(
        absl::StrCat("the certificate of ", Words(certificate.who), " expired on ",
                     DayOf(certificate.until), ": issue a new one (isthmus ca issue ",
                     certificate.who.name, " --role ", RoleName(certificate.who.role), ")"));
  }
  if (now >= certificate.from) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "the certificate of ", Words(certificate.who), " is valid from ",
      absl::FormatTime(absl::RFC3339_sec, certificate.from, absl::UTCTimeZone()),
      " on, and this host's clock says ",
      absl::FormatTime(absl::RFC3339_sec, now, absl::UTCTimeZone()), ": set the clock"));
}

std::string DayOf(absl::Time time) {
  return absl::FormatTime("%Y-%m-%d", time, absl::UTCTimeZone());
}

absl::Time Today() { return absl::FromUnixMillis(absl::ToUnixMillis(absl::Now())); }

}  // namespace isthmus::tls
