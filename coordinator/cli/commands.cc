#include "coordinator/cli/commands.h"

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/file/durable_file.h"
#include "base/file/read_file.h"
#include "base/status.h"
#include "coordinator/cli/compare_command.h"
#include "coordinator/cli/exit_code.h"
#include "coordinator/cli/interruptible_client.h"
#include "coordinator/cli/job/job_yaml.h"
#include "coordinator/cli/job/record_csv.h"
#include "coordinator/cli/model/export_dir.h"
#include "coordinator/cli/model/gpt2_import.h"
#include "coordinator/cli/model/tokenizer_files.h"
#include "coordinator/cli/testnet/testnet_plan.h"
#include "coordinator/cli/view/json_out.h"
#include "coordinator/cli/view/render.h"
#include "coordinator/cli/view/summary.h"
#include "coordinator/cli/view/views.h"
#include "coordinator/cli/view/watch_view.h"
#include "coordinator/cli/watching.h"
#include "proto/job/checkpoint_state.h"
#include "proto/job/phases.h"
#include "proto/plan/groups.h"

namespace isthmus::cli {
namespace {

constexpr absl::Duration kNodesPoll = absl::Milliseconds(500);

template <typename Texts>
void PrintWarnings(const Texts& warnings, Console* console) {
  for (const std::string& warning : warnings)
    console->Err(absl::StrCat("warning: ", Printable(warning), "\n"));
}

// Prints "NAME 45 %" in place on a terminal, nothing else where there is none.
std::function<void(int64_t, int64_t)> ProgressOn(Console* console, std::string name) {
  if (!TerminalOf(console->err()).interactive) return nullptr;
  return [console, name = std::move(name), shown = -1](int64_t done, int64_t total) mutable {
    const int percent = total > 0 ? static_cast<int>(100 * done / total) : 0;
    if (percent == shown) return;
    shown = percent;
    console->Err(absl::StrCat("\r", name, " ", percent, " % of ",
                              FormatBytes(static_cast<double>(total)),
                              percent == 100 ? "\n" : "\x1b[K"));
  };
}

constexpr char kInsecureWarning[] =
    "warning: the coordinator runs with --insecure: who reaches its port can command its daemons\n";

absl::StatusOr<ListNodesReply> AwaitNodes(InterruptibleClient* caller, const ClientOptions& client,
                                          const NodesOptions& options, bool* insecure) {
  const absl::Time deadline = SteadyNow() + absl::Seconds(options.timeout_s);
  while (true) {
    // The coordinator, too, may come later.
    absl::Status opened = caller->client == nullptr ? caller->Open(client) : absl::OkStatus();
    absl::StatusOr<ListNodesReply> reply = opened.ok() ? caller->client->Nodes(nullptr, insecure)
                                                       : absl::StatusOr<ListNodesReply>(opened);
    if (!reply.ok() && !absl::IsUnavailable(reply.status())) return reply;
    const Ready ready = reply.ok() ? CountReady(*reply) : Ready();
    if (reply.ok() && ready.alive >= options.wait && ready.links >= ready.alive * (ready.alive - 1))
      return reply;
    if (SteadyNow() > deadline) {
      if (!reply.ok()) return reply;
      return absl::DeadlineExceededError(absl::StrCat(
          ready.alive, " of ", options.wait, " daemons are alive and ", ready.links, " of ",
          ready.alive * (ready.alive - 1), " links between them are measured after ",
          options.timeout_s, " s; see the logs of the daemons that are not there"));
    }
    if (caller->interrupt.WaitFor(kNodesPoll)) return absl::CancelledError("interrupted");
  }
}

// Where a watched job's progress goes: to out for people, to err where out is for a program.
class WatchOutput {
 public:
  WatchOutput(Console* console, bool json)
      : console_(console), to_err_(json), view_(Options(json ? console->err() : console->out())) {}

  absl::Status Follow(InterruptibleClient* caller, const std::string& job) {
    FollowOptions options;
    options.job = job;
    const absl::Status status = FollowJob(
        caller->client.get(), &caller->interrupt, options,
        [this](const WatchReply& reply) { Print(view_.Update(reply, SteadyNow())); },
        [this](const std::string& text) { Print(view_.Remark(text)); });
    Print(view_.Finish());
    return status;
  }
  const WatchView& view() const { return view_; }

 private:
  static WatchViewOptions Options(FILE* file) {
    const Terminal terminal = TerminalOf(file);
    WatchViewOptions options;
    options.terminal = terminal.interactive;
    options.width = terminal.width;
    options.unicode = terminal.unicode;
    return options;
  }
  void Print(const std::string& text) { to_err_ ? console_->Err(text) : console_->Out(text); }

