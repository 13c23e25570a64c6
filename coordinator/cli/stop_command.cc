#include "coordinator/cli/stop_command.h"

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "coordinator/cli/exit_code.h"
#include "coordinator/cli/interruptible_client.h"
#include "coordinator/cli/view/json_out.h"
#include "coordinator/cli/view/render.h"
#include "coordinator/cli/view/summary.h"
#include "coordinator/cli/watching.h"

namespace isthmus::cli {
namespace {

std::string StateLine(const JobStatus& status) {
  return absl::StrCat(Printable(status.job_id()), " ", StateName(status.state()),
                      status.reason().empty() ? "" : ": ", Printable(status.reason()), "\n");
}

// Until the job has ended; what it waits for goes to err as it changes.
absl::Status AwaitEnd(InterruptibleClient* caller, double timeout_s, JobStatus* status,
                      Console* console) {
  FollowOptions follow;
  follow.job = status->job_id();
  follow.from_step = status->step();  // of no interest
  follow.until = SteadyNow() + absl::Seconds(timeout_s);
  std::string said = StateLine(*status);
  console->Err(said);
  return FollowJob(
      caller->client.get(), &caller->interrupt, follow,
      [&](const WatchReply& reply) {
        *status = reply.status();
        if (const std::string line = StateLine(*status); !IsEnd(status->state()) && line != said)
          console->Err(said = line);
      },
      [console](const std::string& text) { console->Err(absl::StrCat(text, "\n")); });
}

}  // namespace

int RunStop(const ClientOptions& client, const StopOptions& options, Console* console) {
  InterruptibleClient caller;
  const absl::Status opened = caller.Open(client);
  if (!opened.ok()) return console->Fail(opened);
  StopJobRequest request;
  request.set_job(options.job);
  request.set_now(options.now);
  absl::StatusOr<StopJobReply> reply = caller.client->Stop(request);
  if (!reply.ok()) return console->Fail(reply.status());
  JobStatus* status = reply->mutable_status();
  const bool waits = !options.no_wait && !IsEnd(status->state());
  const absl::Status ended =
      waits ? AwaitEnd(&caller, options.timeout_s, status, console) : absl::OkStatus();
  if (!ended.ok() && !absl::IsCancelled(ended) && !absl::IsDeadlineExceeded(ended))
    return console->Fail(ended);
  if (!ended.ok()) {
    console->Err(absl::StrCat(
        absl::IsCancelled(ended)
            ? "\nno longer waiting"
            : absl::StrCat("isthmus: it has not ended within ", options.timeout_s, " s"),
        "; it goes on stopping. Its end: isthmus watch ", Printable(status->job_id()), "\n"));
    return absl::IsCancelled(ended) ? kExitInterrupted : kExitNotNow;
  }
  console->Out(options.json ? ToJson(*reply, true) : StateLine(*status));
  return IsEnd(status->state()) && !EndedWell(*status) ? kExitJobNotDone : kExitOk;
}

int RunDrain(const ClientOptions& client, const std::string& node, bool undo, bool json,
             Console* console) {
  InterruptibleClient caller;
  const absl::Status opened = caller.Open(client);
  if (!opened.ok()) return console->Fail(opened);
  DrainRequest request;
  request.set_node(node);
  request.set_undo(undo);
  const absl::StatusOr<DrainReply> reply = caller.client->Drain(request);
  if (!reply.ok()) return console->Fail(reply.status());
  const std::string name = Printable(reply->node()), job = Printable(reply->job_id());
  std::string words = absl::StrCat(name, " gets jobs again\n");
  if (!undo) {
    words = absl::StrCat(name, " gets no job until `isthmus drain ", name, " --undo`",
                         job.empty() ? ""
                                     : absl::StrCat("; it leaves ", job,
                                                    " after a checkpoint: isthmus status ", job),
                         "\n");
    if (reply->usable() == 0)
      absl::StrAppend(&words,
                      "no daemon is left that gets jobs: they wait until one is there, or "
                      "`--undo`\n");
  }
  console->Out(json ? ToJson(*reply, true) : words);
  return kExitOk;
}

}  // namespace isthmus::cli
