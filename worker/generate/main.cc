// isthmus-generate: continues a text with an exported model. See command.h.
#include <cstdio>

#include "base/log.h"
#include "worker/engine/gpt2_decoder.h"
#include "worker/generate/command.h"

int main(int argc, char** argv) {
  isthmus::InitLogging({"isthmus-generate", isthmus::LogLevel::kWarning});
  const auto make = [](const isthmus::generate::ModelDir& dir, int threads) {
    return isthmus::engine::MakeGpt2Decoder(dir.config.model, *dir.weights, {"cpu", threads});
  };
  return isthmus::generate::RunCommand(argc, argv, make, stdout, stderr);
}
