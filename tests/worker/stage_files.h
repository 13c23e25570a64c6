// What a stage stores as whole safetensors files in memory, and back. Thread: the stage's.
#ifndef ISTHMUS_TESTS_WORKER_STAGE_FILES_H_
#define ISTHMUS_TESTS_WORKER_STAGE_FILES_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "base/file/byte_source.h"
#include "base/status.h"
#include "worker/checkpoint/tensor_file.h"
#include "worker/stage.h"

namespace isthmus::worker {

// Empty: there are none.
inline absl::StatusOr<std::string> FileOf(Stage& stage, const TakesTensor& takes) {
  ASSIGN_OR_RETURN(const auto file, StageFile::Make(&stage, takes));
  if (file == nullptr) return std::string();
  return ReadAll(*file, int64_t{1} << 40);
}

inline std::string WeightsOf(Stage& stage) {
  return FileOf(stage, [](const StageTensor& t) { return t.weight() && !t.copy; }).value();
}
inline std::string OptimizerOf(Stage& stage) {
  return FileOf(stage, [](const StageTensor& t) { return !t.weight() && !t.copy; }).value();
}
inline std::string TiedOf(Stage& stage) {
  return FileOf(stage, [](const StageTensor& t) { return t.copy; }).value();
}

inline absl::Status TakeWeights(const std::string& bytes, Stage* stage) {
  const MemorySource file(bytes);
  return FillStage(
      {&file}, [](const StageTensor& t) { return t.weight(); }, "weights", stage);
}
inline absl::Status TakeOptimizer(const std::string& bytes, Stage* stage) {
  const MemorySource file(bytes);
  return FillStage(
      {&file}, [](const StageTensor& t) { return !t.weight(); }, "optimizer state", stage);
}

}  // namespace isthmus::worker

#endif  // ISTHMUS_TESTS_WORKER_STAGE_FILES_H_
