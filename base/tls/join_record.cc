#include "base/tls/join_record.h"

#include <algorithm>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "base/tls/join_token.h"

namespace isthmus::tls {
namespace {

constexpr char kFirstLine[] = "isthmus join token 1";
constexpr size_t kMaxMadeBy = 80;
constexpr size_t kHashDigits = 64;

bool IsHex(absl::string_view text, size_t digits) {
  return text.size() == digits &&
         text.find_first_not_of("0123456789abcdef") == absl::string_view::npos;
}

std::string Numbered(const std::string& names, int number) {
  return absl::StrReplaceAll(names, {{"*", absl::StrCat(number)}});
}

// What may stand in a line of the file.
std::string OneLine(absl::string_view text) {
  std::string out(text.substr(0, kMaxMadeBy));
  std::replace_if(
      out.begin(), out.end(), [](unsigned char c) { return !absl::ascii_isprint(c); }, '?');
  return out;
}

absl::Status Denied(const JoinRecord& record, absl::string_view why) {
  return absl::PermissionDeniedError(absl::StrCat(
      "join token ", record.id, " ", why, ": ask for another one (isthmus ca token create)"));
}

// False: `line` is not as this version writes it.
bool TakeLine(absl::string_view line, JoinRecord* record) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(line, absl::MaxSplits(' ', 1));
  const auto& [field, value] = parts;
  int64_t number = 0;
  const bool numeric = absl::SimpleAtoi(value, &number);
  if (field == "id") {
    record->id = std::string(value);
    return IsHex(value, 2 * kTokenIdBytes);
  }
  if (field == "secret_hash") {
    record->secret_hash = std::string(value);
    return IsHex(value, kHashDigits);
  }
  if (field == "role") {
    const absl::StatusOr<Role> role = RoleOf(value);
    if (role.ok()) record->role = *role;
    return role.ok();
  }
  if (field == "names") record->names = std::string(value);
  if (field == "made_by") record->made_by = std::string(value);
  if (field == "names" || field == "made_by") return true;
  if (field == "used") {
    const std::pair<std::string, std::string> use = absl::StrSplit(value, absl::MaxSplits(' ', 1));
    record->used.push_back({use.first, use.second});
    return CheckName(use.first).ok() && IsHex(use.second, kHashDigits);
  }
  if (field == "uses") record->uses = static_cast<int>(number);
  if (field == "until_unix_ms") record->until = absl::FromUnixMillis(number);
  if (field == "made_unix_ms") record->made_at = absl::FromUnixMillis(number);
  if (field == "certificate_life_s") record->certificate_life = absl::Seconds(number);
  if (field == "revoked") record->revoked = number != 0;
  return numeric && (field == "uses" || field == "until_unix_ms" || field == "made_unix_ms" ||
                     field == "certificate_life_s" || field == "revoked");
}

}  // namespace

absl::Status CheckJoinRecord(const JoinRecord& record, absl::Time now) {
  const auto bad = [](absl::string_view words) { return absl::InvalidArgumentError(words); };
  if (record.role != Role::kWorker) {
    return bad(absl::StrCat("--role ", RoleName(record.role),
                            ": only daemons (worker) join by a token; others get their "
                            "certificate from isthmus ca issue"));
  }
  const auto stars = std::count(record.names.begin(), record.names.end(), '*');
  const std::string longest = Numbered(record.names, kMaxTokenUses);
  if (stars > 1 || !CheckName(stars == 0 ? record.names : longest).ok()) {
    return bad(absl::StrCat("--name '", absl::CEscape(record.names.substr(0, kMaxNameBytes)),
                            "': must be a name of lower-case letters, digits, '-' and '.', with at "
                            "most one '*' where a number comes, for example gpu-*"));
  }
  if (record.uses < 1 || record.uses > kMaxTokenUses)
    return bad(absl::StrCat("--uses ", record.uses, ": must be 1 to ", kMaxTokenUses));
  if (stars == 0 && record.uses > 1) {
    return bad(absl::StrCat("--uses ", record.uses, ": only one host can be called ", record.names,
                            "; --name '", record.names, "-*' numbers them"));
  }
  if (record.until <= now || record.until > now + kMaxTokenLife)
    return bad("--life: must be more than nothing, and at most 30d");
  if (record.certificate_life < kMinJoinedLife || record.certificate_life > kMaxJoinedLife)
    return bad("--certificate-life: must be 10s to 365d");
  return absl::OkStatus();
}

