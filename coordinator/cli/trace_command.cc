#include "coordinator/cli/trace_command.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file/durable_file.h"
#include "base/status.h"
#include "coordinator/cli/exit_code.h"
#include "coordinator/cli/interruptible_client.h"
#include "coordinator/cli/view/chrome_trace.h"
#include "coordinator/cli/view/render.h"

namespace isthmus::cli {
namespace {

absl::Status CheckFree(const std::string& path, bool force) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return absl::OkStatus();
  if (std::filesystem::is_directory(path, error))
    return absl::InvalidArgumentError(absl::StrCat(path, " is a directory"));
  if (force) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(path, " exists; --force replaces it, --output FILE writes another one"));
}

std::string ClockWords(const TraceJobReply& reply) {
  int64_t error_ns = 0;
  for (const RankClock& clock : reply.clocks())
    error_ns = std::max(error_ns, clock.known() ? clock.error_ns() : 0);
  return absl::StrCat("clocks agree to ", FormatSeconds(1e-9 * static_cast<double>(error_ns)));
}

}  // namespace

int RunTrace(const ClientOptions& client, const TraceOptions& options, bool json,
             Console* console) {
  if (!options.output.empty()) {  // before steps are traced in vain
    const absl::Status free = CheckFree(options.output, options.force);
    if (!free.ok()) return console->Fail(free);
  }
  InterruptibleClient caller;
  const absl::Status opened = caller.Open(client);
  if (!opened.ok()) return console->Fail(opened);
  TraceJobRequest request;
  request.set_job(options.job);
  request.set_steps(options.steps);
  const absl::StatusOr<TraceJobReply> reply = caller.client->Trace(request);
  if (!reply.ok()) return console->Fail(reply.status());
  const std::string file =
      options.output.empty() ? absl::StrCat(reply->plan().job_id(), "-trace.json") : options.output;
  absl::Status written = CheckFree(file, options.force);
  if (written.ok()) written = WriteFileDurably(file, ChromeTrace(*reply));
  if (!written.ok()) return console->Fail(written);
  const std::vector<std::string> faults = TraceFaults(*reply, options.steps);
  for (const std::string& fault : faults)
    console->Err(absl::StrCat("warning: ", Printable(fault), "\n"));
  std::set<int64_t> steps;
  for (const StepTrace& trace : reply->traces()) steps.insert(trace.step() + 1);
  if (json) {
    console->Out(TraceSummaryJson(*reply, file));
  } else {
    console->Out(Printable(TraceSummary(*reply)));
    console->Out(absl::StrCat("wrote ", Printable(file), ": ",
                              steps.size() == 1
                                  ? absl::StrCat("step ", *steps.begin())
                                  : absl::StrCat("steps ", *steps.begin(), " to ", *steps.rbegin()),
                              " of ", Printable(reply->plan().job_id()), "; ", ClockWords(*reply),
                              "\nopen it: https://ui.perfetto.dev, or chrome://tracing\n"));
  }
  return faults.empty() ? kExitOk : kExitFailure;
}

}  // namespace isthmus::cli
