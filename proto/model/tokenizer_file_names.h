// The files of a tokenizer beside a model, as Hugging Face names them. Thread: values.
#ifndef ISTHMUS_PROTO_MODEL_TOKENIZER_FILE_NAMES_H_
#define ISTHMUS_PROTO_MODEL_TOKENIZER_FILE_NAMES_H_

#include <cstdint>

namespace isthmus {

constexpr const char* kTokenizerFileNames[] = {"tokenizer.json",
                                               "tokenizer_config.json",
                                               "special_tokens_map.json",
                                               "added_tokens.json",
                                               "vocab.json",
                                               "merges.txt"};
constexpr int64_t kMaxTokenizerBytes = 256 << 20;  // each of them

}  // namespace isthmus

#endif  // ISTHMUS_PROTO_MODEL_TOKENIZER_FILE_NAMES_H_
