#include "coordinator/cli/tls/audit_command.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "coordinator/cli/exit_code.h"
#include "coordinator/cli/interruptible_client.h"
#include "coordinator/cli/view/json_out.h"
#include "coordinator/cli/view/render.h"

namespace isthmus::cli {
namespace {

std::string WhoWords(const AuditEntry& entry) {
  if (entry.who().empty()) return "anybody";
  return absl::StrCat(entry.who(), " (", entry.role(), ")");
}

}  // namespace

int RunAudit(const ClientOptions& client, int last, bool json, Console* console) {
  InterruptibleClient caller;
  if (const absl::Status opened = caller.Open(client); !opened.ok()) return console->Fail(opened);
  AuditRequest request;
  request.set_last(last);
  const absl::StatusOr<AuditReply> reply = caller.client->Audit(request);
  if (!reply.ok()) return console->Fail(reply.status());
  if (json) {
    console->Out(ToJson(*reply, true));
    return kExitOk;
  }
  Table table({"WHEN", "WHO", "FROM", "CALL", "WHAT", "OUTCOME"});
  for (const AuditEntry& entry : reply->entries()) {
    table.AddRow({absl::FormatTime("%Y-%m-%d %H:%M:%S", absl::FromUnixMillis(entry.unix_ms()),
                                   absl::LocalTimeZone()),
                  WhoWords(entry), entry.peer().empty() ? "-" : entry.peer(), entry.call(),
                  entry.what().empty() ? "-" : entry.what(), entry.outcome()});
  }
  console->Out(table.empty() ? "Nothing was changed yet, and nobody refused.\n" : table.Render());
  return kExitOk;
}

}  // namespace isthmus::cli
