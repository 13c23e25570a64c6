// isthmus: what a user types. See app.h.

#include <cstdio>

#include "base/rpc/library_logs.h"
#include "coordinator/cli/app.h"
#include "coordinator/cli/view/console.h"

int main(int argc, char** argv) {
  isthmus::rpc::RouteLibraryLogs();
  isthmus::cli::Console console(stdout, stderr);
  return isthmus::cli::RunApp(argc, argv, &console);
}
