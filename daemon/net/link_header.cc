#include "daemon/net/link_header.h"

#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace isthmus::daemon {
namespace {

constexpr size_t kMaxWords = 64;  // of a wrong header, in its error

}  // namespace

std::string LinkHeaderText(const LinkHeader& header) {
  switch (header.kind) {
    case LinkHeader::kResumes:
      return "resumes";
    case LinkHeader::kRedial:
      return absl::StrCat("redial ", header.attempt, " ", header.received);
    case LinkHeader::kAsk:
      return absl::StrCat("ask ", header.attempt);
    default:
      return "";
  }
}

absl::StatusOr<LinkHeader> ParseLinkHeader(absl::string_view text) {
  LinkHeader header;
  if (text.empty()) return header;
  const std::vector<absl::string_view> words = absl::StrSplit(text, ' ');
  const auto number = [&words](size_t at, uint64_t* out) {
    return at < words.size() && absl::SimpleAtoi(words[at], out);
  };
  bool good = false;
  if (words[0] == "resumes") {
    header.kind = LinkHeader::kResumes;
    good = words.size() == 1;
  } else if (words[0] == "redial") {
    header.kind = LinkHeader::kRedial;
    good = words.size() == 3 && number(1, &header.attempt) && number(2, &header.received);
  } else if (words[0] == "ask") {
    header.kind = LinkHeader::kAsk;
    good = words.size() == 2 && number(1, &header.attempt);
  }
  if (good) return header;
  return absl::InvalidArgumentError(
      absl::StrCat(kLinkHeaderKey, " says '", text.substr(0, kMaxWords),
                   "'; this daemon knows resumes, redial ATTEMPT RECEIVED, and ask ATTEMPT"));
}

}  // namespace isthmus::daemon
