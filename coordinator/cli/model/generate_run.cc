#include "coordinator/cli/model/generate_run.h"

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/machine_check.h"
#include "base/number_flag.h"
#include "base/process.h"
#include "base/status.h"
#include "coordinator/cli/commands.h"
#include "coordinator/cli/exit_code.h"
#include "coordinator/cli/interrupt.h"
#include "proto/model/sampling_limits.h"

namespace isthmus::cli {
namespace {

namespace fs = std::filesystem;

constexpr absl::Duration kPoll = absl::Milliseconds(20);
constexpr absl::Duration kGrace = absl::Seconds(2);

// Of our own below TMPDIR; goes with this object.
class ExportDir {
 public:
  ~ExportDir() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  absl::Status Make() {
    const char* base = std::getenv("TMPDIR");
    std::string name =
        absl::StrCat(base != nullptr && *base != '\0' ? base : "/tmp", "/isthmus-generate.XXXXXX");
    if (mkdtemp(name.data()) == nullptr)
      return absl::ResourceExhaustedError(
          absl::StrCat("can't make ", name, ": ", std::strerror(errno)));
    path_ = name;
    return absl::OkStatus();
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Waits for the sampler; Ctrl-C reaches it as well as us.
absl::StatusOr<int> RunSampler(const std::string& dir, const GenerateRunOptions& options) {
  ProcessOptions process_options;
  ASSIGN_OR_RETURN(const std::string program, FindProgram("isthmus-generate"));
  process_options.argv = {program};
  for (const std::string& argument : options.arguments) process_options.argv.push_back(argument);
  for (const std::string& argument : {std::string("--"), dir, options.prompt})
    process_options.argv.push_back(argument);
  process_options.own_group = false;
  Interrupt interrupt;
  ASSIGN_OR_RETURN(Process process, Process::Start(process_options));
  while (!process.Poll().has_value()) {
    if (interrupt.WaitFor(kPoll)) {
      process.Stop(kGrace);
      return static_cast<int>(kExitInterrupted);
    }
  }
  return *process.Poll();
}

}  // namespace

std::vector<GenerateFlag> GenerateFlags() {
  const auto whole = [](uint64_t least, uint64_t most) {
    return [least, most](CLI::Option* option) { Whole(option, least, most); };
  };
  const auto real = [](CLI::Option* o) { Real(o, kMinTemperature, kMaxTemperature); };
  return {{"--tokens", "COUNT", "at most so many new tokens [200]", whole(1, kMaxNewTokens)},
          {"--temperature", "NUMBER", "less keeps closer to the likeliest [0.8]", real},
          {"--top-k", "COUNT", "choose among so many likeliest tokens; 0: among all [200]",
           whole(0, kMaxTopK)},
          {"--seed", "NUMBER", "of the choice [1]", whole(0, UINT64_MAX)},
          {"--greedy", "", "always the likeliest token"},
          {"--threads", "COUNT",
           "of the computation, at most this machine's processors; 0: all of them [0]",
           whole(0, Processors())}};
}

int RunGenerate(const ClientOptions& client, const GenerateRunOptions& options, Console* console) {
  std::string dir = options.target;
  ExportDir temporary;
  std::error_code error;
  if (fs::is_directory(dir, error)) {
    if (!options.tokenizer.empty() || options.step >= 0)
      return console->Fail(absl::InvalidArgumentError(absl::StrCat(
          "--tokenizer and --step are for a job's checkpoint, and ", dir, " is a directory")));
  } else if (absl::StrContains(dir, '/')) {
    return console->Fail(absl::NotFoundError(absl::StrCat("there is no directory ", dir)));
  } else {
    const absl::Status made = temporary.Make();
    if (!made.ok()) return console->Fail(made);
    ExportOptions export_options;
    export_options.job = options.target;
    export_options.dir = dir = temporary.path() + "/model";
    export_options.step = options.step;
    export_options.tokenizer = options.tokenizer;
    export_options.quiet = true;
    const int code = RunExport(client, export_options, console);
    if (code != kExitOk) return code;
  }
  const absl::StatusOr<int> code = RunSampler(dir, options);
  return code.ok() ? *code : console->Fail(code.status());
}

}  // namespace isthmus::cli
