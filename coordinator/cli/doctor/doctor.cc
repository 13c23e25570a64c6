#include "coordinator/cli/doctor/doctor.h"

#include <cmath>
#include <cstdlib>
#include <map>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/process.h"
#include "coordinator/cli/exit_code.h"
#include "coordinator/cli/view/render.h"
#include "coordinator/core/card.h"

namespace isthmus::cli {
namespace {

// A thread with OpenBLAS reaches 30 GFLOP/s and more, the reference BLAS 3.
constexpr double kSlowFlopsPerThread = 4e9;
constexpr size_t kMostNamed = 5;

std::string NameOf(const NodeStatus& node) { return Printable(node.node().name()); }

std::string Some(const std::vector<std::string>& names) {
  std::vector<std::string> shown(names.begin(), names.begin() + std::min(names.size(), kMostNamed));
  const size_t more = names.size() - shown.size();
  return absl::StrCat(absl::StrJoin(shown, ", "),
                      more > 0 ? absl::StrCat(" and ", more, " more") : "");
}

Finding JudgeCompute(const NodeStatus& node) {
  const NodeInfo& info = node.node();
  Finding f{Finding::kOk, absl::StrCat("compute of ", NameOf(node)), "", ""};
  if (info.block_forward_s() <= 0 || info.block_flops() <= 0) {
    f.level = Finding::kWarn;
    f.text = "not measured yet";
    f.cure = "wait a few seconds after its start";
    return f;
  }
  const double rate = info.block_flops() / info.block_forward_s();
  f.text = absl::StrCat(std::round(rate / 1e8) / 10, " GFLOP/s with ", info.threads(),
                        " threads on ", Printable(coordinator::DeviceName(info.device())));
  if (info.device() != "cpu" || rate / std::max(1, info.threads()) >= kSlowFlopsPerThread) return f;
  f.level = Finding::kWarn;
  f.cure = absl::StrCat(
      "little for that many threads: install libopenblas0-pthread there, see that "
      "nothing else runs, and start it again (isthmusd --doctor measures it)");
  return f;
}

// How the others reach it: from their measurements.
Finding JudgeReach(
    const NodeStatus& node, const std::vector<const NodeStatus*>& alive,
    const std::map<std::pair<std::string, std::string>, const LinkMeasurement*>& links) {
  Finding f{Finding::kOk, absl::StrCat("way to ", NameOf(node)), "", ""};
  std::vector<std::string> good, bad, unknown;
  std::string why;
  for (const NodeStatus* other : alive) {
    if (other->node().id() == node.node().id()) continue;
    const auto it = links.find({other->node().id(), node.node().id()});
    if (it == links.end()) {
      unknown.push_back(NameOf(*other));
    } else if (!it->second->error().empty()) {
      bad.push_back(NameOf(*other));
      if (why.empty()) why = Printable(it->second->error());
    } else {
      good.push_back(NameOf(*other));
    }
  }
  const std::string address = Printable(node.node().address());
  if (!bad.empty()) {
    f.level = Finding::kFail;
    f.text = absl::StrCat(address, " can't be reached from ", Some(bad), ": ", why);
    f.cure = absl::StrCat(
        "open that port to the other daemons, or start it with --advertise HOST:PORT "
        "as they reach it");
  } else if (!unknown.empty()) {
    f.level = Finding::kWarn;
    f.text = absl::StrCat(address, " has not been measured from ", Some(unknown));
    f.cure =
        "wait: links are measured one after the other, a few seconds each, where hosts are idle";
  } else {
    f.text = good.empty() ? absl::StrCat(address, ", no other daemon to try it from")
                          : absl::StrCat(address, " is reached from all ", good.size(), " others");
  }
  return f;
}

std::vector<Finding> LookHere() {
  std::vector<Finding> findings = {LookAtFiles(), LookAtThreads(), LookAtClock()};
  const char* temporary = std::getenv("TMPDIR");
  findings.push_back(LookAtDisk(temporary != nullptr && *temporary != '\0' ? temporary : "/tmp"));
  findings.push_back(LookAtTun());
  std::vector<std::string> missing;
  for (const char* program : {"isthmusd", "isthmus-coordinator", "isthmus-wan", "isthmus-study",
                              "isthmus-generate", "isthmus-multilevel"}) {
    if (!FindProgram(program).ok()) missing.emplace_back(program);
  }
  Finding programs{Finding::kOk, "programs", "all are here", ""};
  if (!missing.empty()) {
    programs.level = Finding::kWarn;
    programs.text = absl::StrCat("not here: ", absl::StrJoin(missing, ", "));
    programs.cure = "where they are wanted, install them beside `isthmus` (deploy/README.md)";
  }
  findings.push_back(programs);
  return findings;
}

}  // namespace

std::vector<Finding> JudgeNodes(const ListNodesReply& nodes, const std::string& version) {
  std::vector<const NodeStatus*> alive;
  std::vector<std::string> lost, left, drained, others;
  for (const NodeStatus& node : nodes.nodes()) {
    if (!node.alive()) {
      (node.left() ? left : lost).push_back(NameOf(node));
      continue;
    }
    alive.push_back(&node);
    if (node.drained()) drained.push_back(NameOf(node));
    if (node.node().version() != version)
      others.push_back(absl::StrCat(NameOf(node), " ", Printable(node.node().version())));
  }
  std::map<std::pair<std::string, std::string>, const LinkMeasurement*> links;
  for (const LinkMeasurement& link : nodes.links()) links[{link.from_id(), link.to_id()}] = &link;

  Finding count{Finding::kOk, "daemons", absl::StrCat(alive.size(), " alive"), ""};
  if (!lost.empty()) absl::StrAppend(&count.text, "; lost: ", Some(lost));
  if (!left.empty()) absl::StrAppend(&count.text, "; left in good order: ", Some(left));
  if (!drained.empty()) absl::StrAppend(&count.text, "; drained, get no job: ", Some(drained));
  const size_t usable = alive.size() - drained.size();
  if (usable < 2 || !lost.empty()) {
    count.level = Finding::kWarn;
    count.cure = alive.empty()   ? "start isthmusd --coordinator HOST:7070 on the hosts that train"
                 : !lost.empty() ? "see the logs of those that are lost"
                 : !drained.empty()
                     ? "isthmus drain NODE --undo gives a drained one jobs again"
                     : "one host trains without the network; start isthmusd on others";
  }
  std::vector<Finding> findings = {count};
  if (!others.empty()) {
    findings.push_back({Finding::kWarn, "versions",
                        absl::StrCat("this is ", version, "; others: ", Some(others)),
                        "install the same version everywhere"});
  }
  for (const NodeStatus* node : alive) {
    findings.push_back(JudgeReach(*node, alive, links));
    findings.push_back(JudgeCompute(*node));
    for (const std::string& warning : node->warnings())
      findings.push_back(
          {Finding::kWarn, absl::StrCat("warning of ", NameOf(*node)), Printable(warning), ""});
  }
  return findings;
}

int RunDoctor(const ClientOptions& options, bool json, Console* console) {
  std::vector<Finding> findings = LookHere();
  const auto fail = [&](const absl::Status& status) {
    findings.push_back({Finding::kFail, "coordinator", Printable(status.message()),
                        "name it with --coordinator HOST:PORT, start it, and open its port 7070"});
    return kExitUnreachable;
  };
  int code = kExitOk;
  const absl::StatusOr<std::unique_ptr<Client>> client = Client::Connect(options);
  if (!client.ok()) {
    code = fail(client.status());
  } else {
    const absl::Time asked = SteadyNow();
    const int64_t asked_unix_ms = absl::ToUnixMillis(absl::Now());
    int64_t unix_ms = 0;
    bool insecure = false;
    const absl::StatusOr<ListNodesReply> nodes = (*client)->Nodes(&unix_ms, &insecure);
    const double round_trip_s = absl::ToDoubleSeconds(SteadyNow() - asked);
    if (!nodes.ok()) {
      code = fail(nodes.status());
    } else {
      findings.push_back(
          {Finding::kOk, "coordinator",
           absl::StrCat(options.address, " answers in ", FormatSeconds(round_trip_s)), ""});
      if (insecure) {
        findings.push_back({Finding::kWarn, "security",
                            "the coordinator runs with --insecure: whoever reaches its port can "
                            "command its daemons",
                            "issue certificates: isthmus ca --help"});
      }
      if (unix_ms != 0) {
        const double ahead_s = static_cast<double>(unix_ms - asked_unix_ms) / 1000;
        findings.push_back(JudgeSkew(ahead_s, round_trip_s));
      }
      for (Finding& finding : JudgeNodes(*nodes, ISTHMUS_VERSION))
        findings.push_back(std::move(finding));
    }
  }
  console->Out(json ? FindingsJson(findings) : RenderFindings(findings));
  return code != kExitOk                     ? code
         : Worst(findings) == Finding::kFail ? static_cast<int>(kExitFailure)
                                             : code;
}

}  // namespace isthmus::cli
