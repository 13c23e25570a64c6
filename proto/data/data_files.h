// What the files under a data directory are to a job: the same to the daemon that lists them, to
// the planner that counts samples by the list, and to the session that reads them. Thread: pure
// functions.
#ifndef ISTHMUS_PROTO_DATA_DATA_FILES_H_
#define ISTHMUS_PROTO_DATA_DATA_FILES_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace isthmus {

constexpr int kMaxDataFiles = 256;           // that a daemon lists
constexpr int64_t kMaxVocabulary = 1 << 20;  // token ids are below

// DataFile.format. Others name what can't be read as text nor as token ids: gzip, numpy, ...
constexpr char kFormatBytes[] = "bytes";
constexpr char kFormatUint16[] = "uint16";  // these two are the token ids that are read
constexpr char kFormatUint32[] = "uint32";
constexpr char kFormatInt64[] = "int64";
constexpr char kFormatUnreadable[] = "unreadable";
bool IsPlainFormat(absl::string_view format);
// Of one of the token ids that are read; 0: `format` is none of these.
int64_t TokenBytes(absl::string_view format);
// "token 50257", and what a mark of padding was before it was read without a sign: "token
// 4294967295 (-1 with a sign)".
std::string TokenWords(int64_t id);

// "./a//b/" is "a/b"; the data directory itself is "".
std::string NormalDataPath(absl::string_view path);

// A job's data.path: a file or directory below each daemon's data directory. Job files come from
// elsewhere: they may not name what lies outside. (Symbolic links in it are its owner's choice.)
absl::Status CheckDataPath(absl::string_view path);

bool IsShard(absl::string_view name);  // by its ending, .bin

// A shard that one of its name's words calls val, valid or validation (nanoGPT's val.bin, llm.c's
// fineweb_val_000000.bin): in a directory of shards these are the validation set.
bool IsValidationShard(absl::string_view name);

// How samples lie in the data: each has `ids` of them, and begins `stride` after the one before.
struct SampleShape {
  int64_t ids = 0, stride = 0;

  // Sample i of a text covers tokens [i * context, (i + 1) * context], its targets shifted by one.
  static SampleShape OfText(int64_t context) { return {context + 1, context}; }
  // A row: its values, then its class.
  static SampleShape OfRows(int64_t inputs) { return {inputs + 1, inputs + 1}; }
  bool rows() const { return ids == stride; }
};

struct SampleCounts {
  int64_t train = 0;
  int64_t validation = 0;
};
// The last `validation_share` of the samples are for validation.
SampleCounts CutSamples(int64_t tokens, const SampleShape& shape, double validation_share);
// Validation has its own tokens.
SampleCounts CutOwnValidation(int64_t train_tokens, int64_t validation_tokens,
                              const SampleShape& shape);

// Why `tokens` of a file are no rows; empty: they are.
std::string NoWholeRows(int64_t tokens, const SampleShape& shape);

// data.format says that the files are shards of ids, as "rows" are.
bool IsOfIds(absl::string_view format);

}  // namespace isthmus

#endif  // ISTHMUS_PROTO_DATA_DATA_FILES_H_
