// The command line of `isthmus-study`. Thread: one owner.
#ifndef ISTHMUS_WORKER_STUDY_COMMAND_H_
#define ISTHMUS_WORKER_STUDY_COMMAND_H_

#include <cstdio>
#include <functional>
#include <string>

#include "worker/session.h"
#include "worker/study/cell.h"

namespace isthmus::study {

// What trains: the real engine, or a fake one in tests.
struct Engine {
  // Stages on `device` with so many compute threads each.
  std::function<worker::StageFactory(const std::string& device, int threads)> stages;
};

// The exit code, one of those of `isthmus`. The table or JSON goes to `out`, progress and errors to
// `err`.
int RunCommand(int argc, const char* const* argv, const Engine& engine, FILE* out, FILE* err);

}  // namespace isthmus::study

#endif  // ISTHMUS_WORKER_STUDY_COMMAND_H_
