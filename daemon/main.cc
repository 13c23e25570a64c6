// isthmusd: the program of a host that computes.
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/end_signals.h"
#include "base/log.h"
#include "base/machine_check.h"
#include "base/number_flag.h"
#include "base/rpc/library_logs.h"
#include "base/rpc/listening.h"
#include "base/status.h"
#include "base/tls/expiry.h"
#include "daemon/daemon.h"
#include "daemon/doctor.h"
#include "daemon/flags.h"
#include "daemon/join.h"
#include "daemon/renewal.h"
#include "daemon/resources.h"
#include "worker/data/corpus.h"
#include "worker/engine/device_lane.h"
#include "worker/engine/device_memory.h"
#include "worker/engine/gpt2_stage.h"
#include "worker/engine/gpus.h"
#include "worker/engine/reference_block.h"
#include "worker/session.h"

namespace isthmus::daemon {
namespace {

// Exit codes of all programs of the project.
enum Exit { kOk = 0, kFailed = 1, kUsage = 2, kMachine = 3, kRefused = 5 };

constexpr absl::Duration kPatience =
    absl::Seconds(1);  // for a session to end at once, when its grace is over
constexpr absl::Duration kLookForRefusal = absl::Milliseconds(200);
constexpr absl::Duration kLookForEnd = absl::Milliseconds(50);
constexpr absl::Duration kMeasureAgain = absl::Milliseconds(300);  // other daemons wait meanwhile
constexpr absl::Duration kDoctorPatience = absl::Seconds(5);
constexpr int64_t kFewFiles = 1024;

struct Flags {
  DaemonOptions daemon;
  ByteFlags bytes;
  std::string uplink;
  JoinFlags join;
  bool coordinator_typed = false;
  double grace_s = 6;  // with kPatience and a goodbye, less than the 10 s that containers have
  std::string log_level = "info";
  bool log_json = false;
  bool doctor = false;
};

int Fail(const absl::Status& status, Exit code) {
  LogError(status.message());
  return code;
}

CLI::Validator NotEmpty(const std::string& must_be) {
  return CLI::Validator(
      [must_be](const std::string& text) { return text.empty() ? "must be " + must_be : ""; }, "");
}

void AddTlsFlags(CLI::App* app, Flags* flags) {
  DaemonOptions& o = flags->daemon;
  app->add_option("--tls-dir", o.tls_dir,
                  "folder of its certificate (isthmus ca issue NAME --role worker)")
      ->envname("ISTHMUS_TLS_DIR");
  app->add_option("--join", flags->join.token,
                  "join a cluster by a token (isthmus ca token create): the certificate then lies "
                  "in tls of --state-dir, and is taken from there at the next start; '-' reads the "
                  "token from the standard input, which keeps it out of the shell's history")
      ->type_name("TOKEN")
      ->check(NotEmpty("a token"));
  app->add_option("--join-file", flags->join.file,
                  "the same with the token in a file: other users of this host can't read it there "
                  "as they can in the list of processes")
      ->type_name("FILE")
      ->check(NotEmpty("a file"));
  app->add_flag("--insecure", o.insecure,
                "off loopback without certificates: for a network that is private already")
      ->envname("ISTHMUS_INSECURE");
}

void AddFlags(CLI::App* app, Flags* flags) {
  DaemonOptions& o = flags->daemon;
  app->add_option("--coordinator", o.coordinator,
                  "HOST:PORT of isthmus-coordinator; it may start later")
      ->capture_default_str();
  app->add_option("--listen", o.listen, "HOST:PORT for other daemons; port 0 picks one")
      ->capture_default_str();
  app->add_option(
      "--advertise", o.advertise,
      "HOST:PORT that other daemons dial [this host's address on the way to the coordinator]");
  app->add_option("--http", o.http, "HOST:PORT of /metrics and /healthz; '' for none")
      ->capture_default_str();
  app->add_option("--name", o.name, "what people call this daemon [host name]");
  app->add_option("--state-dir", o.state_dir,
                  "identity, spill files and codec states; one daemon each")
      ->required();
  app->add_option("--data-dir", o.data_dir, "where the jobs' data paths start")->required();
  Whole(app->add_option("--threads", o.threads,
                        "compute threads, at most this host's processors [all it may use]"),
        1, Processors());
  app->add_option("--memory", flags->bytes.memory,
                  "bytes it may use, for example 4GiB [80 % of the host's or the container's]")
      ->check(NotEmpty("bytes, for example 4GiB"));
  app->add_option("--disk", flags->bytes.disk,
                  "bytes it may use under --state-dir [90 % of what is free]")
      ->check(NotEmpty("bytes, for example 4GiB"));
  app->add_option(
         "--uplink", flags->uplink,
         "what this host can send in all, for example 20Mbit: what the next step waits for "
         "then goes before gradients and checkpoints [they share it]")
      ->type_name("RATE")
      ->check(NotEmpty("a rate, for example 20Mbit"));
  Real(app->add_option("--grace", flags->grace_s,
                       "seconds after SIGTERM for a session to finish its step and store its "
                       "checkpoint; whoever ends this program has to wait 3 s longer"),
       0, 86400)
      ->capture_default_str();
  app->add_option("--device", o.device, "cpu, cuda or cuda:N")->capture_default_str();
  AddTlsFlags(app, flags);
  app->add_flag("--use-proxy", o.dialling.use_proxy,
                "honour http_proxy and its kin, which are ignored otherwise");
  app->add_option("--log-level", flags->log_level, "debug, info, warning or error")
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}))
      ->capture_default_str();
  app->add_flag("--log-json", flags->log_json, "log lines as JSON");
  app->add_flag("--doctor", flags->doctor,
                "look whether a daemon with these flags could train here, say so, and end");
  app->set_version_flag("--version", std::string("isthmusd ") + ISTHMUS_VERSION);
  app->footer(
      "Examples:\n  isthmusd --join-file token --listen 0.0.0.0:7071 --advertise 10.0.0.2:7071 "
      "--state-dir /var/lib/isthmusd --data-dir /srv/data\n  isthmusd --tls-dir ~/tls "
      "--coordinator 10.0.0.1:7070 --listen 0.0.0.0:7071 "
      "--advertise 10.0.0.2:7071 --state-dir /var/lib/isthmusd --data-dir /srv/data\n"
      "Exit codes: 0 ended by a signal, 1 failure, 2 bad usage, 3 the machine lacks something, 5 "
      "refused (state directory in use, or by the coordinator).");
}

