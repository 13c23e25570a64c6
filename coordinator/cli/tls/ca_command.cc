#include "coordinator/cli/tls/ca_command.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/number_flag.h"
#include "base/suggest.h"
#include "base/tls/authority.h"
#include "coordinator/cli/exit_code.h"
#include "coordinator/cli/view/json_out.h"
#include "coordinator/cli/view/render.h"

namespace isthmus::cli {
namespace {

constexpr char kCaFooter[] = R"(
Roles: coordinator; worker, a daemon, by the name of its node; operator, who submits and stops jobs;
viewer, who looks only.

Examples, on a machine that keeps ca.key to itself:
  isthmus ca init
  isthmus ca issue coordinator --role coordinator
  isthmus ca issue home-pc --role worker     then copy isthmus-ca/certificates/home-pc to that host
  isthmus ca issue ada --role operator       and start programs there with --tls-dir FOLDER
  isthmus ca list
  isthmus ca token create --address A:7072 --uses 2 --name 'gpu-*' > token
                                             two hosts join by themselves (isthmusd --join-file),
                                             where isthmus-coordinator runs with --join-listen
  isthmus ca token list                      and revoke ID
  isthmus ca revoke home-pc                  all certificates of that name, or one by its serial)";

struct State {
  std::string word;    // holds | expired | revoked
  std::string detail;  // as people read it
};

State StateOf(const tls::Listed& listed, absl::Time now) {
  const tls::Certificate& certificate = listed.certificate;
  if (listed.revoked)
    return {"revoked", absl::StrCat("revoked on ", tls::DayOf(listed.revoked_at))};
  if (now > certificate.until)
    return {"expired", absl::StrCat("expired on ", tls::DayOf(certificate.until))};
  return {"holds", absl::StrCat("holds until ", tls::DayOf(certificate.until))};
}

std::string JsonOf(const tls::Certificate& certificate, const std::string& more) {
  return absl::StrCat("{\"name\": ", JsonString(certificate.who.name),
                      ", \"role\": ", JsonString(tls::RoleName(certificate.who.role)),
                      ", \"serial\": ", JsonString(certificate.serial),
                      ", \"fingerprint\": ", JsonString(certificate.fingerprint),
                      ", \"from_unix_ms\": ", absl::ToUnixMillis(certificate.from),
                      ", \"until_unix_ms\": ", absl::ToUnixMillis(certificate.until), more, "}");
}

int Init(const CaOptions& options, bool json, Console* console) {
  const absl::Status made = tls::Authority::Init(options.dir, tls::Today());
  if (!made.ok()) return console->Fail(made);
  if (json) {
    console->Out(absl::StrCat("{\"dir\": ", JsonString(options.dir), "}\n"));
    return kExitOk;
  }
  console->Out(absl::StrCat("made a certificate authority in ", options.dir, ": whoever has ",
                            options.dir, "/ca.key can let anybody in, so keep it to yourself\n",
                            "next: isthmus ca issue coordinator --role coordinator\n"));
  return kExitOk;
}

std::string NextStep(const tls::Identity& who) {
  switch (who.role) {
    case tls::Role::kCoordinator:
      return "start isthmus-coordinator";
    case tls::Role::kWorker:
      return "start isthmusd";
    default:
      return "call isthmus";
  }
}

int Issue(const CaOptions& options, bool json, Console* console) {
  const auto role = tls::RoleOf(options.role);
  if (!role.ok())
    return console->Fail(
        absl::InvalidArgumentError(absl::StrCat("--role: ", role.status().message())));
  const auto authority = tls::Authority::Open(options.dir);
  if (!authority.ok()) return console->Fail(authority.status());
  const auto issued =
      authority->Issue({{options.name, *role}, options.days, options.out}, tls::Today());
  if (!issued.ok()) return console->Fail(issued.status());
  if (json) {
    console->Out(absl::StrCat(
        JsonOf(issued->certificate, absl::StrCat(", \"folder\": ", JsonString(issued->folder))),
        "\n"));
    return kExitOk;
  }
  console->Out(absl::StrCat(
      issued->folder, ": certificate of ", tls::Words(issued->certificate.who), ", holds until ",
      tls::DayOf(issued->certificate.until), "\nnext: copy that folder to its host, and ",
      NextStep(issued->certificate.who), " with --tls-dir FOLDER there\n"));
  return kExitOk;
}

int List(const CaOptions& options, bool json, Console* console) {
  const auto authority = tls::Authority::Open(options.dir);
  if (!authority.ok()) return console->Fail(authority.status());
  const auto all = authority->List();
  if (!all.ok()) return console->Fail(all.status());
  const absl::Time now = tls::Today();
  Table table({"NAME", "ROLE", "STATE", "SERIAL"});
  std::vector<std::string> lines;
  for (const tls::Listed& each : *all) {
    const tls::Certificate& certificate = each.certificate;
    const State state = StateOf(each, now);
    table.AddRow({certificate.who.name, tls::RoleName(certificate.who.role), state.detail,
                  certificate.serial});
    lines.push_back(JsonOf(certificate, absl::StrCat(", \"state\": ", JsonString(state.word))));
  }
  if (json) {
    console->Out(absl::StrCat("{\"certificates\": [", absl::StrJoin(lines, ",\n"), "]}\n"));
  } else {
    console->Out(table.empty() ? absl::StrCat(options.dir, " has issued no certificate yet\n")
                               : table.Render());
  }
  return kExitOk;
}

int Revoke(const CaOptions& options, bool json, Console* console) {
  const auto authority = tls::Authority::Open(options.dir);
  if (!authority.ok()) return console->Fail(authority.status());
  const auto revoked = authority->Revoke(options.name, tls::Today());
  if (!revoked.ok()) return console->Fail(revoked.status());
  const std::string file = absl::StrCat(options.dir, "/revoked.pem");
  std::vector<std::string> lines, words;
  std::string coordinator;
  for (const tls::Certificate& each : *revoked) {
    if (each.who.role == tls::Role::kCoordinator) {
      coordinator =
          "note: the command lines of people do not see the list, and daemons have it from the "
          "coordinator: if that key was stolen, make a new authority and new certificates\n";
    }
    lines.push_back(JsonOf(each, ""));
    words.push_back(absl::StrCat("revoked ", tls::Words(each.who), ", serial ", each.serial, "\n"));
  }
  if (json) {
    console->Out(absl::StrCat("{\"file\": ", JsonString(file), ", \"revoked\": [",
                              absl::StrJoin(lines, ",\n"), "]}\n"));
  } else {
    console->Out(absl::StrCat(absl::StrJoin(words, ""), "next: copy ", file,
                              " into the coordinator's --tls-dir, unless that lies below ",
                              options.dir, "; it needs no restart\n", coordinator));
  }
  return kExitOk;
}

void AddDir(CLI::App* command, CaOptions* options) {
  command->add_option("--dir", options->dir, "the authority's directory")
      ->type_name("DIR")
      ->capture_default_str();
}

// `prefix`: "of issue: " where the other actions' options stand beside them.
void AddIssueFlags(CLI::App* command, const std::string& prefix, CaOptions* options) {
  command
      ->add_option("--role", options->role,
                   absl::StrCat(prefix, absl::StrJoin(tls::RoleNames(), ", ")))
      ->type_name(absl::StrJoin(tls::RoleNames(), "|"));
  Whole(command->add_option("--days", options->days, prefix + "how long it holds"), 1,
        tls::kMaxDays)
      ->capture_default_str();
  command->add_option("--out", options->out, prefix + "where to [certificates/NAME in --dir]")
      ->type_name("FOLDER");
}

absl::Status CheckOptions(const CaOptions& options) {
  const std::vector<std::string> actions = {"init", "issue", "list", "revoke", "token"};
  const std::string& action = options.action;
  if (std::find(actions.begin(), actions.end(), action) == actions.end()) {
    const std::string near = DidYouMean(action, actions);
    return absl::InvalidArgumentError(absl::StrCat("isthmus ca ", action.substr(0, 60), ": ",
                                                   near.empty() ? "" : near + " ", "it does ",
                                                   absl::StrJoin(actions, ", ")));
  }
  if (action == "token") {
    if (!options.name.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError("isthmus ca token wants create, list or revoke ID");
  }
  const bool named = action == "issue" || action == "revoke";
  if (!options.id.empty())
    return absl::InvalidArgumentError(absl::StrCat("isthmus ca ", action, " takes no ID"));
  if (named == !options.name.empty() && (action == "issue") == !options.role.empty())
    return absl::OkStatus();
  return absl::InvalidArgumentError(
      action == "issue"    ? "isthmus ca issue wants NAME and --role ROLE"
      : action == "revoke" ? "isthmus ca revoke wants NAME or a serial, and no --role"
                           : absl::StrCat("isthmus ca ", action, " takes no NAME and no --role"));
}

}  // namespace

void AddCaFlags(CLI::App* command, CaOptions* options) {
  command->add_option("init|issue|list|revoke|token", options->action, "what to do")->required();
  command->add_option("NAME", options->name,
                      "of issue and revoke: of a node or a person; of token: create, list, revoke");
  command->add_option("ID", options->id, "of token revoke");
  AddDir(command, options);
  AddIssueFlags(command, "of issue: ", options);
  AddTokenFlags(command, "of token create: ", &options->token);
  command->footer(kCaFooter);
}

std::string CaActionHelp(const std::string& action) {
  const std::map<std::string, std::string> what = {
      {"init", "make the authority of a cluster"},
      {"issue", "make the certificate of a host or a person"},
      {"list", "all certificates that were made, and whether they hold"},
      {"revoke", "let a certificate in no more"},
      {"token", "tokens by which hosts join: isthmusd --join"}};
  if (what.count(action) == 0) return "";
  CaOptions options;
  bool json = false;
  CLI::App app(what.at(action), "isthmus ca " + action);
  if (action == "issue")
    app.add_option("NAME", options.name, "of a daemon's node, or of a person")->required();
  if (action == "revoke")
    app.add_option("NAME", options.name, "whose certificates, or the serial of one")->required();
  if (action == "token") {
    app.add_option("create|list|revoke", options.name, "what to do")->required();
    app.add_option("ID", options.id, "of revoke");
    AddTokenFlags(&app, "of create: ", &options.token);
  }
  app.add_flag("--json", json, "as JSON");
  AddDir(&app, &options);
  if (action == "issue") AddIssueFlags(&app, "", &options);
  app.footer(kCaFooter);
  return app.help();
}

int RunCa(const CaOptions& options, bool json, Console* console) {
  if (const absl::Status bad = CheckOptions(options); !bad.ok()) return console->Fail(bad);
  if (options.action == "init") return Init(options, json, console);
  if (options.action == "token") {
    return RunToken(options.name, options.id, options.role, options.dir, options.token, json,
                    console);
  }
  if (options.action == "issue") return Issue(options, json, console);
  return options.action == "list" ? List(options, json, console) : Revoke(options, json, console);
}

}  // namespace isthmus::cli
