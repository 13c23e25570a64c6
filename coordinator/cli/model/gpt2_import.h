// Reads a GPT-2 as Hugging Face ships it (config.json with model.safetensors, or shards and their
// index) as the start of a job. Checked against the job's model: layers, width, heads, vocabulary,
// activation, and whatever else of config.json makes it another function; every error is listed. A
// job may have a shorter context: the first positions are kept. Thread: pure but for reading files.
// Limits: kMaxShards files. Memory does not grow with the model: its files are read in pieces.
#ifndef ISTHMUS_COORDINATOR_CLI_MODEL_GPT2_IMPORT_H_
#define ISTHMUS_COORDINATOR_CLI_MODEL_GPT2_IMPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/cli/model/weight_stream.h"
#include "proto/job.pb.h"

namespace isthmus::cli {

constexpr int kMaxShards = 100;

struct ImportedGpt2 {
  WeightStream weights;     // one safetensors file: F32, names that start with "transformer."
  double norm_epsilon = 0;  // of its layer norms: what the job has to train with
  std::vector<std::string> warnings;
};

// NotFound or InvalidArgument; the message names the directory and each difference.
absl::StatusOr<ImportedGpt2> ReadGpt2(const std::string& dir, const ModelSpec& model);

}  // namespace isthmus::cli

#endif  // ISTHMUS_COORDINATOR_CLI_MODEL_GPT2_IMPORT_H_