LogLevel LevelOf(const std::string& text) {
  if (text == "debug") return LogLevel::kDebug;
  if (text == "warning") return LogLevel::kWarning;
  return text == "error" ? LogLevel::kError : LogLevel::kInfo;
}

ComputeTimes TimesOf(const engine::ReferenceBlock& block) {
  ComputeTimes times;
  times.set_block_forward_s(block.forward_s);
  times.set_block_backward_s(block.backward_s);
  times.set_block_flops(block.forward_flops);
  return times;
}

std::string SignalName(int signal) { return absl::StrCat("SIG", sigabbrev_np(signal)); }

// A session has `grace_s` to end in good order; a second signal ends it now.
void EndInOrder(Daemon* daemon, const std::string& signal, double grace_s, EndSignals* signals) {
  LogInfo("ending on ", signal, daemon->idle() ? "" : ": the session finishes its step first");
  daemon->Leave(absl::Seconds(grace_s), signal);
  const absl::Time until = SteadyNow() + absl::Seconds(grace_s);
  while (!daemon->idle() && SteadyNow() < until) {
    if (signals->WaitFor(kLookForEnd) != 0) break;
  }
  if (!daemon->idle()) LogWarning("the session has not ended within its grace; it is ended now");
}

int Serve(Daemon* daemon, const engine::EngineOptions& engine, double grace_s,
          EndSignals* signals) {
  std::printf("listening on %s http %s\n", daemon->listening().c_str(),
              daemon->http_address().c_str());
  std::fflush(stdout);
  const auto block = engine::MeasureReferenceBlock(engine, absl::Seconds(1),
                                                   [signals] { return signals->pending(); });
  if (absl::IsCancelled(block.status())) {
    LogInfo("ending on ", SignalName(signals->WaitFor(absl::Seconds(1))));
    return kOk;
  }
  if (!block.ok()) return Fail(block.status(), kMachine);
  if (!block->warning.empty()) LogWarning(block->warning);
  LogInfo("reference block: forward ", block->forward_s, " s, backward ", block->backward_s,
          " s on ", engine.device, " with ", engine.threads, " threads");
  daemon->Join(TimesOf(*block));
  int signal = 0;
  while ((signal = signals->WaitFor(kLookForRefusal)) == 0) {
    if (!daemon->refused().ok()) return Fail(daemon->refused(), kRefused);
  }
  EndInOrder(daemon, SignalName(signal), grace_s, signals);
  return kOk;
}

