// `isthmus ca token`: tokens by which hosts join. Thread: one owner.
#ifndef ISTHMUS_COORDINATOR_CLI_TLS_TOKEN_COMMAND_H_
#define ISTHMUS_COORDINATOR_CLI_TLS_TOKEN_COMMAND_H_

#include <string>
#include <vector>

#include "coordinator/cli/view/console.h"

namespace CLI {
class App;
}  // namespace CLI

namespace isthmus::cli {

struct TokenFlags {
  std::vector<std::string> addresses;
  std::string names;  // empty: node-*
  int uses = 1;
  std::string life = "24h";
  std::string certificate_life = "7d";
};

// `prefix`: "of token create: " where the other actions' options stand beside them.
void AddTokenFlags(CLI::App* command, const std::string& prefix, TokenFlags* flags);

// `action`: create | list | revoke; `id`: of revoke; `role`: "" for worker; `dir`: the authority's.
int RunToken(const std::string& action, const std::string& id, const std::string& role,
             const std::string& dir, const TokenFlags& flags, bool json, Console* console);

}  // namespace isthmus::cli

#endif  // ISTHMUS_COORDINATOR_CLI_TLS_TOKEN_COMMAND_H_
