#include "coordinator/cli/testnet/testnet_run.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/process.h"
#include "base/status.h"
#include "coordinator/cli/exit_code.h"
#include "coordinator/cli/interrupt.h"
#include "coordinator/cli/job/job_yaml.h"
#include "coordinator/cli/view/render.h"

namespace isthmus::cli {
namespace {

namespace fs = std::filesystem;

constexpr absl::Duration kWanReady = absl::Seconds(30);
constexpr absl::Duration kProgramReady = absl::Seconds(90);
constexpr absl::Duration kGrace = absl::Seconds(10);
constexpr absl::Duration kDying = absl::Seconds(1);
constexpr absl::Duration kPoll = absl::Milliseconds(50);
constexpr size_t kTailLines = 12;

std::string ReadText(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

std::string Tail(const std::string& path) {
  std::vector<std::string> lines = absl::StrSplit(ReadText(path), '\n', absl::SkipEmpty());
  if (lines.size() > kTailLines) lines.erase(lines.begin(), lines.end() - kTailLines);
  for (std::string& line : lines) line = absl::StrCat("    ", Printable(line));
  return absl::StrJoin(lines, "\n");
}

absl::Status CheckMachine() {
  if (geteuid() != 0) {
    return absl::ResourceExhaustedError(
        "testnet makes network namespaces and needs root: run it with sudo");
  }
  const int fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC);
  if (fd < 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("testnet needs /dev/net/tun (", std::strerror(errno),
                     "): load the kernel module `tun`, or start the container with --device "
                     "/dev/net/tun --cap-add NET_ADMIN"));
  }
  close(fd);
  return absl::OkStatus();
}

absl::Status CheckData(const TestnetOptions& options, const JobSpec& job) {
  const fs::path path = fs::path(options.data_dir) / job.data().path();
  std::error_code error;
  if (fs::exists(path, error)) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat(
      "the job's data.path is not there: ", path.string(),
      ". Name its folder with --data-dir; deploy/fetch-data.sh makes the texts of the examples"));
}

absl::Status CheckDaemons(size_t daemons, const JobSpec& job) {
  const int stages = std::max<int>(job.strategy().stages(), job.strategy().layers_per_stage_size());
  if (static_cast<size_t>(stages) <= daemons) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the job's strategy.stages is ", stages, ", and the network has ", daemons,
                   " daemons: raise --nodes, or lower strategy.stages (0: as many as pay)"));
}

absl::StatusOr<TestnetPrograms> FindPrograms() {
  TestnetPrograms programs;
  ASSIGN_OR_RETURN(programs.wan, FindProgram("isthmus-wan"));
  ASSIGN_OR_RETURN(programs.coordinator, FindProgram("isthmus-coordinator"));
  ASSIGN_OR_RETURN(programs.daemon, FindProgram("isthmusd"));
  ASSIGN_OR_RETURN(programs.cli, FindProgram("isthmus"));
  return programs;
}

absl::StatusOr<TestnetLinks> MakeLinks(const TestnetOptions& options,
                                       const TestnetPrograms& programs) {
  if (options.links.empty()) return UniformLinks(options);
  const std::vector<std::string> show = {programs.wan, "show", options.links};
  const absl::StatusOr<std::string> table = RunAndCapture(show, absl::Seconds(10));
  if (options.nodes == 0 || (table.ok() && TableNamesHub(*table))) {
    RETURN_IF_ERROR(table.status());
    return LinksOfTable(*table, options.nodes);
  }
  ASSIGN_OR_RETURN(const std::string sized, RunAndCapture({programs.wan, "show", options.links,
                                                           "--nodes", absl::StrCat(options.nodes)},
                                                          absl::Seconds(10)));
  return LinksOfTable(sized, options.nodes);
}

class Testnet {
 public:
  Testnet(const TestnetOptions& options, Console* console) : options_(options), console_(console) {}

  // The exit code of the submitted job.
  absl::StatusOr<int> Run() {
    unsetenv("ISTHMUS_TLS_DIR");  // all programs run with --insecure
    RETURN_IF_ERROR(Prepare());
    RETURN_IF_ERROR(StartNetwork());
    RETURN_IF_ERROR(StartPrograms());
    const int count = static_cast<int>(daemons_.size());
    const TestnetCommand nodes =
        CliCommand(programs_, run_dir_, hub_, WaitArguments(options_, count));
    Say(absl::StrCat("waiting until ", count, " daemons have joined and measured the links"));
    ASSIGN_OR_RETURN(const int joined, RunChild(nodes, run_dir_ + "/nodes.json"));
    if (joined != 0) return joined;
    Say(absl::StrCat(daemons_.size(), " daemons joined and measured their links"));
    setenv(kInTestnet, "1", 1);
    submitted_ = true;
    ASSIGN_OR_RETURN(
        const int code,
        RunChild(CliCommand(programs_, run_dir_, hub_, SubmitArguments(options_)), ""));
    if (options_.keep && !interrupt_.interrupted()) AwaitSignal();
    return code;
  }

