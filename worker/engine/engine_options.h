// Where a stage computes. Thread: a value.
#ifndef ISTHMUS_WORKER_ENGINE_ENGINE_OPTIONS_H_
#define ISTHMUS_WORKER_ENGINE_ENGINE_OPTIONS_H_

#include <string>

namespace isthmus::engine {

struct EngineOptions {
  std::string device = "cpu";  // cpu | cuda:N
  int threads = 0;             // of the whole process; 0: LibTorch's choice (all cores)
  // Tests of what a stage does on a GPU, where there is none: its precision and its memory on the
  // CPU.
  bool as_on_gpu = false;
};

}  // namespace isthmus::engine

#endif  // ISTHMUS_WORKER_ENGINE_ENGINE_OPTIONS_H_
