// `isthmus generate`: runs the program isthmus-generate, which the command line itself may not
// contain (no worker here), on an export directory or on a job's checkpoint, exported to a
// temporary directory first. Thread: the main thread.
#ifndef ISTHMUS_COORDINATOR_CLI_MODEL_GENERATE_RUN_H_
#define ISTHMUS_COORDINATOR_CLI_MODEL_GENERATE_RUN_H_

#include <functional>
#include <string>
#include <vector>

#include "coordinator/cli/client.h"
#include "coordinator/cli/view/console.h"

namespace CLI {
class Option;
}

namespace isthmus::cli {

struct GenerateRunOptions {
  std::string target;  // a directory with a config.json, else a job
  std::string prompt;
  std::string tokenizer;               // --tokenizer of the export; a job's alone
  int64_t step = -1;                   // of the checkpoint; a job's alone
  std::vector<std::string> arguments;  // for isthmus-generate: "--tokens", "100", ...
};

// Options that are passed on; isthmus-generate has their defaults.
struct GenerateFlag {
  std::string name;
  std::string value;  // empty: it takes none
  std::string what;
  // Refuses what isthmus-generate would, before a model is fetched for it; may be null.
  std::function<void(CLI::Option*)> judge = nullptr;
};
std::vector<GenerateFlag> GenerateFlags();

// The exit code of isthmus-generate, or of the export.
int RunGenerate(const ClientOptions& client, const GenerateRunOptions& options, Console* console);

}  // namespace isthmus::cli

#endif  // ISTHMUS_COORDINATOR_CLI_MODEL_GENERATE_RUN_H_
