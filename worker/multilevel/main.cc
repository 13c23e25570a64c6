// isthmus-multilevel: the operators of multi-level training on directories. See command.h.
#include <cstdio>

#include "base/log.h"
#include "worker/multilevel/command.h"

int main(int argc, char** argv) {
  isthmus::InitLogging({"isthmus-multilevel", isthmus::LogLevel::kWarning});
  return isthmus::multilevel::RunCommand(argc, argv, stdout, stderr);
}
