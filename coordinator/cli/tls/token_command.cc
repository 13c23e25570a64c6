#include "coordinator/cli/tls/token_command.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/number_flag.h"
#include "base/rpc/channel.h"
#include "base/status.h"
#include "base/suggest.h"
#include "base/tls/joins.h"
#include "coordinator/cli/exit_code.h"
#include "coordinator/cli/view/json_out.h"
#include "coordinator/cli/view/render.h"

namespace isthmus::cli {
namespace {

// "30s", "15m", "24h" or "7d".
absl::StatusOr<absl::Duration> LifeOf(const std::string& flag, const std::string& text) {
  constexpr std::pair<char, int> kUnits[] = {{'s', 1}, {'m', 60}, {'h', 3600}, {'d', 86400}};
  for (const auto& [unit, seconds] : kUnits) {
    int count = 0;
    if (text.size() > 1 && text.size() <= 8 && text.back() == unit &&
        absl::SimpleAtoi(text.substr(0, text.size() - 1), &count) && count > 0)
      return count * absl::Seconds(seconds);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      flag, " '", text.substr(0, 40), "': must be a time, for example 30s, 15m, 24h or 7d"));
}

// Who is asked where somebody wonders later.
std::string Me() {
  char host[256] = {};
  if (::gethostname(host, sizeof(host) - 1) != 0) host[0] = '\0';
  const char* const user = std::getenv("USER");
  return absl::StrCat(user == nullptr ? absl::StrCat("user ", ::getuid()) : user, " on ", host);
}

std::string Moment(absl::Time time) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%S", time, absl::LocalTimeZone());
}

std::string JsonOf(const tls::JoinRecord& record, absl::Time now, const std::string& more) {
  std::vector<std::string> hosts;
  hosts.reserve(record.used.size());
  for (const tls::JoinUse& use : record.used) hosts.push_back(JsonString(use.name));
  return absl::StrCat("{\"id\": ", JsonString(record.id),
                      ", \"role\": ", JsonString(tls::RoleName(record.role)),
                      ", \"name\": ", JsonString(record.names),
                      ", \"state\": ", JsonString(tls::JoinState(record, now)),
                      ", \"uses\": ", record.uses, ", \"joined\": [", absl::StrJoin(hosts, ", "),
                      "], \"until_unix_ms\": ", absl::ToUnixMillis(record.until),
                      ", \"certificate_life_s\": ", absl::ToInt64Seconds(record.certificate_life),
                      ", \"made_by\": ", JsonString(record.made_by),
                      ", \"made_unix_ms\": ", absl::ToUnixMillis(record.made_at), more, "}");
}

absl::StatusOr<tls::TokenOptions> OptionsOf(const std::string& role, const TokenFlags& flags) {
  tls::TokenOptions options;
  if (flags.addresses.empty()) {
    return absl::InvalidArgumentError(
        "isthmus ca token create wants --address HOST:PORT: the coordinator's --join-listen, as "
        "the hosts that join reach it");
  }
  for (const std::string& each : flags.addresses)
    RETURN_IF_ERROR(rpc::CheckAddress("--address", each));
  options.addresses = flags.addresses;
  if (!role.empty()) {
    const auto read = tls::RoleOf(role);
    if (!read.ok()) return Annotate(read.status(), "--role");
    options.role = *read;
  }
  if (!flags.names.empty()) options.names = flags.names;
  options.uses = flags.uses;
  ASSIGN_OR_RETURN(options.life, LifeOf("--life", flags.life));
  ASSIGN_OR_RETURN(options.certificate_life, LifeOf("--certificate-life", flags.certificate_life));
  options.made_by = Me();
  return options;
}

// The token alone goes to the output, so that `> FILE` has it and nothing else.
int Create(const tls::Joins& joins, const tls::TokenOptions& options, bool json, Console* console) {
  const absl::Time now = tls::Today();
  const auto made = joins.Create(options, now);
  if (!made.ok()) return console->Fail(made.status());
  const tls::JoinRecord& record = made->record;
  if (json) {
    console->Out(absl::StrCat(
        JsonOf(record, now, absl::StrCat(", \"token\": ", JsonString(made->text))), "\n"));
    return kExitOk;
  }
  console->Out(absl::StrCat(made->text, "\n"));
  console->Err(absl::StrCat(
      "token ", record.id, ": ",
      record.uses == 1 ? "one host" : absl::StrCat(record.uses, " hosts"), " may join as ",
      record.names, " until ", Moment(record.until),
      "; it is a secret, and is shown this once\n"
      "next, on each host: isthmusd --join-file FILE with that line in it (or --join TOKEN, which "
      "other users of the host can read in its list of processes)\n"));
  return kExitOk;
}

