#include "worker/study/command.h"

#include <google/protobuf/util/json_util.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <memory>
#include <numeric>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/command_line.h"
#include "base/file/read_file.h"
#include "base/machine_check.h"
#include "base/mutex.h"
#include "base/number_flag.h"
#include "base/status.h"
#include "proto/job/job_defaults.h"
#include "worker/study/ist/command.h"
#include "worker/study/study.h"

namespace isthmus::study {
namespace {

constexpr int kStages = 3;
constexpr int64_t kQuickSteps = 40;
constexpr size_t kMaxSeeds = 1000;
constexpr size_t kMaxJobBytes = 1 << 20;

constexpr char kFooter[] = R"(
Each cell trains the job from the same start with one setting at some of the boundaries, the stages
as threads over links in memory, and is compared with the uncompressed run of the same seed. The
table has, for each setting: the loss (mean of the last tenth of the steps) and its difference to
none (mean and deviation over the seeds), the validation loss (validation passes go uncompressed),
bytes on the wire a step and their ratio to fp32 over all boundaries, encode and decode in ms a
step, and the seconds a step would take on links of 5, 20, 100 and 1000 Mbit/s. Below it stands the
rank test: how much of the activations, of their gradients and of the weights' gradients lies in
the largest 5 % of the singular values.

A finished cell is on disk (DIR/cells.jsonl) before the next one starts. Ctrl-C at any time: the
same command goes on where it stopped, and more codecs or seeds only add their cells.
DIR/study.csv and DIR/study.svg hold the table and a plot of loss against bytes.

Examples:
  deploy/fetch-data.sh --only bible && isthmus study      the default grid, about half an hour
  isthmus study --quick                                   seconds: does it run here?
  isthmus study job.yaml --seeds 3 --codec 'quant(4) / quant(8)' --codec 'topk(0.05) / topk(0.05)'
  isthmus study --codec '/ lowrank(8)' --boundaries late,all --out gradients
  isthmus study ist-theory                                subnetwork training on quadratics

A setting is FORWARD / BACKWARD; a side left out is none. `isthmus help job` has the codecs.
Exit codes: 0 done; 1 failed at run time, or a cell did; 2 wrong usage or job; 3 this machine lacks
something (disk, memory, device); 5 another study writes to DIR.)";

struct Flags {
  std::string job_file;
  std::string data_dir = "data";
  std::string out = "study";
  std::vector<std::string> codecs;
  std::string boundaries;  // empty: not named, as with the numbers below
  size_t seeds = 0;
  int64_t steps = 0;
  int stages = 0;
  double passes = 4;
  int64_t rank_samples = 16;
  double delay_ms = 20;
  int threads = 1;
  std::string device = "cpu";
  bool quick = false;
  bool json = false;
};

int ExitCodeFor(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kOutOfRange:
      return kUsage;
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kFailedPrecondition:  // no such device here
      return kMachine;
    case absl::StatusCode::kAlreadyExists:
      return kRefused;
    default:
      return kFailed;
  }
}

void AddGridFlags(CLI::App* app, Flags* f) {
  app->add_option("--codec", f->codecs,
                  "a setting, FORWARD / BACKWARD; again for more [one of each kind]")
      ->type_name("SETTING")
      ->expected(1)
      ->take_all();
  app->add_option("--boundaries", f->boundaries,
                  "which of them have the codecs: early, late, all [all three]")
      ->type_name("LIST");
  Whole(app->add_option("--seeds", f->seeds, "seeds of each cell, from 1 [3]"), 1, kMaxSeeds);
  app->add_flag("--quick", f->quick,
                "40 steps, one seed, four settings, all boundaries, where nothing else is named");
}

