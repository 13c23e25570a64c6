// A run of the emulator from start to end: network up, ready, COMMAND or signals, everything down.
//
// Thread: takes over the process's main thread; no other thread may run (it forks, and takes the
// signals).
#ifndef ISTHMUS_DEPLOY_TESTNET_SERVE_H_
#define ISTHMUS_DEPLOY_TESTNET_SERVE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "deploy/testnet/emulator.h"
#include "deploy/testnet/link_table.h"

namespace isthmus::testnet {

struct ServeOptions {
  LinkTable table;
  EmulatorOptions emulator;
  std::string run_dir;               // "": a temporary one
  std::vector<std::string> command;  // empty: serve until SIGINT or SIGTERM
};

// The exit code: COMMAND's (128 + the signal that killed it, 126 or 127 where it can't be started),
// or 0.
absl::StatusOr<int> Serve(const ServeOptions& options);

}  // namespace isthmus::testnet

#endif  // ISTHMUS_DEPLOY_TESTNET_SERVE_H_
