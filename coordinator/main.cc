// isthmus-coordinator: see --help.
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <map>
#include <memory>
#include <sstream>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "base/end_signals.h"
#include "base/http.h"
#include "base/log.h"
#include "base/metrics.h"
#include "base/number_flag.h"
#include "base/rpc/channel.h"
#include "base/rpc/library_logs.h"
#include "base/rpc/listening.h"
#include "base/rpc/tls_identity.h"
#include "base/status.h"
#include "base/tls/expiry.h"
#include "coordinator/service/coordinator.h"
#include "coordinator/service/join_server.h"
#include "coordinator/service/services.h"

namespace isthmus::coordinator {
namespace {

constexpr int kExitRunTime = 1, kExitUsage = 2, kExitMachine = 3, kExitRefused = 5;
constexpr absl::Duration kPatience = absl::Seconds(3);  // for running calls at the end

struct Flags {
  std::string listen = "127.0.0.1:7070";
  std::string state_dir;
  std::string http = "0.0.0.0:7080";
  std::string log_level = "info";
  bool log_json = false;
  double lease_s = 15;
  std::string tls_dir;
  bool insecure = false;
  std::string ca;
  std::string join_listen;
};

int Complain(const absl::Status& status) {
  std::fprintf(stderr, "isthmus-coordinator: %s\n", std::string(status.message()).c_str());
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
      return kExitUsage;
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kResourceExhausted:
      return kExitMachine;
    case absl::StatusCode::kAlreadyExists:
      return kExitRefused;
    default:
      return kExitRunTime;
  }
}

// How others reach this process: its own name where it listens on every interface.
std::string OwnAddress(const std::string& listen, int port) {
  std::string host = HostOf(listen);
  char name[256] = {};
  if ((host == "0.0.0.0" || host == "[::]" || host == "*") &&
      ::gethostname(name, sizeof(name) - 1) == 0)
    host = name;
  return absl::StrCat(host, ":", port);
}

absl::StatusOr<std::unique_ptr<HttpServer>> ServePages(const std::string& address,
                                                       Coordinator* coordinator) {
  auto port = std::make_shared<int>(0);
  std::map<std::string, std::function<HttpReply()>> pages;
  pages["/metrics"] = [coordinator] {
    coordinator->gauges()->Update();
    return HttpReply{200, kMetricsContentType, RenderMetrics()};
  };
  pages["/healthz"] = [] { return HttpReply{200, "text/plain; charset=utf-8", "ok\n"}; };
  pages["/sd"] = [coordinator, address, port] {
    return HttpReply{200, "application/json",
                     coordinator->queries()->ServiceDiscovery(OwnAddress(address, *port))};
  };
  auto server = HttpServer::Start(address, std::move(pages));
  if (server.ok()) *port = (*server)->port();
  return server;
}

absl::Status CheckFlags(const Flags& flags) {
  RETURN_IF_ERROR(rpc::CheckAddress("--listen", flags.listen));
  if (!flags.http.empty()) RETURN_IF_ERROR(rpc::CheckAddress("--http", flags.http));
  if (flags.ca.empty() != flags.join_listen.empty()) {
    return absl::InvalidArgumentError(
        "--ca and --join-listen go together: hosts join at the one by what the other signs");
  }
  if (flags.join_listen.empty()) return absl::OkStatus();
  RETURN_IF_ERROR(rpc::CheckAddress("--join-listen", flags.join_listen));
  if (!flags.tls_dir.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "--join-listen: hosts join a coordinator that has a certificate itself; give --tls-dir");
}

// Null: hosts do not join by themselves.
absl::StatusOr<std::unique_ptr<JoinServer>> ServeJoins(const Flags& flags, int port,
                                                       Coordinator* coordinator) {
  if (flags.join_listen.empty()) return nullptr;
  JoinServerOptions options;
  options.listen = flags.join_listen;
  options.ca_dir = flags.ca;
  options.coordinator_port = port;
  options.tls = coordinator->tls();
  options.audit = coordinator->audit();
  ASSIGN_OR_RETURN(auto joins, JoinServer::Start(std::move(options)));
  LogWarning("--ca ", flags.ca,
             ": the key of the authority is on this host. Whoever takes over this host can let "
             "anybody into the cluster, and a backup of that directory is as good as the key");
  std::printf("joins on %s:%d\n", HostOf(flags.join_listen).c_str(), joins->port());
  return joins;
}

int Run(const Flags& flags, EndSignals* signals) {
  if (const absl::Status bad = CheckFlags(flags); !bad.ok()) return Complain(bad);
  const rpc::Secured secured = {!flags.tls_dir.empty(), flags.insecure};
  const absl::Status safe = rpc::CheckListening(flags.listen, secured, tls::Role::kCoordinator);
  if (!safe.ok()) return Complain(safe);
  CoordinatorOptions options;
  if (secured.tls) {
    auto identity = rpc::TlsIdentity::Load(flags.tls_dir, {tls::Role::kCoordinator});
    if (!identity.ok()) {
      Complain(Annotate(identity.status(), "--tls-dir"));
      return kExitUsage;  // trying again does not help: a supervisor must not
    }
    options.tls = *std::move(identity);
    LogInfo("TLS as ", tls::Words(options.tls->who()), ", until ",
            tls::DayOf(options.tls->folder().certificate.until));
    const std::string ends = tls::ExpiryWarning(options.tls->folder().certificate, tls::Today());
    if (!ends.empty()) LogWarning(ends);
  }
  options.insecure = flags.insecure && !rpc::IsLoopback(flags.listen);
  if (options.insecure)
    LogWarning("--insecure: who reaches ", flags.listen, " can command this cluster");
  options.state_dir = flags.state_dir;
  options.membership = MembershipOptions::ForLease(absl::Seconds(flags.lease_s));
  options.jobs.lease = options.membership.lease;
  auto coordinator = Coordinator::Open(std::move(options));
  if (!coordinator.ok()) return Complain(coordinator.status());
  auto server = Server::Start(flags.listen, coordinator->get());
  if (!server.ok()) return Complain(server.status());
  auto joins = ServeJoins(flags, (*server)->port(), coordinator->get());
  if (!joins.ok()) return Complain(joins.status());
  std::unique_ptr<HttpServer> pages;
  if (!flags.http.empty()) {
    auto started = ServePages(flags.http, coordinator->get());
    if (!started.ok()) return Complain(started.status());
    pages = *std::move(started);
  }
  std::printf(
      "listening on %s:%d http %s\n", HostOf(flags.listen).c_str(), (*server)->port(),
      pages == nullptr ? "off" : absl::StrCat(HostOf(flags.http), ":", pages->port()).c_str());
  std::fflush(stdout);
  int signal = 0;
  while (signal == 0) signal = signals->WaitFor(absl::InfiniteDuration());
  LogInfo("signal ", signal, ": ending; sessions of daemons go on without the coordinator");
  if (*joins != nullptr) (*joins)->Stop(kPatience);
  (*coordinator)->Stop();
  (*server)->Stop(kPatience);
  pages.reset();
  return 0;
}

void AddJoinFlags(CLI::App* app, Flags* flags) {
  app->add_option("--join-listen", flags->join_listen,
                  "HOST:PORT where hosts join with a token (isthmus ca token create) and daemons "
                  "renew their certificates; nothing else is served there")
      ->type_name("HOST:PORT");
  app->add_option("--ca", flags->ca,
                  "the authority's directory with its key, for --join-listen: whoever takes over "
                  "this host can then let anybody in")
      ->type_name("DIR");
}

}  // namespace
}  // namespace isthmus::coordinator

