// The tokenizer that goes with an exported model, so that `transformers` and `isthmus generate` can
// turn text into its tokens. Of byte data one that is made here; of tokens that of the model the
// job began from, or one the user names. Thread: pure but for reading files.
#ifndef ISTHMUS_COORDINATOR_CLI_MODEL_TOKENIZER_FILES_H_
#define ISTHMUS_COORDINATOR_CLI_MODEL_TOKENIZER_FILES_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "proto/job.pb.h"

namespace isthmus::cli {

struct TokenizerFiles {
  std::map<std::string, std::string> files;  // by name; generation_config.json is among them always
  std::string origin;                        // "bytes", a directory, or empty: no tokenizer
  std::string note;                          // for the user, in words
};

// `job` has its defaults; `asked`: the directory of --tokenizer, or empty. NotFound: no tokenizer
// in `asked`. Without one in the job's model.init_from the note says how to add it later.
absl::StatusOr<TokenizerFiles> FindTokenizer(const JobSpec& job, const std::string& asked);

// The files of a tokenizer whose ids are the byte values.
std::map<std::string, std::string> ByteTokenizer(int64_t context);

}  // namespace isthmus::cli

#endif  // ISTHMUS_COORDINATOR_CLI_MODEL_TOKENIZER_FILES_H_
