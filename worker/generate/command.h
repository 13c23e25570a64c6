// The command line of `isthmus-generate`. Thread: one owner.
#ifndef ISTHMUS_WORKER_GENERATE_COMMAND_H_
#define ISTHMUS_WORKER_GENERATE_COMMAND_H_

#include <cstdio>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "worker/generate/decoder.h"
#include "worker/generate/model_dir.h"

namespace isthmus::generate {

// The real engine, or a fake one in tests; `threads` 0: all cores.
using DecoderFactory =
    std::function<absl::StatusOr<std::unique_ptr<Decoder>>(const ModelDir& dir, int threads)>;

// The exit code, one of those of `isthmus`. The text goes to `out` as it is made, errors to `err`.
int RunCommand(int argc, const char* const* argv, const DecoderFactory& make_decoder, FILE* out,
               FILE* err);

}  // namespace isthmus::generate

#endif  // ISTHMUS_WORKER_GENERATE_COMMAND_H_
