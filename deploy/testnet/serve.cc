#include "deploy/testnet/serve.h"

#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "deploy/testnet/control.h"
#include "deploy/testnet/run_dir.h"

namespace isthmus::testnet {
namespace {

// COMMAND has this long to end after a signal was passed on to it, and what it left in the nodes
// half of it.
constexpr absl::Duration kCommandGrace = absl::Seconds(6);
constexpr absl::Duration kLeftoverGrace = absl::Seconds(3);
constexpr absl::Duration kStoppingPoll = absl::Milliseconds(20);
constexpr int kRoundRobinPriority = 10;

// Packets must not wait for a busy training process. Children start at normal priority.
const char* RaisePriority() {
  sched_param priority{};
  priority.sched_priority = kRoundRobinPriority;
  if (sched_setscheduler(0, SCHED_RR | SCHED_RESET_ON_FORK, &priority) == 0) return "rr";
  priority.sched_priority = 0;
  sched_setscheduler(0, SCHED_OTHER | SCHED_RESET_ON_FORK, &priority);
  return setpriority(PRIO_PROCESS, 0, -15) == 0 ? "nice" : "normal";
}

sigset_t OurSignals() {
  sigset_t set;
  sigemptyset(&set);
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGCHLD, SIGUSR1}) sigaddset(&set, signal);
  return set;
}

class Run {
 public:
  explicit Run(const ServeOptions& options) : options_(options) {}
  absl::StatusOr<int> Execute();

 private:
  absl::Status Start();
  absl::Status StartCommand(const WanInfo& info);
  absl::Status WriteStats() {
    return run_dir_->WriteFile("wan-stats.json", emulator_->StatsJson());
  }
  void OnSignals();
  void ReapCommand();
  std::string Answer(const std::string& request);
  absl::Status StopLeftovers();

  const ServeOptions& options_;
  UniqueFd signals_;  // outlives the emulator, which watches it
  std::optional<ControlServer> control_;
  std::optional<RunDir> run_dir_;
  std::unique_ptr<Emulator> emulator_;
  pid_t command_ = 0;
  std::optional<int> exit_code_;
  absl::Time kill_command_at_ = absl::InfiniteFuture();
};

absl::Status Run::Start() {
  ASSIGN_OR_RETURN(RunDir dir, RunDir::Take(options_.run_dir));
  run_dir_ = std::move(dir);
  ASSIGN_OR_RETURN(std::unique_ptr<Emulator> emulator,
                   Emulator::Create(options_.table, options_.emulator));
  emulator_ = std::move(emulator);
  ASSIGN_OR_RETURN(ControlServer control, ControlServer::Listen(run_dir_->path()));
  control_ = std::move(control);
  const sigset_t set = OurSignals();
  sigprocmask(SIG_BLOCK, &set, nullptr);
  signals_ = UniqueFd(signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC));
  if (!signals_.ok()) return absl::ErrnoToStatus(errno, "signalfd");
  RETURN_IF_ERROR(emulator_->Watch(signals_.get(), [this] { OnSignals(); }));
  RETURN_IF_ERROR(emulator_->Watch(control_->fd(), [this] {
    control_->Serve([this](const std::string& request) { return Answer(request); });
  }));
  WanInfo info = emulator_->Info();
  info.scheduling = RaisePriority();
  RETURN_IF_ERROR(run_dir_->WriteFile("wan.json", FormatWanInfo(info)));
  if (!options_.command.empty()) return StartCommand(info);
  std::printf("ready %s\n", run_dir_->path().c_str());
  std::fflush(stdout);
  return absl::OkStatus();
}

absl::Status Run::StartCommand(const WanInfo& info) {
  std::string nodes;
  for (const WanNode& node : info.nodes) {
    absl::StrAppend(&nodes, nodes.empty() ? "" : ",", node.name, "=", node.address);
  }
  std::vector<char*> arguments;
  for (const std::string& a : options_.command) arguments.push_back(const_cast<char*>(a.c_str()));
  arguments.push_back(nullptr);
  std::fflush(nullptr);
  const pid_t parent = getpid();
  command_ = fork();
  if (command_ < 0) return absl::ErrnoToStatus(errno, "fork");
  if (command_ > 0) return absl::OkStatus();
  prctl(PR_SET_PDEATHSIG,
        SIGTERM);  // where the emulator is killed, its command has no network left
  if (getppid() != parent) _exit(1);
  const sigset_t set = OurSignals();
  sigprocmask(SIG_UNBLOCK, &set, nullptr);
  setenv("ISTHMUS_WAN_DIR", run_dir_->path().c_str(), 1);
  setenv("ISTHMUS_WAN_NODES", nodes.c_str(), 1);
  execvp(arguments[0], arguments.data());
  const int error = errno;
  std::fprintf(stderr, "isthmus-wan: can't run %s: %s\n", arguments[0], std::strerror(error));
  _exit(error == ENOENT ? 127 : 126);
}

