#include "base/rpc/allowed_calls.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"

namespace isthmus::rpc {

std::string CallName(absl::string_view call) {
  absl::ConsumePrefix(&call, "/isthmus.");
  return absl::StrReplaceAll(call.substr(0, 80), {{"/", "."}});
}

absl::Status CheckCall(absl::Span<const AllowedCall> table, const tls::Identity& who,
                       absl::string_view call) {
  std::vector<std::string> may;
  for (const AllowedCall& each : table) {
    if (each.call != call) continue;
    if (each.roles.Has(who.role)) return absl::OkStatus();
    for (const std::string& name : tls::RoleNames()) {
      if (each.roles.Has(*tls::RoleOf(name))) may.push_back(name);
    }
  }
  if (may.empty()) {
    return absl::UnimplementedError(absl::StrCat(tls::Words(who), " asks for ", CallName(call),
                                                 ", which this build does not know"));
  }
  return absl::PermissionDeniedError(absl::StrCat(tls::Words(who), " may not call ", CallName(call),
                                                  ": that takes a certificate of role ",
                                                  absl::StrJoin(may, " or ")));
}

}  // namespace isthmus::rpc