// What computes, in the log and for the coordinator.
void TellOfGpus(const engine::EngineOptions& engine, DaemonOptions* options) {
  const std::vector<engine::Gpu> gpus = engine::GpusOfHost();
  const engine::Build build = engine::BuildOfEngine();
  LogInfo(engine::ComputeWords(engine, gpus, build));
  const std::string warning = engine::GpuWarning(engine, gpus, build);
  if (!warning.empty()) LogWarning(warning);
  const engine::Gpu gpu = engine::GpuOf(engine.device, gpus);
  options->device_model = gpu.model;
  options->device_memory_bytes = gpu.memory_bytes;
  options->device_uuid = gpu.uuid;
}

// Prints what stands in the way. kMachine where something does.
int RunDoctor(const DaemonOptions& options) {
  std::vector<Finding> findings = Examine(options, kDoctorPatience);
  const auto block = engine::MeasureReferenceBlock({options.device, options.threads});
  findings.push_back(
      block.ok()
          ? JudgeBlas(block->product_flops_per_s, options.threads, options.device, block->warning)
          : Finding{Finding::kFail, "matrix products", std::string(block.status().message()),
                    "name another --device"});
  std::printf("%s", RenderFindings(findings).c_str());
  return Worst(findings) == Finding::kFail ? kMachine : kOk;
}

// Help that was asked for, or what is wrong with the command line.
int Explain(const CLI::App& app, const CLI::ParseError& error) {
  std::ostringstream out, err;
  const int code = app.exit(error, out, err);
  std::fputs(out.str().c_str(), stdout);
  std::fputs(WithoutTokens(rpc::NameTheVariable(err.str())).c_str(), stderr);
  return code == 0 ? kOk : kUsage;
}

// What a daemon computes with.
void SetEngine(const engine::EngineOptions& engine, DaemonOptions* options) {
  options->make_session = worker::MakeSession;
  options->make_stage = [engine](const Plan& plan, int rank) {
    return engine::MakeGpt2Stage(plan, rank, engine);
  };
  options->make_lane = [engine] { return engine::MakeDeviceLane(engine); };
  options->release_memory = engine::ReleaseDeviceMemory;
  options->open_corpus = worker::OpenCorpus;
  options->measure_compute =
      [engine](const std::function<bool()>& cancelled) -> absl::StatusOr<ComputeTimes> {
    ASSIGN_OR_RETURN(const engine::ReferenceBlock block,
                     engine::MeasureReferenceBlock(engine, kMeasureAgain, cancelled));
    return TimesOf(block);
  };
}

// Before anything is opened. Which of the flags are typed: their defaults give way to what joining
// tells.
absl::Status CheckJoinFlags(bool coordinator_typed, bool tls_typed, Flags* flags) {
  DaemonOptions& o = flags->daemon;
  if (!flags->join.given()) return absl::OkStatus();
  const auto bad = [](absl::string_view words) { return absl::InvalidArgumentError(words); };
  if (!flags->join.token.empty() && !flags->join.file.empty())
    return bad("--join and --join-file exclude each other");
  if (!tls_typed) o.tls_dir.clear();  // the environment's, as that of the systemd unit
  if (!o.tls_dir.empty())
    return bad("--join and --tls-dir exclude each other: who joins gets a folder of its own");
  if (o.insecure) return bad("--join and --insecure exclude each other");
  if (flags->doctor) {
    return bad(absl::StrCat("--doctor joins no cluster: join first, then --doctor --tls-dir ",
                            JoinedDir(o.state_dir)));
  }
  flags->coordinator_typed = coordinator_typed;
  o.tls_dir = JoinedDir(o.state_dir);
  return absl::OkStatus();
}

// Gets a certificate, or finds the one of a run before.
absl::Status JoinFirst(EndSignals* signals, Flags* flags) {
  DaemonOptions& o = flags->daemon;
  JoinOptions options{flags->join, o.state_dir, o.dialling.use_proxy};
  options.stop = [signals] { return signals->pending(); };
  ASSIGN_OR_RETURN(const Joined joined, JoinCluster(options));
  if (!flags->coordinator_typed) o.coordinator = joined.coordinator;
  RETURN_IF_ERROR(CheckFlags(o));
  return ApplyTlsDir(&o);
}