void AddFlags(CLI::App* app, Flags* f) {
  app->add_option("JOB", f->job_file,
                  "a job to train (YAML through `isthmus study`, JSON here) [a small GPT on "
                  "bible.txt]");
  AddGridFlags(app, f);
  Whole(app->add_option("--steps", f->steps, "[the job's recipe.steps]"), 1, 1000000);
  Whole(app->add_option("--stages", f->stages, "[the job's strategy.stages, else 3]"), 2, 64);
  Real(app->add_option("--passes", f->passes,
                       "over the data: so few samples are used (delta codecs need more than one)"),
       0.01, 1e6)
      ->capture_default_str();
  Whole(app->add_option("--rank-samples", f->rank_samples,
                        "samples that the rank test takes; 0: no test"),
        0, 4096)
      ->capture_default_str();
  Real(app->add_option("--delay", f->delay_ms, "ms, one way, of the predicted links"), 0, 10000)
      ->capture_default_str();
  app->add_option("--data-dir", f->data_dir, "folder of the training data")->capture_default_str();
  app->add_option("--out", f->out, "directory of the results")
      ->type_name("DIR")
      ->capture_default_str();
  Whole(app->add_option("--threads", f->threads,
                        "compute threads of each stage, at most this machine's processors"),
        1, Processors())
      ->capture_default_str();
  app->add_option("--device", f->device, "cpu, cuda or cuda:N")->capture_default_str();
  app->add_flag("--json", f->json, "the table as JSON on stdout");
  app->set_version_flag("--version", std::string("isthmus-study ") + ISTHMUS_VERSION);
  app->footer(kFooter);
}

absl::StatusOr<JobSpec> ReadJob(const std::string& path) {
  if (path.empty()) return DefaultJob();
  if (absl::EndsWith(path, ".yaml") || absl::EndsWith(path, ".yml")) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": isthmus-study reads jobs as JSON; `isthmus study ", path, "` reads YAML"));
  }
  ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(path, kMaxJobBytes));
  JobSpec job;
  if (const auto status = google::protobuf::util::JsonStringToMessage(text, &job); !status.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": not a job as JSON: ", std::string(status.message())));
  }
  FillDefaults(&job);
  return job;
}

absl::Status FillGrid(const Flags& f, Grid* grid) {
  for (const std::string& text : f.codecs) {
    absl::StatusOr<Setting> setting = ParseSetting(text);
    if (!setting.ok()) return Annotate(setting.status(), absl::StrCat("--codec '", text, "'"));
    grid->settings.push_back(*std::move(setting));
  }
  if (f.codecs.empty()) grid->settings = f.quick ? QuickSettings() : DefaultSettings();
  const std::string boundaries = !f.boundaries.empty() ? f.boundaries
                                 : f.quick             ? "all"
                                                       : "early,late,all";
  for (absl::string_view name : absl::StrSplit(boundaries, ',')) {
    absl::StatusOr<Where> where = ParseWhere(name);
    if (!where.ok()) return Annotate(where.status(), "--boundaries");
    grid->boundaries.push_back(*where);
  }
  grid->seeds.resize(f.seeds > 0 ? f.seeds : f.quick ? 1 : 3);
  std::iota(grid->seeds.begin(), grid->seeds.end(), 1);
  return absl::OkStatus();
}

// The job as given or built in, then what the flags change.
absl::StatusOr<JobSpec> MakeJob(const Flags& f) {
  ASSIGN_OR_RETURN(JobSpec job, ReadJob(f.job_file));
  RecipeSpec* recipe = job.mutable_recipe();
  const int64_t steps = f.steps > 0 ? f.steps : f.quick ? kQuickSteps : recipe->steps();
  if (steps != recipe->steps()) {
    recipe->set_steps(steps);
    recipe->set_warmup_steps(steps / 20);
  }
  recipe->set_eval_every(0);
  StrategySpec* strategy = job.mutable_strategy();
  if (f.stages > 0) {
    strategy->set_stages(f.stages);
    strategy->clear_layers_per_stage();
  } else if (strategy->stages() == 0) {  // left to a planner, which is not here
    const int named = strategy->layers_per_stage_size();
    strategy->set_stages(named > 0 ? named : std::min(kStages, job.model().layers()));
  }
  RETURN_IF_ERROR(ValidateJob(job));
  return job;
}

