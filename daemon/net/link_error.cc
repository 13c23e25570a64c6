#include "daemon/net/link_error.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/utf8.h"
#include "proto/failure_cause.h"

namespace isthmus::daemon {
namespace {

constexpr size_t kMaxNodeBytes = 256;
constexpr char kSeparator = '\x1f';  // ASCII's unit separator

std::string Words(const absl::Status& why) {
  std::string words = ToUtf8(why.message().substr(0, kMaxReasonBytes));
  std::replace(words.begin(), words.end(), kSeparator, ' ');
  return words;
}

absl::Status Told(absl::StatusCode code, absl::string_view words, const FailureCause& cause) {
  absl::Status error(code, words);
  if (cause.kind() == FailureCause::UNTOLD) return error;
  return WithCause(
      std::move(error),
      MakeCause(cause.kind(), cause.rank(), cause.node().substr(0, kMaxNodeBytes), cause.step()));
}

}  // namespace

LinkChunk ErrorChunk(const absl::Status& why) {
  LinkChunk last;
  last.set_error(Words(why));
  last.set_code(static_cast<int>(why.code()));
  if (CauseOf(why).has_value()) *last.mutable_cause() = CauseBeside(why);
  return last;
}

absl::Status ErrorOf(const LinkChunk& last) {
  auto code = static_cast<absl::StatusCode>(last.code());
  // OutOfRange is the orderly end: a peer can't claim it with an error.
  const bool known = last.code() >= 1 && last.code() <= 16 && code != absl::StatusCode::kOutOfRange;
  if (!known) code = absl::StatusCode::kAborted;
  return Annotate(
      Told(code, absl::string_view(last.error()).substr(0, kMaxReasonBytes), last.cause()),
      "the peer ended the link");
}

absl::Status ToTrailer(const absl::Status& why) {
  const FailureCause cause = CauseBeside(why);
  if (why.ok()) return why;
  const bool untold = cause.kind() == FailureCause::UNTOLD;
  return absl::Status(why.code(),
                      absl::StrCat(Words(why), std::string(1, kSeparator),
                                   untold ? "" : absl::Base64Escape(cause.SerializeAsString())));
}

bool IsTold(const absl::Status& trailer) {
  return absl::StrContains(trailer.message(), kSeparator);
}

absl::Status FromTrailer(const absl::Status& told) {
  const absl::string_view text = told.message();
  const size_t separator = text.rfind(kSeparator);
  std::string bytes;
  FailureCause cause;
  if (separator == absl::string_view::npos ||
      !absl::Base64Unescape(text.substr(separator + 1), &bytes) || !cause.ParseFromString(bytes))
    return told;
  return Told(told.code(), text.substr(0, separator), cause);
}

}  // namespace isthmus::daemon