void Run::ReapCommand() {
  int status = 0;
  if (command_ <= 0 || waitpid(command_, &status, WNOHANG) != command_) return;
  command_ = 0;
  exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void Run::OnSignals() {
  signalfd_siginfo info;
  while (read(signals_.get(), &info, sizeof(info)) == static_cast<ssize_t>(sizeof(info))) {
    const int signal = static_cast<int>(info.ssi_signo);
    if (signal == SIGCHLD) {
      ReapCommand();
    } else if (signal == SIGUSR1) {
      absl::Status written = WriteStats();
      if (!written.ok()) std::fprintf(stderr, "isthmus-wan: %s\n", written.ToString().c_str());
    } else if (options_.command.empty()) {
      exit_code_ = 0;
    } else if (command_ > 0) {
      // A terminal sends its signals to the whole group: COMMAND has had that one.
      if (info.ssi_code <= 0) kill(command_, signal);
      if (kill_command_at_ == absl::InfiniteFuture())
        kill_command_at_ = SteadyNow() + kCommandGrace;
    }
  }
}

std::string Run::Answer(const std::string& request) {
  if (request == "stats") {
    absl::Status written = WriteStats();
    if (!written.ok()) return absl::StrCat("error: ", written.message());
    return absl::StrCat("ok ", run_dir_->File("wan-stats.json"));
  }
  absl::StatusOr<LinkChange> change = ParseLinkChange(request);
  if (!change.ok()) return absl::StrCat("error: ", change.status().message());
  absl::StatusOr<int> changed = emulator_->Change(*change);
  if (!changed.ok()) return absl::StrCat("error: ", changed.status().message());
  const std::optional<Side> side = SideOf(change->to);
  return absl::StrCat("ok ", *changed,
                      !side                ? " link"
                      : *side == Side::kUp ? " uplink"
                                           : " downlink",
                      *changed == 1 ? "" : "s");
}

// Processes that are still inside the nodes when the run ends: the network carries their goodbyes
// until they are gone.
absl::Status Run::StopLeftovers() {
  std::vector<int> inside = emulator_->ProcessesInside();
  for (int pid : inside) kill(pid, SIGTERM);
  const absl::Time deadline = SteadyNow() + kLeftoverGrace;
  while (!inside.empty() && SteadyNow() < deadline) {
    RETURN_IF_ERROR(emulator_->RunOnce(kStoppingPoll));
    inside = emulator_->ProcessesInside();
  }
  for (int pid : inside) {
    std::fprintf(stderr, "isthmus-wan: process %d is still in a node; killing it\n", pid);
    kill(pid, SIGKILL);
  }
  return absl::OkStatus();
}

absl::StatusOr<int> Run::Execute() {
  absl::Status status = Start();
  while (status.ok() && !exit_code_) {
    const bool stopping = kill_command_at_ != absl::InfiniteFuture();
    status = emulator_->RunOnce(stopping ? kStoppingPoll : absl::InfiniteDuration());
    if (stopping && command_ > 0 && SteadyNow() >= kill_command_at_) {
      std::fprintf(stderr, "isthmus-wan: the command did not end in time; killing it\n");
      kill(command_, SIGKILL);
      kill_command_at_ = absl::InfiniteFuture();
    }
  }
  if (command_ > 0) kill(command_, SIGKILL);  // only after an error of ours
  if (status.ok()) status = StopLeftovers();
  if (status.ok()) status = WriteStats();
  emulator_.reset();
  if (run_dir_) run_dir_->Remove();
  if (!status.ok()) return status;
  return *exit_code_;
}

}  // namespace

absl::StatusOr<int> Serve(const ServeOptions& options) { return Run(options).Execute(); }

}  // namespace isthmus::testnet