// On a terminal one line that is drawn again; else a line a cell.
class Reporter {
 public:
  explicit Reporter(FILE* err) : err_(err), terminal_(isatty(fileno(err)) == 1) {}

  void Show(const Progress& p) {
    MutexLock lock(&mutex_);
    const auto now = std::chrono::steady_clock::now();
    const bool finished = p.ran != ran_;
    ran_ = p.ran;
    if (!finished && (!terminal_ || now - drawn_ < std::chrono::milliseconds(100))) return;
    drawn_ = now;
    const double elapsed = std::chrono::duration<double>(now - start_).count();
    const std::string line = ProgressLine(p, elapsed, terminal_ ? Columns() : 500);
    if (terminal_) {
      std::fprintf(err_, "\r\033[K%s", line.c_str());
    } else {
      std::fprintf(err_, "%s\n", line.c_str());
    }
    std::fflush(err_);
  }
  void End() {
    if (terminal_) std::fprintf(err_, "\r\033[K");
  }

 private:
  size_t Columns() const {
    winsize size{};
    return ioctl(fileno(err_), TIOCGWINSZ, &size) == 0 && size.ws_col > 20 ? size.ws_col - 1 : 79;
  }

  FILE* const err_;
  const bool terminal_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  Mutex mutex_;
  std::chrono::steady_clock::time_point drawn_ ABSL_GUARDED_BY(mutex_);
  size_t ran_ ABSL_GUARDED_BY(mutex_) = 0;
};

absl::StatusOr<StudyResult> Run(const Flags& f, const Engine& engine, FILE* err) {
  StudyOptions options;
  ASSIGN_OR_RETURN(options.job, MakeJob(f));
  RETURN_IF_ERROR(FillGrid(f, &options.grid));
  options.out = f.out;
  options.passes = f.passes;
  options.rank_samples = f.rank_samples;
  options.delay_s = f.delay_ms / 1e3;
  options.make_stage = engine.stages(f.device, f.threads);
  absl::StatusOr<std::unique_ptr<worker::Corpus>> corpus =
      worker::OpenCorpus(f.data_dir, options.job);
  if (!corpus.ok()) {
    return Annotate(corpus.status(),
                    "the training data (--data-dir names its folder, deploy/fetch-data.sh makes "
                    "bible.txt)");
  }
  Reporter reporter(err);
  absl::StatusOr<StudyResult> result =
      RunStudy(options, **corpus, [&](const Progress& p) { reporter.Show(p); });
  reporter.End();
  return result;
}

}  // namespace

int RunCommand(int argc, const char* const* argv, const Engine& engine, FILE* out, FILE* err) {
  if (argc > 1 && std::string(argv[1]) == ist::kTheoryCommand)
    return ist::RunTheoryCommand(argc - 1, argv + 1, out, err);
  Flags flags;
  CLI::App app(
      "Trains a small job over a grid of codecs and boundaries and compares what comes out.",
      CalledAs(argc, argv, "isthmus-study"));
  AddFlags(&app, &flags);
  if (const auto ended = ParseCommandLine(argc, argv, "isthmus-study", &app, out, err))
    return *ended;
  const absl::StatusOr<StudyResult> result = Run(flags, engine, err);
  if (!result.ok()) {
    std::fprintf(err, "isthmus-study: %s\n", std::string(result.status().message()).c_str());
    return ExitCodeFor(result.status());
  }
  const std::string text = flags.json ? RenderJson(result->rows, result->energies)
                                      : RenderTable(result->rows, result->energies);
  std::fwrite(text.data(), 1, text.size(), out);
  std::fflush(out);
  std::fprintf(err, "isthmus-study: wrote %s/study.csv and %s/study.svg\n", flags.out.c_str(),
               flags.out.c_str());
  if (result->failed == 0) return kOk;
  std::fprintf(err, "isthmus-study: %zu cells failed; the same command tries them again\n",
               result->failed);
  return kFailed;
}

}  // namespace isthmus::study
