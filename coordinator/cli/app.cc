#include "coordinator/cli/app.h"

#include <CLI/CLI.hpp>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/number_flag.h"
#include "base/rpc/listening.h"
#include "base/suggest.h"
#include "coordinator/cli/become_program.h"
#include "coordinator/cli/commands.h"
#include "coordinator/cli/doctor/doctor.h"
#include "coordinator/cli/exit_code.h"
#include "coordinator/cli/job/check.h"
#include "coordinator/cli/job/job_reference.h"
#include "coordinator/cli/job/study_run.h"
#include "coordinator/cli/model/generate_run.h"
#include "coordinator/cli/offline/offline_flags.h"
#include "coordinator/cli/shell/command_table.h"
#include "coordinator/cli/shell/completion.h"
#include "coordinator/cli/shell/help_text.h"
#include "coordinator/cli/shell/man_page.h"
#include "coordinator/cli/stop_command.h"
#include "coordinator/cli/testnet/testnet_flags.h"
#include "coordinator/cli/testnet/testnet_run.h"
#include "coordinator/cli/tls/audit_command.h"
#include "coordinator/cli/tls/ca_command.h"
#include "coordinator/cli/trace_command.h"
#include "coordinator/cli/view/json_out.h"

namespace isthmus::cli {
namespace {

// What the command line said; one struct for all commands.
struct Arguments {
  ClientOptions client;
  std::string topic;
  NodesOptions nodes;
  PlanOptions plan;
  SubmitOptions submit;
  WatchOptions watch;
  LogsOptions logs;
  CheckpointsOptions checkpoints;
  ExportOptions export_dir;
  TestnetOptions testnet;
  CaOptions ca;
  JobSource check;
  GenerateRunOptions generate;
  std::string job;
  bool json = false;
  StopOptions stop;
  TraceOptions trace;
  bool keep_checkpoints = false;
  std::string drained;
  bool undo = false;
  int last = 50;
};

class App {
 public:
  App(Console* console)
      : console_(console),
        app_("Trains one neural network on hosts that only a slow network joins.", "isthmus") {
    app_.footer(absl::StrCat(kMainFooter, ExitCodeHelp()));
    app_.require_subcommand(1);
    app_.add_option("--coordinator", a_.client.address, "its HOST:PORT")
        ->envname("ISTHMUS_COORDINATOR")
        ->type_name("HOST:PORT")
        ->capture_default_str();
    app_.add_flag("--proxy", a_.client.use_proxy,
                  "go through http_proxy and friends (else they are ignored)");
    app_.add_option("--tls-dir", a_.client.tls_dir, "folder of your certificate (isthmus ca issue)")
        ->envname("ISTHMUS_TLS_DIR")
        ->type_name("DIR");
    app_.add_flag("--insecure", a_.client.insecure,
                  "plain text to a coordinator on another machine, in a private network")
        ->envname("ISTHMUS_INSECURE");
    app_.add_flag_callback(
        "--version", [this] { version_ = true; }, "the version");
    AddCluster();
    AddJobs();
    AddModels();
    AddOffline();
    AddShell();
    AddTestnet();
    AddPrograms();
    NameTheCoordinator();
  }

  int Run(int argc, const char* const* argv) {
    for (int i = 1; i < argc; ++i)
      version_ = version_ || (i == 1 && std::string(argv[i]) == "--version");
    if (version_) return PrintVersion();
    try {
      app_.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
      return Explain(error, argc, argv);
    }
    rpc::TypedWins(argc, argv, &a_.client.tls_dir, &a_.client.insecure);
    return run_ ? run_() : kExitUsage;
  }

 private:
  CLI::App* Command(const std::string& name, const std::string& what, std::function<int()> run,
                    bool json = true) {
    CLI::App* command = app_.add_subcommand(name, what);
    command->fallthrough();
    command->footer("");  // else it inherits the program's
    command->callback([this, run = std::move(run)] { run_ = run; });
    if (json) command->add_flag("--json", a_.json, "as JSON");
    return command;
  }
  void JobArgument(CLI::App* command, std::string* where) {
    command->add_option("JOB", *where, "its id, or its name (the newest of that name)")->required();
  }
  void FileArgument(CLI::App* command, JobSource* where) {
    command
        ->add_option("JOB.yaml", where->file,
                     "the job file (isthmus job-template prints one); - for standard input")
        ->required();
    command
        ->add_option("--set", where->settings,
                     "a field of the job, over the file's, such as recipe.steps=10")
        ->type_name("PATH=VALUE")
        ->expected(1)
        ->take_all();
  }
  static void Step(CLI::Option* option) { Whole(option, 0, uint64_t{1} << 40)->type_name("STEP"); }
  void ResumeOptions(CLI::App* command, bool* resume, std::optional<int64_t>* step) {
    command->add_flag("--resume", *resume,
                      "go on from the newest checkpoint of the job of that name");
    Step(command->add_option(
        "--step", *step,
        "with --resume: from the checkpoint of that step (isthmus checkpoints JOB)"));
  }

