// The command line of `isthmus study ist-theory`. Thread: one owner.
#ifndef ISTHMUS_WORKER_STUDY_IST_COMMAND_H_
#define ISTHMUS_WORKER_STUDY_IST_COMMAND_H_

#include <cstdio>

namespace isthmus::study::ist {

inline constexpr char kTheoryCommand[] = "ist-theory";

// `argv[0]` is the command's name. The exit code: 0; 1 where a row misses its tolerance; 2 for
// wrong usage. The table or JSON goes to `out`.
int RunTheoryCommand(int argc, const char* const* argv, FILE* out, FILE* err);

}  // namespace isthmus::study::ist

#endif  // ISTHMUS_WORKER_STUDY_IST_COMMAND_H_