std::string JoinRecordText(const JoinRecord& record) {
  std::string text =
      absl::StrCat(kFirstLine, "\nid ", record.id, "\nsecret_hash ", record.secret_hash, "\nrole ",
                   RoleName(record.role), "\nnames ", record.names, "\nuses ", record.uses,
                   "\nuntil_unix_ms ", absl::ToUnixMillis(record.until), "\ncertificate_life_s ",
                   absl::ToInt64Seconds(record.certificate_life), "\nmade_by ",
                   OneLine(record.made_by), "\nmade_unix_ms ", absl::ToUnixMillis(record.made_at),
                   "\nrevoked ", record.revoked ? 1 : 0, "\n");
  for (const JoinUse& use : record.used)
    absl::StrAppend(&text, "used ", use.name, " ", use.key, "\n");
  return text;
}

absl::StatusOr<JoinRecord> ReadJoinRecord(const std::string& text, const std::string& where) {
  const absl::Status lost =
      absl::DataLossError(absl::StrCat(where,
                                       " holds no join token of this version: remove it, "
                                       "and make another token (isthmus ca token create)"));
  const std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  if (lines.front() != kFirstLine || lines.back() != "") return lost;
  JoinRecord record;
  record.names = "";
  std::set<absl::string_view> seen;
  for (size_t i = 1; i + 1 < lines.size(); ++i) {
    const absl::string_view field = lines[i].substr(0, lines[i].find(' '));
    if (!TakeLine(lines[i], &record)) return lost;
    if (field != "used" && !seen.insert(field).second) return lost;
  }
  constexpr size_t kFields = 10;
  return seen.size() == kFields && CheckJoinRecord(record, record.made_at).ok()
             ? absl::StatusOr<JoinRecord>(record)
             : lost;
}

absl::Status UnknownToken() {
  return absl::PermissionDeniedError(
      "this authority knows no such join token: it was made by another one, or removed; ask for "
      "another one (isthmus ca token create)");
}

const JoinUse* UseBy(const JoinRecord& record, const std::string& key) {
  for (const JoinUse& use : record.used) {
    if (use.key == key) return &use;
  }
  return nullptr;
}

absl::Status JudgeJoin(const JoinRecord& record, absl::string_view secret, Role role,
                       const std::string& key, absl::Time now) {
  if (!SameSecret(absl::BytesToHexString(Sha256(secret)), record.secret_hash))
    return UnknownToken();
  if (record.revoked) return Denied(record, "was revoked");
  if (now >= record.until) {
    return Denied(record,
                  absl::StrCat("expired on ", absl::FormatTime(absl::RFC3339_sec, record.until,
                                                               absl::UTCTimeZone())));
  }
  if (role != record.role) {
    return Denied(record,
                  absl::StrCat("lets in a ", RoleName(record.role), " and no ", RoleName(role)));
  }
  if (UseBy(record, key) != nullptr) return absl::OkStatus();
  if (static_cast<int>(record.used.size()) < record.uses) return absl::OkStatus();
  return Denied(record, absl::StrCat("is used up: ", record.uses,
                                     record.uses == 1 ? " host has" : " hosts have",
                                     " joined by it, and it is for no more"));
}

std::string JoinState(const JoinRecord& record, absl::Time now) {
  if (record.revoked) return "revoked";
  if (now >= record.until) return "expired";
  return static_cast<int>(record.used.size()) < record.uses ? "holds" : "used up";
}

absl::StatusOr<std::string> NextName(const std::string& names,
                                     const std::vector<NamedCertificate>& all) {
  const auto taken = [&](absl::string_view by, absl::string_view cure) {
    return absl::AlreadyExistsError(absl::StrCat(by, ", and a name is one host's: ", cure,
                                                 ", or make a token with another --name"));
  };
  std::set<std::string> ever;
  const NamedCertificate* holder = nullptr;
  for (const NamedCertificate& each : all) {
    ever.insert(each.name);
    const bool first = holder == nullptr || (each.token.empty() && !holder->token.empty());
    if (each.holds && each.name == names && first) holder = &each;
  }
  if (names.find('*') == std::string::npos) {
    if (holder == nullptr) return names;
    if (!holder->token.empty()) {
      return taken(absl::StrCat("join token ", holder->token, " gave the name ", names,
                                " to another host, which may come for its certificate again"),
                   absl::StrCat("revoke that token (isthmus ca token revoke ", holder->token, ")"));
    }
    return taken(absl::StrCat("a certificate of ", names, " holds already"),
                 absl::StrCat("revoke it (isthmus ca revoke ", names, ")"));
  }
  int number = 1;  // ends: `all` is finite
  while (ever.count(Numbered(names, number)) > 0) ++number;
  std::string next = Numbered(names, number);
  if (CheckName(next).ok()) return next;
  return absl::ResourceExhaustedError(
      absl::StrCat("the next name is ", next, ", which is longer than ", kMaxNameBytes,
                   " characters: make a token with a shorter --name"));
}

}  // namespace isthmus::tls