  void AddCluster() {
    CLI::App* nodes =
        Command("nodes", "the daemons that joined, and the measured links between them", [this] {
          a_.nodes.json = a_.json;
          return RunNodes(a_.client, a_.nodes, console_);
        });
    Whole(nodes->add_option("--wait", a_.nodes.wait,
                            "until so many daemons are alive and their links measured"),
          1, 10000);
    Real(nodes->add_option("--timeout", a_.nodes.timeout_s, "seconds to wait"), 0, 86400)
        ->capture_default_str();
    nodes->footer("\nExamples:\n  isthmus nodes\n  isthmus nodes --wait 4 --timeout 60");
    CLI::App* audit = Command("audit", "who changed what, when and from where; who was refused",
                              [this] { return RunAudit(a_.client, a_.last, a_.json, console_); });
    Whole(audit->add_option("--last", a_.last, "the last so many entries"), 1, 1000)
        ->capture_default_str();
    CLI::App* drain = Command("drain", "take a daemon out of work, its job in good order", [this] {
      return RunDrain(a_.client, a_.drained, a_.undo, a_.json, console_);
    });
    drain->add_option("NODE", a_.drained, "its name, or its identity")->required();
    drain->add_flag("--undo", a_.undo, "it gets jobs again");
    drain->footer(kDrainFooter);
    CLI::App* plan = Command("plan", "who would hold what, with which codecs, and why", [this] {
      a_.plan.json = a_.json;
      return RunPlan(a_.client, a_.plan, console_);
    });
    FileArgument(plan, &a_.plan.job_file);
    ResumeOptions(plan, &a_.plan.resume, &a_.plan.step);
    plan->add_flag("--compare", a_.plan.compare, "beside plans that others would make");
    AddOfflineFlags(plan, &a_.plan.offline);
  }

  void AddJobs() {
    CLI::App* submit = Command("submit", "start a job", [this] {
      a_.submit.json = a_.json;
      return RunSubmit(a_.client, a_.submit, console_);
    });
    FileArgument(submit, &a_.submit.job_file);
    submit->add_flag("--watch", a_.submit.watch, "watch it to its end");
    ResumeOptions(submit, &a_.submit.resume, &a_.submit.step);
    submit->add_flag("--accept-changes", a_.submit.accept_changes,
                     "with --resume: go on though the job file makes another training of it");
    submit->add_flag("--wait", a_.submit.wait, "queue it until enough daemons are there");
    submit
        ->add_option("--summary", a_.submit.summary_file,
                     "write the final figures there (with --watch)")
        ->type_name("FILE");
    submit->footer(kSubmitFooter);
    Command("list", "all jobs", [this] { return RunList(a_.client, a_.json, console_); });
    JobArgument(Command("status", "one job: figures, reason of its state, stages",
                        [this] { return RunStatus(a_.client, a_.job, a_.json, console_); }),
                &a_.job);
    CLI::App* watch = Command("watch", "follow a job to its end", [this] {
      a_.watch.json = a_.json;
      return RunWatch(a_.client, a_.watch, console_);
    });
    JobArgument(watch, &a_.watch.job);
    watch->add_option("--summary", a_.watch.summary_file, "write the final figures there")
        ->type_name("FILE");
    watch->footer(
        "\nCtrl-C ends the watching, not the job. With --json: progress on stderr, the final "
        "figures on stdout.");
    CLI::App* logs = Command("logs", "a record a step: loss, tokens/s, bytes, waits", [this] {
      a_.logs.json = a_.json;
      return RunLogs(a_.client, a_.logs, console_);
    });
    JobArgument(logs, &a_.logs.job);
    logs->add_flag("-f,--follow", a_.logs.follow, "go on until the job ends");
    logs->add_flag("--csv", a_.logs.csv, "as CSV, for spreadsheets and deploy/tensorboard.py");
    Step(logs->add_option("--from", a_.logs.from_step, "the first step; the job's first is 1"));
    logs->footer(kLogsFooter);
    CLI::App* stop =
        Command("stop", "end a job: finish the step, write a checkpoint, wait for its end", [this] {
          a_.stop.json = a_.json;
          return RunStop(a_.client, a_.stop, console_);
        });
    JobArgument(stop, &a_.stop.job);
    stop->add_flag("--now", a_.stop.now,
                   "at once, without a checkpoint; what its daemons kept may come later");
    stop->add_flag("--no-wait", a_.stop.no_wait, "return as soon as the coordinator knows");
    Real(stop->add_option("--timeout", a_.stop.timeout_s, "seconds to wait for the end"), 0, 86400)
        ->capture_default_str();
    stop->footer(kStopFooter);
    AddStored();
  }

