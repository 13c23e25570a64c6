// Byte-level BPE, the tokenizer of GPT-2, read from the files that Hugging Face writes:
// tokenizer.json, or vocab.json with merges.txt. And that of byte data: the token is the byte.
// Thread: const methods from any thread.
#ifndef ISTHMUS_WORKER_GENERATE_TOKENIZER_H_
#define ISTHMUS_WORKER_GENERATE_TOKENIZER_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace isthmus::generate {

class Tokenizer {
 public:
  // Ids 0 to 255 are the bytes.
  static Tokenizer OfBytes();
  // Of the files in `dir`; without any of them that of bytes, where `vocabulary` is 256. NotFound:
  // neither. InvalidArgument: files of another kind of tokenizer, or damaged ones.
  static absl::StatusOr<Tokenizer> Read(const std::string& dir, int64_t vocabulary);
  static absl::StatusOr<Tokenizer> FromJson(absl::string_view tokenizer_json);
  static absl::StatusOr<Tokenizer> FromVocabulary(absl::string_view vocab_json,
                                                  absl::string_view merges_txt);

  // InvalidArgument: the text is not UTF-8, or has a byte that no token stands for.
  absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view text) const;
  // Its bytes, which may be a part of a character; empty for an id that is no token.
  std::string Decode(int32_t id) const;
  // One more than the largest id.
  int64_t size() const;

 private:
  struct Merge {
    int32_t rank;
    int32_t id;
  };
  absl::Status AddToken(const std::string& written, int64_t id);
  absl::Status AddMerge(const std::string& left, const std::string& right);
  absl::Status EncodePlain(absl::string_view text, std::vector<int32_t>* out) const;
  absl::Status EncodeWord(absl::string_view word, std::vector<int32_t>* out) const;

  std::unordered_map<std::string, int32_t> ids_;  // by the token's bytes
  std::unordered_map<int32_t, std::string> tokens_;
  std::unordered_map<uint64_t, Merge> merges_;  // by the ids of both halves
  std::map<std::string, int32_t> added_;        // "<|endoftext|>" and its like, found as they stand
  bool words_ = true;                           // cut into words before merging
  bool prefix_space_ = false;
};

}  // namespace isthmus::generate

#endif  // ISTHMUS_WORKER_GENERATE_TOKENIZER_H_