int main(int argc, char** argv) {
  isthmus::coordinator::Flags flags;
  CLI::App app{
      "The coordinator of Isthmus: knows the daemons, plans jobs, keeps checkpoints. Daemons train "
      "on without it for as long as it is away."};
  app.name("isthmus-coordinator");
  app.add_option("--listen", flags.listen, "HOST:PORT for daemons and the CLI")
      ->capture_default_str();
  app.add_option("--state-dir", flags.state_dir,
                 "directory of the database and the checkpoints; made if it is not there")
      ->required();
  app.add_option("--http", flags.http,
                 "HOST:PORT of /metrics, /healthz and /sd (Prometheus service discovery); '' "
                 "switches it off")
      ->capture_default_str();
  isthmus::Real(
      app.add_option(
          "--lease", flags.lease_s,
          "seconds without a heartbeat after which a daemon counts as lost and is in no new "
          "plan; heartbeats come five times as often. Raise it for connections that fail for "
          "longer"),
      5, 300)
      ->capture_default_str();
  app.add_option("--tls-dir", flags.tls_dir,
                 "folder of its certificate (isthmus ca issue NAME --role coordinator): everybody "
                 "needs one then")
      ->envname("ISTHMUS_TLS_DIR");
  app.add_flag("--insecure", flags.insecure,
               "listen off loopback without certificates: for a network that is private already")
      ->envname("ISTHMUS_INSECURE");
  isthmus::coordinator::AddJoinFlags(&app, &flags);
  app.add_option("--log-level", flags.log_level, "debug | info | warning | error")
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}))
      ->capture_default_str();
  app.add_flag("--log-json", flags.log_json, "log lines as JSON");
  app.set_version_flag("--version", std::string("isthmus-coordinator ") + ISTHMUS_VERSION);
  app.footer(
      "Exit codes: 0 ended by SIGINT, SIGTERM or SIGHUP; 1 failure; 2 bad usage; 3 the machine "
      "lacks "
      "something; 5 the state directory is in use.");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    std::ostringstream out, err;
    const int code = app.exit(e, out, err);
    std::fputs(out.str().c_str(), stdout);
    std::fputs(isthmus::rpc::NameTheVariable(err.str()).c_str(), stderr);
    return code == 0 ? 0 : 2;
  }
  isthmus::rpc::TypedWins(argc, argv, &flags.tls_dir, &flags.insecure);
  isthmus::EndSignals signals;  // before any thread
  std::signal(SIGPIPE, SIG_IGN);
  isthmus::LogOptions log;
  log.program = "isthmus-coordinator";
  log.json = flags.log_json;
  const std::map<std::string, isthmus::LogLevel> levels = {{"debug", isthmus::LogLevel::kDebug},
                                                           {"info", isthmus::LogLevel::kInfo},
                                                           {"warning", isthmus::LogLevel::kWarning},
                                                           {"error", isthmus::LogLevel::kError}};
  log.level = levels.at(flags.log_level);
  isthmus::InitLogging(log);
  isthmus::rpc::RouteLibraryLogs();
  isthmus::rpc::KeepGrpcUntilExit();
  return isthmus::coordinator::Run(flags, &signals);
}