  void AddModels() {
    CLI::App* out =
        Command("export", "write a checkpoint as a directory that `transformers` can load", [this] {
          a_.export_dir.json = a_.json;
          return RunExport(a_.client, a_.export_dir, console_);
        });
    JobArgument(out, &a_.export_dir.job);
    out->add_option("DIR", a_.export_dir.dir, "where to")->required();
    Step(out->add_option("--step", a_.export_dir.step,
                         "the checkpoint of that step (else the newest)"));
    out->add_option("--tokenizer", a_.export_dir.tokenizer,
                    "directory of the tokenizer to put beside the weights [model.init_from's]")
        ->type_name("DIR");
    out->add_flag("--force", a_.export_dir.force, "replace DIR if it is not empty");
    out->footer(
        "\nWrites model.safetensors, config.json and the tokenizer's files, in one rename: DIR is "
        "never half written.\n\nExample:\n  isthmus export my-first-job ./model");
    CLI::App* generate =
        Command("generate", "continue a text with a job's model, or with an export", [this] {
          for (const CLI::Option* option : generated_) {
            if (option->count() == 0) continue;
            a_.generate.arguments.push_back(option->get_name());
            if (option->get_items_expected_max() > 0)
              a_.generate.arguments.push_back(option->results().back());
          }
          if (a_.json) a_.generate.arguments.push_back("--json");
          return RunGenerate(a_.client, a_.generate, console_);
        });
    generate->add_option("JOB|DIR", a_.generate.target, "a job, or a directory of `export`")
        ->required();
    generate->add_option("PROMPT", a_.generate.prompt, "the beginning of the text");
    for (const GenerateFlag& flag : GenerateFlags()) {
      CLI::Option* option =
          flag.value.empty()
              ? generate->add_flag(flag.name, flag.what)
              : generate->add_option(flag.name, unused_, flag.what)->type_name(flag.value);
      if (flag.judge) flag.judge(option);
      generated_.push_back(option);
    }
    Step(generate->add_option("--step", a_.generate.step, "of a job: the checkpoint of that step"));
    generate->add_option("--tokenizer", a_.generate.tokenizer, "of a job: as with `export`")
        ->type_name("DIR");
    generate->footer(
        "\nRuns on this machine's CPU; the same seed gives the same text.\n\nExamples:\n  isthmus "
        "generate my-first-job \"In the beginning\"\n  isthmus generate ./model \"Once\" --tokens "
        "50 --greedy");
  }

  void AddStored() {
    CLI::App* list = Command("checkpoints", "the checkpoints that are stored of a job", [this] {
      a_.checkpoints.json = a_.json;
      return RunCheckpoints(a_.client, a_.checkpoints, console_);
    });
    JobArgument(list, &a_.checkpoints.job);
    list->add_flag("--verify", a_.checkpoints.verify,
                   "read every file against its checksum; exit code 1 if one is damaged");
    list->footer("\nGo on from an older one: isthmus submit JOB.yaml --resume --step STEP");
    CLI::App* remove = Command("rm", "forget a job that has ended, with its checkpoints", [this] {
      return RunRemove(a_.client, a_.job, a_.keep_checkpoints, a_.json, console_);
    });
    JobArgument(remove, &a_.job);
    remove->add_flag("--keep-checkpoints", a_.keep_checkpoints,
                     "leave them in the coordinator's state directory");
    remove->footer("\nExample, once `isthmus stop` has ended it:\n  isthmus rm my-first-job");
    CLI::App* trace = Command("trace", "what the next steps spend their time on, for Perfetto",
                              [this] { return RunTrace(a_.client, a_.trace, a_.json, console_); });
    JobArgument(trace, &a_.trace.job);
    Whole(trace->add_option("--steps", a_.trace.steps, "the next so many"), 1, 100)
        ->capture_default_str();
    trace->add_option("--output", a_.trace.output, "where to [JOB-trace.json]")->type_name("FILE");
    trace->add_flag("--force", a_.trace.force, "replace FILE if it exists");
    trace->footer(kTraceFooter);
  }