int List(const tls::Joins& joins, const std::string& dir, bool json, Console* console) {
  const auto all = joins.List();
  if (!all.ok()) return console->Fail(all.status());
  const absl::Time now = tls::Today();
  Table table({"ID", "NAME", "STATE", "JOINED", "UNTIL", "MADE BY"});
  std::vector<std::string> lines;
  for (const tls::JoinRecord& each : *all) {
    table.AddRow({each.id, each.names, tls::JoinState(each, now),
                  absl::StrCat(each.used.size(), " of ", each.uses), Moment(each.until),
                  each.made_by});
    lines.push_back(JsonOf(each, now, ""));
  }
  if (json) {
    console->Out(absl::StrCat("{\"tokens\": [", absl::StrJoin(lines, ",\n"), "]}\n"));
  } else {
    console->Out(table.empty() ? absl::StrCat(dir, " has made no join token yet\n")
                               : table.Render());
  }
  return kExitOk;
}

int Revoke(const tls::Joins& joins, const std::string& id, bool json, Console* console) {
  const auto revoked = joins.Revoke(id);
  if (!revoked.ok()) return console->Fail(revoked.status());
  if (json) {
    console->Out(absl::StrCat(JsonOf(*revoked, tls::Today(), ""), "\n"));
    return kExitOk;
  }
  console->Out(absl::StrCat("revoked join token ", revoked->id, ": nobody joins by it any more\n"));
  for (const tls::JoinUse& use : revoked->used) {
    console->Out(absl::StrCat("note: ", use.name,
                              " joined by it and keeps its certificate; isthmus ca revoke ",
                              use.name, " ends that\n"));
  }
  return kExitOk;
}

}  // namespace

void AddTokenFlags(CLI::App* command, const std::string& prefix, TokenFlags* flags) {
  command
      ->add_option("--address", flags->addresses,
                   prefix +
                       "the coordinator's --join-listen, as hosts reach it; several are tried "
                       "in turn")
      ->type_name("HOST:PORT");
  command
      ->add_option("--name", flags->names,
                   prefix +
                       "what the host is called; with a '*' for a number where several are "
                       "[node-*]")
      ->type_name("NAME");
  Whole(command->add_option("--uses", flags->uses, prefix + "how many hosts may join by it"), 1,
        tls::kMaxTokenUses)
      ->capture_default_str();
  command->add_option("--life", flags->life, prefix + "how long it is good, at most 30d")
      ->type_name("TIME")
      ->capture_default_str();
  command
      ->add_option("--certificate-life", flags->certificate_life,
                   prefix +
                       "how long the certificates of those hosts hold, which they renew by "
                       "themselves; at most 365d")
      ->type_name("TIME")
      ->capture_default_str();
}

int RunToken(const std::string& action, const std::string& id, const std::string& role,
             const std::string& dir, const TokenFlags& flags, bool json, Console* console) {
  const std::vector<std::string> actions = {"create", "list", "revoke"};
  if (std::find(actions.begin(), actions.end(), action) == actions.end()) {
    const std::string near = DidYouMean(action, actions);
    return console->Fail(absl::InvalidArgumentError(
        absl::StrCat("isthmus ca token ", action.substr(0, 60), ": ",
                     near.empty() ? "" : near + " ", "it does ", absl::StrJoin(actions, ", "))));
  }
  if ((action == "revoke") == id.empty()) {
    return console->Fail(absl::InvalidArgumentError(
        action == "revoke" ? "isthmus ca token revoke wants the ID of a token: isthmus ca token "
                             "list shows them"
                           : absl::StrCat("isthmus ca token ", action, " takes no ID")));
  }
  absl::StatusOr<tls::TokenOptions> options;
  if (action == "create") {
    options = OptionsOf(role, flags);
    if (!options.ok()) return console->Fail(options.status());
  }
  const auto joins = tls::Joins::Open(dir);
  if (!joins.ok()) return console->Fail(joins.status());
  if (action == "create") return Create(*joins, *options, json, console);
  return action == "list" ? List(*joins, dir, json, console) : Revoke(*joins, id, json, console);
}

}  // namespace isthmus::cli
