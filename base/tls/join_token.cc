#include "base/tls/join_token.h"

#include <openssl/crypto.h>
#include <openssl/rand.h>
#include <openssl/sha.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "base/tls/openssl.h"

namespace isthmus::tls {
namespace {

constexpr char kVersion = 1;
constexpr size_t kHashBytes = 32;
constexpr size_t kCheckBytes = 4;  // against slips of the hand; the secret is what protects

absl::Status Garbled(absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(
      "the join token ", why, ": copy the whole line that isthmus ca token create printed, from ",
      kTokenPrefix, " to its end"));
}

absl::Status CheckAddresses(const std::vector<std::string>& addresses) {
  if (addresses.empty() || addresses.size() > kMaxTokenAddresses) {
    return absl::InvalidArgumentError(absl::StrCat("a join token holds 1 to ", kMaxTokenAddresses,
                                                   " addresses, not ", addresses.size()));
  }
  for (const std::string& each : addresses) {
    const bool plain = std::all_of(each.begin(), each.end(),
                                   [](unsigned char c) { return absl::ascii_isgraph(c); });
    const size_t colon = each.rfind(':');
    if (!plain || each.size() > kMaxTokenAddressBytes || colon == std::string::npos || colon == 0 ||
        colon + 1 == each.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", absl::CEscape(each.substr(0, kMaxTokenAddressBytes)),
                       "' can't be the address in a join token: HOST:PORT of at most ",
                       kMaxTokenAddressBytes, " characters"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> RandomBytes(size_t count) {
  std::string bytes(count, '\0');
  if (RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data()), static_cast<int>(count)) == 1)
    return bytes;
  return OpensslError("asking for random bytes");
}

// Takes `count` bytes from the front; false: there are fewer.
bool Take(absl::string_view* rest, size_t count, std::string* out) {
  if (rest->size() < count) return false;
  *out = std::string(rest->substr(0, count));
  rest->remove_prefix(count);
  return true;
}

bool Parse(absl::string_view rest, JoinToken* token) {
  std::string count, length, address;
  if (!Take(&rest, 1, &count)) return false;
  for (int i = 0; i < static_cast<unsigned char>(count[0]); ++i) {
    if (!Take(&rest, 1, &length) || !Take(&rest, static_cast<unsigned char>(length[0]), &address))
      return false;
    token->addresses.push_back(address);
  }
  return Take(&rest, kHashBytes, &token->authority) && Take(&rest, kTokenIdBytes, &token->id) &&
         Take(&rest, kTokenSecretBytes, &token->secret) && rest.empty() &&
         CheckAddresses(token->addresses).ok();
}

}  // namespace

std::string Sha256(absl::string_view bytes) {
  std::string digest(kHashBytes, '\0');
  SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(),
         reinterpret_cast<unsigned char*>(digest.data()));
  return digest;
}

bool SameSecret(absl::string_view a, absl::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

absl::StatusOr<std::string> AuthorityHash(const std::string& pem, absl::string_view where) {
  ASSIGN_OR_RETURN(const Owned<X509> read, ParseCertificate(pem, where));
  return HashOf(read.get());
}

absl::StatusOr<JoinToken> NewJoinToken(const std::vector<std::string>& addresses,
                                       const std::string& authority) {
  RETURN_IF_ERROR(CheckAddresses(addresses));
  JoinToken token = {addresses, authority, "", ""};
  ASSIGN_OR_RETURN(token.id, RandomBytes(kTokenIdBytes));
  ASSIGN_OR_RETURN(token.secret, RandomBytes(kTokenSecretBytes));
  return token;
}

std::string JoinTokenText(const JoinToken& token) {
  std::string bytes(1, kVersion);
  bytes.push_back(static_cast<char>(token.addresses.size()));
  for (const std::string& each : token.addresses) {
    bytes.push_back(static_cast<char>(each.size()));
    bytes += each;
  }
  absl::StrAppend(&bytes, token.authority, token.id, token.secret);
  bytes += Sha256(bytes).substr(0, kCheckBytes);
  return absl::StrCat(kTokenPrefix, absl::WebSafeBase64Escape(bytes));
}

absl::StatusOr<JoinToken> ReadJoinToken(absl::string_view text) {
  text = absl::StripAsciiWhitespace(text);
  if (text.empty()) return Garbled("is empty");
  if (text.size() > kMaxTokenText)
    return Garbled(absl::StrCat("has ", text.size(), " characters; at most ", kMaxTokenText));
  absl::string_view rest = text;
  if (!absl::ConsumePrefix(&rest, kTokenPrefix))
    return Garbled(absl::StrCat("does not begin with ", kTokenPrefix));
  std::string bytes;
  // One text for each token: what decodes but is not written so was changed.
  if (!absl::WebSafeBase64Unescape(rest, &bytes) || absl::WebSafeBase64Escape(bytes) != rest)
    return Garbled("has characters that no token has, or was cut off");
  if (bytes.size() <= kCheckBytes) return Garbled("was cut off");
  const std::string check = bytes.substr(bytes.size() - kCheckBytes);
  bytes.resize(bytes.size() - kCheckBytes);
  if (Sha256(bytes).substr(0, kCheckBytes) != check)
    return Garbled("was mistyped or cut off: its checksum does not fit");
  if (bytes[0] != kVersion) {
    return absl::InvalidArgumentError(
        absl::StrCat("the join token is of version ", static_cast<int>(bytes[0]),
                     ", and this program reads version ", static_cast<int>(kVersion),
                     ": install the coordinator's version of isthmusd here"));
  }
  JoinToken token;
  if (!Parse(absl::string_view(bytes).substr(1), &token)) return Garbled("holds no address");
  return token;
}

}  // namespace isthmus::tls
