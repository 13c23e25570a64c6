// Writes a checkpoint as one directory that `transformers` can load: model.safetensors and
// config.json. Atomically: everything is written beside DIR first and renamed in one step, so DIR
// is either as before or whole. Thread: one owner.
#ifndef ISTHMUS_COORDINATOR_CLI_MODEL_EXPORT_DIR_H_
#define ISTHMUS_COORDINATOR_CLI_MODEL_EXPORT_DIR_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/job.pb.h"

namespace isthmus::cli {

// Makes the directory. `fetch` writes the merged safetensors file to the path it gets; `model` is
// read after it.
// `more_files` by name: a tokenizer. InvalidArgument: DIR exists and is not empty (without
// `force`); with it, DIR is replaced.
absl::Status WriteExport(const std::string& dir, bool force, const ModelSpec& model,
                         const std::function<absl::Status(const std::string& path)>& fetch,
                         const std::map<std::string, std::string>& more_files = {});

// How to load what was exported to `dir`, and to try it where there is a tokenizer: lines.
std::string LoadWords(const ModelSpec& model, const std::string& dir, bool has_tokenizer);

// Sets "__metadata__": {"format": "pt"} in the header, which `transformers` asks for; the data
// stays as it is. Checks that every offset lies in the file.
absl::Status MarkForTransformers(const std::string& path);

constexpr int64_t kMaxHeaderBytes = 100 << 20;

}  // namespace isthmus::cli

#endif  // ISTHMUS_COORDINATOR_CLI_MODEL_EXPORT_DIR_H_
