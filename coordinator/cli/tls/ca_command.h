// `isthmus ca`: the authority of a cluster, and the certificates of its hosts and people. Thread:
// one owner.
#ifndef ISTHMUS_COORDINATOR_CLI_TLS_CA_COMMAND_H_
#define ISTHMUS_COORDINATOR_CLI_TLS_CA_COMMAND_H_

#include <string>

#include "coordinator/cli/tls/token_command.h"
#include "coordinator/cli/view/console.h"

namespace CLI {
class App;
}  // namespace CLI

namespace isthmus::cli {

struct CaOptions {
  std::string action;  // init | issue | list | revoke | token
  std::string name;    // of issue and revoke; of token: create | list | revoke
  std::string id;      // of token revoke
  std::string dir = "isthmus-ca";
  std::string role;  // of issue
  std::string out;   // of issue
  int days = 365;    // of issue
  TokenFlags token;  // of token create
};

void AddCaFlags(CLI::App* command, CaOptions* options);

// The help of one action, such as `isthmus ca issue --help`; empty: there is no such action.
std::string CaActionHelp(const std::string& action);

int RunCa(const CaOptions& options, bool json, Console* console);

}  // namespace isthmus::cli

#endif  // ISTHMUS_COORDINATOR_CLI_TLS_CA_COMMAND_H_
