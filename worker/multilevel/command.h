// The command line of `isthmus-multilevel`. Thread: one owner.
#ifndef ISTHMUS_WORKER_MULTILEVEL_COMMAND_H_
#define ISTHMUS_WORKER_MULTILEVEL_COMMAND_H_

#include <cstdio>

namespace isthmus::multilevel {

// The exit code, one of those of `isthmus`. What was written is told on `out`, errors on `err`.
int RunCommand(int argc, const char* const* argv, FILE* out, FILE* err);

}  // namespace isthmus::multilevel

#endif  // ISTHMUS_WORKER_MULTILEVEL_COMMAND_H_
