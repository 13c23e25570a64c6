// isthmus-study: what codecs cost and save, trained side by side in one process. See command.h.
#include <cstdio>
#include <string>

#include "base/log.h"
#include "worker/engine/gpt2_stage.h"
#include "worker/study/command.h"

int main(int argc, char** argv) {
  isthmus::InitLogging({"isthmus-study", isthmus::LogLevel::kWarning});
  isthmus::study::Engine engine;
  engine.stages = [](const std::string& device, int threads) -> isthmus::worker::StageFactory {
    const isthmus::engine::EngineOptions options{device, threads};
    return [options](const isthmus::Plan& plan, int stage) {
      return isthmus::engine::MakeGpt2Stage(plan, stage, options);
    };
  };
  return isthmus::study::RunCommand(argc, argv, engine, stdout, stderr);
}