  Console* const console_;
  const bool to_err_;
  WatchView view_;
};

int WatchToEnd(InterruptibleClient* caller, const std::string& job, bool json,
               const std::string& summary_file, Console* console) {
  WatchOutput output(console, json);
  const absl::Status status = output.Follow(caller, job);
  if (absl::IsCancelled(status)) {
    const bool ends = std::getenv(kInTestnet) != nullptr;  // testnet says what becomes of it
    console->Err(ends ? std::string("\nno longer watching\n")
                      : absl::StrCat("\nno longer watching; the job goes on. Again: isthmus watch ",
                                     job, "; stop it: isthmus stop ", job, "\n"));
    return kExitInterrupted;
  }
  if (!status.ok()) return console->Fail(status);
  const Summary summary = MakeSummary(output.view().status(), output.view().records());
  const int code = EndedWell(summary.status) ? kExitOk : kExitJobNotDone;
  Summary shown = summary;
  if (code != kExitOk) shown.status.clear_reason();  // the last line has it
  console->Out(json ? SummaryJson(summary) : absl::StrCat("\n", SummaryTable(shown)));
  if (!summary_file.empty()) {
    const absl::Status written = WriteFileDurably(summary_file, SummaryJson(summary));
    if (!written.ok()) return console->Fail(written);
    if (!json) console->Out(absl::StrCat("\nsummary: ", summary_file, "\n"));
  }
  if (code != kExitOk) {  // the reason says how to go on
    console->Err(absl::StrCat("isthmus: the job ended ", StateName(summary.status.state()), ": ",
                              Printable(summary.status.reason()), "\n"));
  }
  return code;
}

absl::Status NeedsResume(absl::string_view flag) {
  return absl::InvalidArgumentError(
      absl::StrCat(flag, " is about the checkpoint that --resume goes on from: add --resume"));
}

// Reads model.init_from; `job` gets what comes from there.
absl::StatusOr<ImportedGpt2> ReadInit(JobSpec* job, Console* console) {
  ASSIGN_OR_RETURN(ImportedGpt2 model,
                   ReadGpt2(job->model().init_from(), PhaseJob(*job, 0).model()));
  PrintWarnings(model.warnings, console);
  job->mutable_model()->set_norm_epsilon(model.norm_epsilon);
  return model;
}

std::string InitWords(const JobSpec& job, const ImportedGpt2& model) {
  return absl::StrCat("starts from the model in ", job.model().init_from(), ": ",
                      model.weights.elements(), " parameters, ",
                      FormatBytes(static_cast<double>(model.weights.bytes())),
                      " to upload, layer_norm_epsilon ", model.norm_epsilon);
}

// Uploads it as checkpoint 0 of a new job id.
absl::StatusOr<std::string> UploadInit(Client* client, const JobSpec& job,
                                       const ImportedGpt2& model, Console* console) {
  NewJobIdRequest request;
  request.set_name(job.name());
  ASSIGN_OR_RETURN(const NewJobIdReply id, client->NewJobId(request));
  PutCheckpointHeader header;
  header.set_job_id(id.job_id());
  header.set_stages(1);
  header.set_file("weights.safetensors");
  const auto progress = ProgressOn(console, "uploading the model");
  const int64_t total = model.weights.bytes();
  header.set_file_bytes(total);
  header.set_checksum(model.weights.checksum());
  const absl::StatusOr<bool> put = client->PutCheckpoint(
      header, [&](const Client::TakePiece& take) { return model.weights.Write(take); },
      progress ? [&](int64_t sent) { progress(sent, total); } : std::function<void(int64_t)>());
  if (!put.ok()) return Annotate(put.status(), "uploading the model");
  return id.job_id();
}

absl::StatusOr<SubmitReply> SubmitJob(Client* client, const JobSpec& job,
                                      const SubmitOptions& options, Console* console) {
  SubmitRequest request;
  *request.mutable_job() = job;
  request.set_resume(options.resume);
  if (options.step.has_value()) request.set_resume_step(*options.step);
  request.set_accept_changes(options.accept_changes);
  request.set_wait_for_nodes(options.wait);
  if (!request.job().model().init_from().empty() && !options.resume) {
    ASSIGN_OR_RETURN(const ImportedGpt2 model, ReadInit(request.mutable_job(), console));
    if (!options.wait) {  // refuse what can't run before a long upload
      PlanRequest plan;
      *plan.mutable_job() = request.job();
      RETURN_IF_ERROR(client->MakePlan(plan).status());
    }
    ASSIGN_OR_RETURN(const std::string id, UploadInit(client, request.job(), model, console));
    request.set_job_id(id);
    request.set_init_uploaded(true);
  }
  return client->Submit(request);
}

}  // namespace

int RunNodes(const ClientOptions& client, const NodesOptions& options, Console* console) {
  InterruptibleClient caller;
  bool insecure = false;
  if (options.wait == 0) {
    const absl::Status opened = caller.Open(client);
    if (!opened.ok()) return console->Fail(opened);
  }
  const absl::StatusOr<ListNodesReply> reply = options.wait > 0
                                                   ? AwaitNodes(&caller, client, options, &insecure)
                                                   : caller.client->Nodes(nullptr, &insecure);
  if (!reply.ok()) return console->Fail(reply.status());
  console->Out(options.json ? absl::StrCat("{\n  \"insecure\": ", insecure ? "true" : "false", ",",
                                           ToJson(*reply, true).substr(1))
                            : absl::StrCat(NodesView(*reply), insecure ? kInsecureWarning : ""));
  return kExitOk;
}

int RunPlan(const ClientOptions& client, const PlanOptions& options, Console* console) {
  if (options.step.has_value() && !options.resume) return console->Fail(NeedsResume("--step"));
  PlanRequest request;
  request.set_resume(options.resume);
  if (options.step.has_value()) request.set_resume_step(*options.step);
  absl::StatusOr<JobSpec> job = ReadJobFile(options.job_file);
  if (!job.ok()) return console->Fail(job.status());
  *request.mutable_job() = *std::move(job);
  std::string init;
  if (!request.job().model().init_from().empty() && !options.resume) {
    const absl::StatusOr<ImportedGpt2> model = ReadInit(request.mutable_job(), console);
    if (!model.ok()) return console->Fail(model.status());
    init = InitWords(request.job(), *model);
  }
  if (options.compare) return RunCompare(client, request, options.offline, options.json, console);
  if (!options.offline.links.empty())
    return RunOfflinePlan(request, init, options.offline, options.json, console);
  InterruptibleClient caller;
  const absl::Status opened = caller.Open(client);
  if (!opened.ok()) return console->Fail(opened);
  absl::StatusOr<PlanReply> reply = caller.client->MakePlan(request);
  if (!reply.ok()) return console->Fail(reply.status());
  if (!init.empty()) reply->mutable_plan()->add_explanation(std::move(init));
  console->Out(options.json ? ToJson(*reply, true) : PlanView(*reply));
  return kExitOk;
}

int RunSubmit(const ClientOptions& client, const SubmitOptions& options, Console* console) {
  if (!options.summary_file.empty() && !options.watch) {
    return console->Fail(absl::InvalidArgumentError(
        "--summary is written at the end of a watched job: add --watch"));
  }
  if (options.step.has_value() && !options.resume) return console->Fail(NeedsResume("--step"));
  if (options.accept_changes && !options.resume)
    return console->Fail(NeedsResume("--accept-changes"));
  const absl::StatusOr<JobSpec> job =
      ReadJobFile(options.job_file);  // errors of the file come before those of the network
  if (!job.ok()) return console->Fail(job.status());
  InterruptibleClient caller;
  const absl::Status opened = caller.Open(client);
  if (!opened.ok()) return console->Fail(opened);
  const absl::StatusOr<SubmitReply> reply = SubmitJob(caller.client.get(), *job, options, console);
  if (!reply.ok()) return console->Fail(reply.status());
  PrintWarnings(reply->warnings(), console);
  if (!options.json) console->Out(ChangesView(reply->changes()));
  if (options.json && !options.watch) {
    console->Out(ToJson(*reply, true));
  } else if (!options.json) {
    console->Out(
        absl::StrCat("submitted ", Printable(reply->job_id()),
                     reply->plan().ranks().empty()
                         ? absl::StrCat(": it waits; `isthmus status ", Printable(reply->job_id()),
                                        "` says for what")
                         : absl::StrCat(": ", ShapeWords(reply->plan()), ", predicted ",
                                        FormatSeconds(reply->plan().predicted_step_s()), " a step"),
                     "\n"));
    console->Out(OneStageNote(*job, reply->plan()));
    if (!options.watch)
      console->Out(absl::StrCat("watch it: isthmus watch ", Printable(reply->job_id()), "\n"));
  }
  return options.watch
             ? WatchToEnd(&caller, reply->job_id(), options.json, options.summary_file, console)
             : kExitOk;
}

int RunList(const ClientOptions& client, bool json, Console* console) {
  InterruptibleClient caller;
  const absl::Status opened = caller.Open(client);
  if (!opened.ok()) return console->Fail(opened);
  const absl::StatusOr<ListJobsReply> reply = caller.client->List();
  if (!reply.ok()) return console->Fail(reply.status());
  console->Out(json ? ToJson(*reply, true) : JobListView(*reply));
  return kExitOk;
}

int RunStatus(const ClientOptions& client, const std::string& job, bool json, Console* console) {
  InterruptibleClient caller;
  const absl::Status opened = caller.Open(client);
  if (!opened.ok()) return console->Fail(opened);
  JobStatusRequest request;
  request.set_job(job);
  request.set_with_plan(true);
  const absl::StatusOr<JobStatus> reply = caller.client->Status(request);
  if (!reply.ok()) return console->Fail(reply.status());
  if (json) {
    console->Out(ToJson(*reply, true));
    return kExitOk;
  }
  WatchRequest last;
  last.set_job(reply->job_id());
  last.set_from_step(std::max<int64_t>(0, reply->step() - static_cast<int64_t>(kMeanOf)));
  std::vector<JobRecord> records;
  const absl::Status watched = caller.client->Watch(last, [&](const WatchReply& page) {
    records.insert(records.end(), page.records().begin(), page.records().end());
    return true;
  });
  if (!watched.ok()) return console->Fail(watched);
  console->Out(JobStatusView(*reply, records));
  return kExitOk;
}

int RunWatch(const ClientOptions& client, const WatchOptions& options, Console* console) {
  InterruptibleClient caller;
  const absl::Status opened = caller.Open(client);
  if (!opened.ok()) return console->Fail(opened);
  return WatchToEnd(&caller, options.job, options.json, options.summary_file, console);
}

int RunLogs(const ClientOptions& client, const LogsOptions& options, Console* console) {
  InterruptibleClient caller;
  const absl::Status opened = caller.Open(client);
  if (!opened.ok()) return console->Fail(opened);
  bool headed = options.json && !options.csv;
  const auto head = [&] {  // not above an error
    if (!headed) console->Out(options.csv ? RecordCsvHeader() : RecordHeader());
    headed = true;
  };
  const auto print = [&](const WatchReply& reply) {
    head();
    for (const JobRecord& each : reply.records()) {
      const JobRecord record = AsCounted(each);
      console->Out(options.csv    ? RecordCsv(record)
                   : options.json ? ToJson(record, false) + "\n"
                                  : RecordLine(record));
    }
  };
  const int64_t from = std::max<int64_t>(0, options.from_step - 1);  // on the wire 0 is the first
  absl::Status status;
  if (options.follow) {
    FollowOptions follow;
    follow.job = options.job;
    follow.from_step = from;
    status = FollowJob(caller.client.get(), &caller.interrupt, follow, print,
                       [&](const std::string& text) { console->Err(absl::StrCat(text, "\n")); });
  } else {
    WatchRequest request;
    request.set_job(options.job);
    request.set_from_step(from);
    status = caller.client->Watch(request, [&](const WatchReply& reply) {
      print(reply);
      return true;
    });
  }
  if (caller.interrupt.interrupted()) return kExitInterrupted;
  if (!status.ok()) return console->Fail(status);
  head();
  return kExitOk;
}

int RunRemove(const ClientOptions& client, const std::string& job, bool keep_checkpoints, bool json,
              Console* console) {
  InterruptibleClient caller;
  const absl::Status opened = caller.Open(client);
  if (!opened.ok()) return console->Fail(opened);
  RemoveJobRequest request;
  request.set_job(job);
  request.set_keep_checkpoints(keep_checkpoints);
  const absl::StatusOr<RemoveJobReply> reply = caller.client->Remove(request);
  if (!reply.ok()) return console->Fail(reply.status());
  const std::string freed = FormatBytes(static_cast<double>(reply->freed_bytes()));
  console->Out(json ? ToJson(*reply, true)
                    : absl::StrCat("removed ", Printable(reply->job_id()),
                                   keep_checkpoints ? "; its checkpoints stay\n"
                                                    : absl::StrCat(" and its checkpoints: ", freed,
                                                                   " freed\n")));
  return kExitOk;
}

int RunCheckpoints(const ClientOptions& client, const CheckpointsOptions& options,
                   Console* console) {
  InterruptibleClient caller;
  const absl::Status opened = caller.Open(client);
  if (!opened.ok()) return console->Fail(opened);
  ListCheckpointsRequest request;
  request.set_job(options.job);
  request.set_verify(options.verify);
  const absl::StatusOr<ListCheckpointsReply> reply = caller.client->Checkpoints(request);
  if (!reply.ok()) return console->Fail(reply.status());
  console->Out(options.json ? ToJson(*reply, true) : CheckpointsView(*reply, options.verify));
  for (const CheckpointInfo& info : reply->checkpoints()) {
    if (options.verify && !info.damage().empty()) return kExitFailure;
  }
  return kExitOk;
}

namespace {

// state.json of the checkpoint that `weights` asks for. `path` is free for a moment.
absl::StatusOr<CheckpointState> FetchState(Client* client, const FetchCheckpointRequest& weights,
                                           const std::string& path) {
  constexpr int64_t kMaxStateBytes = 1 << 20;
  FetchCheckpointRequest request = weights;
  request.set_what("state");
  ASSIGN_OR_RETURN(const Client::Fetched fetched,
                   client->FetchCheckpoint(request, path, nullptr, nullptr));
  const absl::StatusOr<std::string> json = ReadSmallFile(path, kMaxStateBytes);
  std::remove(path.c_str());
  RETURN_IF_ERROR(json.status());
  return ParseCheckpointState(*json, fetched.step);
}

}  // namespace

int RunExport(const ClientOptions& client, const ExportOptions& options, Console* console) {
  InterruptibleClient caller;
  const absl::Status opened = caller.Open(client);
  if (!opened.ok()) return console->Fail(opened);
  JobStatusRequest request;
  request.set_job(options.job);
  request.set_with_plan(true);
  const absl::StatusOr<JobStatus> job = caller.client->Status(request);
  if (!job.ok()) return console->Fail(job.status());
  if (!job->plan().has_job()) {
    return console->Fail(absl::FailedPreconditionError(absl::StrCat(
        job->job_id(), " has no plan yet, so no checkpoint: it is ", StateName(job->state()))));
  }
  const absl::StatusOr<TokenizerFiles> tokenizer =
      FindTokenizer(job->plan().job(), options.tokenizer);
  if (!tokenizer.ok()) return console->Fail(tokenizer.status());
  FetchCheckpointRequest fetch;
  fetch.set_job_id(job->job_id());
  fetch.set_step(options.step);
  fetch.set_what("weights");
  Client::Fetched fetched;
  const auto progress = ProgressOn(console, "fetching the weights");
  const auto waits = [console](int before) {
    console->Err(absl::StrCat("isthmus: the coordinator serves as many exports as it may; ", before,
                              before == 1 ? " is" : " are", " before this one\n"));
  };
  ModelSpec model = job->plan().job().model();
  const absl::Status status = WriteExport(
      options.dir, options.force, model,
      [&](const std::string& path) -> absl::Status {
        if (job->phases() > 0) {  // the checkpoint's shape may be that of another phase
          ASSIGN_OR_RETURN(const CheckpointState state,
                           FetchState(caller.client.get(), fetch, path + ".state"));
          fetch.set_step(state.step);
          if (state.job.has_value()) model = state.job->model();
        }
        ASSIGN_OR_RETURN(fetched, caller.client->FetchCheckpoint(fetch, path, progress, waits));
        return absl::OkStatus();
      },
      tokenizer->files);
  if (!status.ok()) return console->Fail(status);
  for (const LinkPlan& link : job->plan().links()) {
    if (link.forward().kind() != CodecSpec::AUTOENCODER) continue;
    console->Err(
        "isthmus: note: this model was trained with autoencoders at its boundaries, which a GPT-2 "
        "has not; without the autoencoders its loss is another one: train it on a little without "
        "them before you use it\n");
    break;
  }
  if (options.quiet) return kExitOk;
  if (options.json) {
    const std::string origin = tokenizer->origin.empty() ? "null" : JsonString(tokenizer->origin);
    console->Out(
        absl::StrCat("{\n  \"job_id\": ", JsonString(job->job_id()),
                     ",\n  \"step\": ", fetched.step, ",\n  \"dir\": ", JsonString(options.dir),
                     ",\n  \"bytes\": ", fetched.bytes, ",\n  \"tokenizer\": ", origin, "\n}\n"));
  } else {
    console->Out(absl::StrCat(
        "wrote ", options.dir, ": weights of ", Printable(job->job_id()), " at step ", fetched.step,
        " (", FormatBytes(static_cast<double>(fetched.bytes)), ") and config.json\n",
        tokenizer->note.empty() ? "" : absl::StrCat(Printable(tokenizer->note), "\n"),
        LoadWords(model, options.dir, !tokenizer->origin.empty())));
  }
  return kExitOk;
}

}  // namespace isthmus::cli