  // Everything down, whatever is up. The daemons first: their last checkpoint goes to the
  // coordinator. The network last.
  void TakeDown() {
    End([](const std::string& name) { return name != kWanName && name != kCoordinatorName; });
    End([](const std::string& name) { return name != kWanName; });
    End([](const std::string&) { return true; });
    children_.clear();
  }

  // After TakeDown: what became of a job that was cut off.
  void TellOfJob() {
    if (!submitted_) return;
    Say(CutOffWords(absl::StrCat(ShownRunDir(), "/coordinator"),
                    NewestCheckpoint(run_dir_ + "/coordinator")));
  }

  // The directory's end: deleted after a success where it is our own temporary one.
  void LeaveRunDir(bool failed) {
    if (run_dir_.empty()) return;
    if (failed) {
      console_->Err(absl::StrCat("isthmus: the logs are in ", ShownRunDir(),
                                 " (coordinator.log, wan.log and one NAME.log a daemon)\n"));
    } else if (temporary_ && !options_.keep) {
      std::error_code ignored;
      fs::remove_all(run_dir_, ignored);
    }
  }

  bool interrupted() const { return interrupt_.interrupted(); }

 private:
  struct Child {
    std::string name;
    std::string log;
    Process process;
  };

  void End(const std::function<bool(const std::string&)>& which) {
    for (Child& child : children_) {
      if (which(child.name)) child.process.Signal(SIGTERM);
    }
    const absl::Time deadline = SteadyNow() + kGrace;
    for (Child& child : children_) {
      if (!which(child.name)) continue;
      child.process.Wait(std::max(deadline - SteadyNow(), absl::ZeroDuration()));
      if (!child.process.Poll().has_value()) {
        console_->Err(absl::StrCat("isthmus: ", child.name, " did not end within ",
                                   absl::FormatDuration(kGrace), " of SIGTERM; killing it\n"));
      }
      child.process.Stop(absl::ZeroDuration());
    }
  }

  void Say(const std::string& text) { console_->Err(absl::StrCat("testnet: ", text, "\n")); }

  // As the user named it.
  std::string ShownRunDir() const { return temporary_ ? run_dir_ : options_.run_dir; }

  absl::Status Prepare() {
    RETURN_IF_ERROR(CheckTestnetOptions(options_));
    ASSIGN_OR_RETURN(const JobSpec job, ReadJobFile(options_.job_file));
    RETURN_IF_ERROR(CheckMachine());
    RETURN_IF_ERROR(CheckData(options_, job));
    options_.data_dir = fs::absolute(options_.data_dir).lexically_normal().string();
    ASSIGN_OR_RETURN(programs_, FindPrograms());
    ASSIGN_OR_RETURN(links_, MakeLinks(options_, programs_));
    RETURN_IF_ERROR(CheckDaemons(links_.daemons.size(), job));
    RETURN_IF_ERROR(MakeRunDir());
    std::ofstream out(run_dir_ + "/links.csv");
    out << links_.csv;
    out.close();
    return out ? absl::OkStatus()
               : absl::InternalError(absl::StrCat("can't write ", run_dir_, "/links.csv"));
  }

  absl::Status MakeRunDir() {
    if (options_.run_dir.empty()) {
      const char* base = std::getenv("TMPDIR");
      std::string name =
          absl::StrCat(base != nullptr && *base != '\0' ? base : "/tmp", "/isthmus-testnet.XXXXXX");
      if (mkdtemp(name.data()) == nullptr)
        return absl::InternalError(absl::StrCat("can't make ", name, ": ", std::strerror(errno)));
      run_dir_ = name;
      temporary_ = true;
      return absl::OkStatus();
    }
    std::error_code error;
    const fs::path path = fs::absolute(options_.run_dir).lexically_normal();
    if (fs::exists(path / "coordinator", error)) {
      return absl::InvalidArgumentError(absl::StrCat(
          options_.run_dir, " holds an earlier run: delete it or name another --run-dir"));
    }
    fs::create_directories(path, error);
    if (error)
      return absl::InternalError(absl::StrCat("can't make ", path.string(), ": ", error.message()));
    run_dir_ = path.string();
    return absl::OkStatus();
  }

  absl::Status StartNetwork() {
    RETURN_IF_ERROR(StartChild(WanCommand(options_, programs_, run_dir_)));
    RETURN_IF_ERROR(AwaitLine("ready ", kWanReady));
    ASSIGN_OR_RETURN(const std::vector<TestnetNode> nodes,
                     ParseWanNodes(ReadText(run_dir_ + "/wan/wan.json")));
    for (const TestnetNode& node : nodes) {
      node.name == kHub ? hub_ = node : daemons_.emplace_back(node);
      if (node.name != kHub) daemons_.back().uplink = UplinkOf(links_, node.name);
    }
    if (hub_.name.empty() || daemons_.size() != links_.daemons.size()) {
      return absl::InternalError("isthmus-wan made other nodes than its link table names");
    }
    Say(absl::StrCat("network of ", daemons_.size(), " nodes and a hub is up, run directory ",
                     ShownRunDir()));
    return absl::OkStatus();
  }