  void AddOffline() {
    Command("version", "the version", [this] { return PrintVersion(); });
    const auto reference = [this] {
      console_->Out(JobReference());
      return static_cast<int>(kExitOk);
    };
    Command("job-reference", "every field of a job file: type, default, meaning", reference, false);
    Command(
        "job-template", "a commented job file to start from",
        [this] {
          console_->Out(JobTemplate());
          return static_cast<int>(kExitOk);
        },
        false);
    CLI::App* help = Command(
        "help", "help on a command; `isthmus help job` explains job files",
        [this, reference] {
          if (a_.topic == "job") return reference();
          if (programs_.count(a_.topic) > 0) return programs_[a_.topic]({"--help"});
          CLI::App* command = a_.topic.empty() ? &app_ : Find(a_.topic);
          if (command == nullptr) return Unknown(a_.topic);
          console_->Out(command->help(a_.topic.empty() ? "" : "isthmus"));
          return static_cast<int>(kExitOk);
        },
        false);
    help->add_option("TOPIC", a_.topic, "a command, or `job`");
  }

  void AddShell() {
    CLI::App* check = Command("check", "judge a job file, without a coordinator",
                              [this] { return RunCheck(a_.check, a_.json, console_); });
    FileArgument(check, &a_.check);
    check->footer(
        "\nEvery error has file, line and column; exit code 2 where there is one.\n\nExamples:\n  "
        "isthmus check job.yaml\n  isthmus check job.yaml --set recipe.steps=10");
    AddCaFlags(Command("ca", "certificates of a cluster: who is let in, and as what",
                       [this] { return RunCa(a_.ca, a_.json, console_); }),
               &a_.ca);
    CLI::App* doctor =
        Command("doctor", "what stands in the way: coordinator, links, limits, clock",
                [this] { return RunDoctor(a_.client, a_.json, console_); });
    doctor->footer(
        "\nLooks at this machine, the coordinator, and how the daemons reach one another. Before a "
        "daemon\nis started: isthmusd --doctor, with the flags it will have.");
    CLI::App* completion = Command(
        "completion", "print the completions of a shell",
        [this] { return Print(Completion(TableOf(app_), a_.topic)); }, false);
    completion->add_option("SHELL", a_.topic, "bash, zsh or fish")->required();
    completion->footer("\nExample:\n  source <(isthmus completion bash)");
    CLI::App* man = Command(
        "man", "print the manual page, as roff",
        [this] {
          const bool ours = a_.topic.empty() || a_.topic == "job" || Find(a_.topic) != nullptr;
          if (ours) return Print(PageOf(TableOf(app_), a_.topic, ISTHMUS_VERSION));
          const auto help = HelpOf(a_.topic);
          if (!help.ok()) return console_->Fail(help.status());
          return Print(HelpPage(a_.topic, *help, ISTHMUS_VERSION));
        },
        false);
    man->add_option("TOPIC", a_.topic, "a command, a program, or `job` [all commands]");
    man->footer("\nExample:\n  isthmus man | man -l -");
  }

  int Print(const absl::StatusOr<std::string>& text) {
    if (!text.ok()) return console_->Fail(text.status());
    console_->Out(*text);
    return kExitOk;
  }

  void AddTestnet() {
    CLI::App* testnet =
        Command("testnet", "rehearse a job on an emulated WAN on this machine", [this] {
          a_.testnet.json = a_.json;
          return RunTestnet(a_.testnet, console_);
        });
    FileArgument(testnet, &a_.testnet.job_file);
    AddTestnetFlags(testnet, &a_.testnet);
  }

  using Passed = std::function<int(const std::vector<std::string>& arguments)>;