// Warns of a certificate that ends soon; one that came by joining is renewed while the result
// lives.
std::unique_ptr<Renewal> KeepCertificate(const DaemonOptions& options) {
  if (options.tls == nullptr) return nullptr;
  const std::string ends = tls::ExpiryWarning(options.tls->folder().certificate, tls::Today());
  if (!ends.empty()) LogWarning(ends);
  const absl::StatusOr<Joined> joined = ReadJoined(options.tls_dir);
  if (joined.ok()) {
    return std::make_unique<Renewal>(
        RenewalOptions{options.tls_dir, joined->join, options.dialling.use_proxy});
  }
  if (!absl::IsNotFound(joined.status())) LogWarning(joined.status().message());
  return nullptr;
}

Exit JoinExit(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
      return kUsage;
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kAlreadyExists:
      return kRefused;
    default:
      return kFailed;
  }
}

int EndOfJoin(const absl::Status& status) {
  if (!absl::IsCancelled(status)) return Fail(status, JoinExit(status));
  LogInfo("ending on a signal: ", status.message());
  return kOk;
}

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app(
      "isthmusd: trains its stage of a model, together with other daemons, as the coordinator "
      "plans.",
      "isthmusd");
  AddFlags(&app, &flags);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return Explain(app, error);
  }
  HideToken(argc, argv);
  rpc::TypedWins(argc, argv, &flags.daemon.tls_dir, &flags.daemon.insecure);
  ReadTokenLine(flags.daemon.state_dir, &flags.join);
  EndSignals signals;  // before other threads start
  std::signal(SIGPIPE, SIG_IGN);
  InitLogging(LogOptions{"isthmusd", LevelOf(flags.log_level), flags.log_json});
  rpc::RouteLibraryLogs();
  rpc::KeepGrpcUntilExit();
  DaemonOptions& options = flags.daemon;
  options.version = ISTHMUS_VERSION;
  if (options.threads == 0) options.threads = UsableThreads();
  absl::Status usable = ApplyByteFlags(flags.bytes, &options);
  if (usable.ok()) usable = ApplyUplink(flags.uplink, &options);
  if (usable.ok())
    usable = CheckJoinFlags(app.count("--coordinator") > 0, Typed(argc, argv, "--tls-dir"), &flags);
  if (usable.ok()) usable = CheckFlags(options);
  if (usable.ok() && !flags.join.given()) usable = ApplyTlsDir(&options);
  if (usable.ok() && !flags.doctor) usable = CheckDataDir(options.data_dir);
  if (!usable.ok()) return Fail(usable, kUsage);
  if (flags.doctor) return RunDoctor(options);
  if (const int64_t files = RaiseFileLimit(); files < kFewFiles) {
    LogWarning("only ", files, " open files are allowed (ulimit -n); ", kFewFiles,
               " or more are better");
  }
  auto state = StateDir::Open(options.state_dir);
  if (!state.ok())
    return Fail(state.status(), absl::IsFailedPrecondition(state.status()) ? kRefused : kMachine);
  if (flags.join.given()) {
    if (const absl::Status joined = JoinFirst(&signals, &flags); !joined.ok())
      return EndOfJoin(joined);
  }

  const std::unique_ptr<Renewal> renewal = KeepCertificate(options);
  const engine::EngineOptions engine{options.device, options.threads};
  if (const absl::Status device = engine::MakeDeviceLane(engine).status(); !device.ok())
    return Fail(device, kMachine);  // before anybody is told where it listens
  TellOfGpus(engine, &options);
  SetEngine(engine, &options);
  Daemon daemon(std::move(options), *std::move(state));
  if (const absl::Status status = daemon.Listen(); !status.ok()) {
    daemon.Shutdown(absl::Seconds(1));
    return Fail(status, kFailed);
  }
  const int code = Serve(&daemon, engine, flags.grace_s, &signals);
  if (!daemon.Shutdown(kPatience)) {
    LogWarning("a computation did not end in time; the process is ended hard");
    std::fflush(nullptr);
    _exit(code);
  }
  return code;
}

}  // namespace
}  // namespace isthmus::daemon

int main(int argc, char** argv) { return isthmus::daemon::Main(argc, argv); }