  absl::Status StartPrograms() {
    RETURN_IF_ERROR(StartChild(CoordinatorCommand(options_, programs_, run_dir_, hub_)));
    RETURN_IF_ERROR(AwaitLine("listening on ", kProgramReady));
    for (const TestnetNode& node : daemons_)
      RETURN_IF_ERROR(StartChild(DaemonCommand(options_, programs_, run_dir_, hub_, node)));
    return absl::OkStatus();
  }

  absl::Status StartChild(const TestnetCommand& command) {
    ProcessOptions options;
    options.argv = command.argv;
    options.output_file = absl::StrCat(run_dir_, "/", command.name, ".log");
    ASSIGN_OR_RETURN(Process process, Process::Start(options));
    children_.push_back({command.name, options.output_file, std::move(process)});
    return absl::OkStatus();
  }

  // Until the newest child says so in its log.
  absl::Status AwaitLine(const std::string& start, absl::Duration timeout) {
    const absl::Time deadline = SteadyNow() + timeout;
    const std::string log = children_.back().log;
    while (true) {
      const std::string text = ReadText(log);
      if (absl::StartsWith(text, start) || absl::StrContains(text, "\n" + start))
        return absl::OkStatus();
      RETURN_IF_ERROR(CheckChildren());
      if (SteadyNow() > deadline) {
        return absl::DeadlineExceededError(
            absl::StrCat(children_.back().name, " is not ready after ",
                         absl::FormatDuration(timeout), ":\n", Tail(log)));
      }
      if (interrupt_.WaitFor(kPoll)) return absl::CancelledError("interrupted");
    }
  }

  // An error if one of the programs that should run has ended.
  absl::Status CheckChildren() {
    for (Child& child : children_) {
      const std::optional<int> code = child.process.Poll();
      if (!code.has_value()) continue;
      const std::string what =
          absl::StrCat(child.name, " ended with code ", *code, ":\n", Tail(child.log));
      return *code == kExitMachine ? absl::ResourceExhaustedError(what) : absl::InternalError(what);
    }
    return absl::OkStatus();
  }

  // A command line of ours on the hub, with our terminal. Its exit code. Before the job runs, a
  // program that ends is an error; later the coordinator tells what became of the job.
  absl::StatusOr<int> RunChild(const TestnetCommand& command, const std::string& stdout_file) {
    ProcessOptions options;
    options.argv = command.argv;
    options.stdout_file = stdout_file;
    options.own_group = false;  // Ctrl-C and the terminal are its own too
    ASSIGN_OR_RETURN(Process process, Process::Start(options));
    bool asked = false;
    while (!process.Poll().has_value()) {
      if (!stdout_file.empty()) RETURN_IF_ERROR(CheckChildren());
      if (!interrupt_.WaitFor(kPoll)) continue;
      if (!asked) process.Signal(SIGTERM);
      asked = true;
      if (!process.Wait(kGrace).has_value()) process.Stop(absl::ZeroDuration());
    }
    const int code = *process.Poll();
    if (code != kExitOk) NameTheDead();
    return code;
  }

  // After a failure: the program that ended, if one did. Its links break a moment before it is
  // gone.
  void NameTheDead() {
    for (absl::Duration waited; waited < kDying && !interrupt_.interrupted(); waited += kPoll) {
      const absl::Status status = CheckChildren();
      if (!status.ok()) {
        console_->Err(absl::StrCat("isthmus: ", Printable(status.message()), "\n"));
        return;
      }
      interrupt_.WaitFor(kPoll);
    }
  }

  void AwaitSignal() {
    Say("still running, until Ctrl-C. Commands on the network:");
    console_->Err(absl::StrCat(
        "  ", absl::StrJoin(CliCommand(programs_, run_dir_, hub_, {"nodes"}).argv, " "), "\n"));
    while (!interrupt_.WaitFor(absl::Seconds(1))) {
    }
  }

  TestnetOptions options_;
  Console* const console_;
  Interrupt interrupt_;
  TestnetPrograms programs_;
  TestnetLinks links_;
  std::string run_dir_;
  bool temporary_ = false;
  bool submitted_ = false;
  TestnetNode hub_;
  std::vector<TestnetNode> daemons_;
  std::vector<Child> children_;
};

}  // namespace

int RunTestnet(const TestnetOptions& options, Console* console) {
  Testnet testnet(options, console);
  const absl::StatusOr<int> code = testnet.Run();
  testnet.TakeDown();
  if (testnet.interrupted()) {
    if (!code.ok() || *code == kExitInterrupted) testnet.TellOfJob();
    testnet.LeaveRunDir(/*failed=*/!options.keep);
    return options.keep && code.ok() && *code != kExitInterrupted ? *code : kExitInterrupted;
  }
  if (!code.ok()) {
    const int exit_code = console->Fail(code.status());
    testnet.LeaveRunDir(true);
    return exit_code;
  }
  testnet.LeaveRunDir(*code != kExitOk);
  return *code;
}

}  // namespace isthmus::cli