  // A program of its own: its arguments, --help among them, are the program's. `first` names the
  // words that may come first, for completions and manual pages; empty: none are known.
  void AddProgram(const std::string& name, const std::string& what, const std::string& first,
                  Passed run) {
    const auto pass = [this, name] {
      std::vector<std::string> arguments = Find(name)->remaining();
      if (!first_word_.empty()) arguments.insert(arguments.begin(), first_word_);
      return programs_[name](arguments);
    };
    CLI::App* command = Command(name, what, pass, false);
    if (!first.empty()) command->add_option(first, first_word_, "what to do");
    command->set_help_flag();
    command->prefix_command();
    command->fallthrough(false);
    command->footer(
        absl::StrCat("\nIts options: isthmus ", name, " --help, or isthmus-", name, "(1)."));
    programs_[name] = std::move(run);
  }

  void AddPrograms() {
    AddProgram("study", "train a small job with many codecs on this machine and compare them",
               "ist-theory|JOB.yaml",
               [this](const auto& arguments) { return RunStudy(arguments, console_); });
    AddProgram("multilevel", "make a small model of a large one, and a large one of a small one",
               "coalesce|decoalesce|interpolate", [this](const auto& arguments) {
                 return BecomeProgram("isthmus-multilevel", arguments, console_);
               });
  }

  // In the help of each command that asks it.
  void NameTheCoordinator() {
    const std::set<std::string> offline = {
        "ca",  "check",      "completion", "help",    "job-reference", "job-template",
        "man", "multilevel", "study",      "testnet", "version"};
    for (CLI::App* command : app_.get_subcommands([](CLI::App*) { return true; })) {
      if (offline.count(command->get_name()) > 0) continue;
      command->footer(absl::StrCat(command->get_footer(), command->get_footer().empty() ? "" : "\n",
                                   "\nThe coordinator: --coordinator HOST:PORT, else "
                                   "$ISTHMUS_COORDINATOR, else 127.0.0.1:7070."));
    }
  }

  CLI::App* Find(const std::string& name) {
    for (CLI::App* command : app_.get_subcommands([](CLI::App*) { return true; })) {
      if (command->get_name() == name) return command;
    }
    return nullptr;
  }

  int PrintVersion() {
    console_->Out(a_.json ? absl::StrCat("{\n  \"version\": ", JsonString(ISTHMUS_VERSION), "\n}\n")
                          : absl::StrCat("isthmus ", ISTHMUS_VERSION, "\n"));
    return kExitOk;
  }

  int Unknown(const std::string& word) {
    std::vector<std::string> names;
    for (const CLI::App* command : app_.get_subcommands([](CLI::App*) { return true; }))
      names.push_back(command->get_name());
    const std::string near = Nearest(word, names);
    console_->Err(absl::StrCat("isthmus: there is no command '", word.substr(0, 60), "'",
                               word == "job" ? "; the fields of a job file: isthmus help job"
                               : near.empty()
                                   ? absl::StrCat("; the commands are ", absl::StrJoin(names, ", "))
                                   : absl::StrCat("; did you mean '", near, "'?"),
                               "\n"));
    return kExitUsage;
  }

  // Help that was asked for, or what was wrong.
  int Explain(const CLI::ParseError& error, int argc, const char* const* argv) {
    std::ostringstream out;
    std::ostringstream err;
    const int code = app_.exit(error, out, err);
    // `isthmus frobnicate --help` is a misspelt command, too.
    if (code == 0 && argc > 1 && argv[1][0] != '-' && Find(argv[1]) == nullptr)
      return Unknown(argv[1]);
    const std::string action = code == 0 ? CaActionHelp(a_.ca.action) : "";
    console_->Out(action.empty() ? out.str() : action);
    if (code == 0) return kExitOk;
    // The first word that is no option: a misspelt command gets a suggestion.
    for (int i = 1; i < argc; ++i) {
      const std::string word = argv[i];
      if (word == "--coordinator" || word == "--tls-dir") ++i;
      if (word.empty() || word[0] == '-') continue;
      if (Find(word) == nullptr) return Unknown(word);
      break;
    }
    console_->Err(absl::StrCat("isthmus: ", rpc::NameTheVariable(err.str())));
    return kExitUsage;
  }

  Console* const console_;
  Arguments a_;
  CLI::App app_;
  std::map<std::string, Passed> programs_;     // by the command's name
  std::string first_word_;                     // of the arguments of one of them
  std::vector<const CLI::Option*> generated_;  // options that isthmus-generate judges
  std::string unused_;
  std::function<int()> run_;
  bool version_ = false;
};

}  // namespace

int RunApp(int argc, const char* const* argv, Console* console) {
  return console->Finish(App(console).Run(argc, argv));
}

}  // namespace isthmus::cli
