// What each command of `isthmus` does. Each returns an exit code (exit_code.h); errors go to the
// console's err. Thread: one owner.
#ifndef ISTHMUS_COORDINATOR_CLI_COMMANDS_H_
#define ISTHMUS_COORDINATOR_CLI_COMMANDS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "coordinator/cli/client.h"
#include "coordinator/cli/job/job_yaml.h"
#include "coordinator/cli/offline/offline_plan.h"
#include "coordinator/cli/view/console.h"

namespace isthmus::cli {

struct NodesOptions {
  bool json = false;
  int wait = 0;  // until so many daemons are alive and every link between them is measured
  double timeout_s = 120;  // of the wait
};
int RunNodes(const ClientOptions& client, const NodesOptions& options, Console* console);

struct PlanOptions {
  JobSource job_file;
  OfflineOptions offline;  // with links: a plan of hosts that need not be there
  bool compare = false;    // beside plans that others would make
  bool resume = false;
  std::optional<int64_t> step;  // with resume: from this checkpoint, not the newest
  bool json = false;
};
int RunPlan(const ClientOptions& client, const PlanOptions& options, Console* console);

struct SubmitOptions {
  JobSource job_file;
  bool watch = false;
  bool resume = false;
  std::optional<int64_t> step;  // with resume: from this checkpoint, not the newest
  bool accept_changes = false;  // with resume: another training than the one begun is wanted
  bool wait = false;
  bool json = false;
  std::string summary_file;  // written at the end of a watched job
};
int RunSubmit(const ClientOptions& client, const SubmitOptions& options, Console* console);

int RunList(const ClientOptions& client, bool json, Console* console);
int RunStatus(const ClientOptions& client, const std::string& job, bool json, Console* console);

struct WatchOptions {
  std::string job;
  bool json = false;
  std::string summary_file;
};
int RunWatch(const ClientOptions& client, const WatchOptions& options, Console* console);

struct LogsOptions {
  std::string job;
  bool csv = false;  // wins over json
  bool follow = false;
  bool json = false;
  int64_t from_step = 0;
};
int RunLogs(const ClientOptions& client, const LogsOptions& options, Console* console);

int RunRemove(const ClientOptions& client, const std::string& job, bool keep_checkpoints, bool json,
              Console* console);

struct CheckpointsOptions {
  std::string job;
  bool verify = false;  // read every file; 1 if one is damaged
  bool json = false;
};
int RunCheckpoints(const ClientOptions& client, const CheckpointsOptions& options,
                   Console* console);

struct ExportOptions {
  std::string job;
  std::string dir;
  int64_t step = -1;      // -1: the newest checkpoint
  std::string tokenizer;  // directory of the tokenizer to put beside the weights
  bool force = false;
  bool json = false;
  bool quiet = false;  // nothing on stdout
};
int RunExport(const ClientOptions& client, const ExportOptions& options, Console* console);

}  // namespace isthmus::cli

#endif  // ISTHMUS_COORDINATOR_CLI_COMMANDS_H_
