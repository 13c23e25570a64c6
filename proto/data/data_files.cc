#include "proto/data/data_files.h"

#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "proto/job/field_error.h"

namespace isthmus {
namespace {

int64_t Samples(int64_t tokens, const SampleShape& shape) {
  return tokens < shape.ids ? 0 : (tokens - shape.ids) / shape.stride + 1;
}

}  // namespace

bool IsPlainFormat(absl::string_view format) {
  return format == kFormatBytes || format == kFormatUint16 || format == kFormatUint32 ||
         format == kFormatInt64;
}

int64_t TokenBytes(absl::string_view format) {
  return format == kFormatUint16 ? 2 : format == kFormatUint32 ? 4 : 0;
}

std::string TokenWords(int64_t id) {
  const int64_t negative = id - (int64_t{1} << 32);
  return absl::StrCat("token ", id,
                      id > INT32_MAX ? absl::StrCat(" (", negative, " with a sign)") : "");
}

std::string NormalDataPath(absl::string_view path) {
  std::vector<absl::string_view> parts;
  for (absl::string_view part : absl::StrSplit(path, '/')) {
    if (!part.empty() && part != ".") parts.push_back(part);
  }
  return absl::StrJoin(parts, "/");
}

absl::Status CheckDataPath(absl::string_view path) {
  const char* must = nullptr;
  if (path.empty()) {
    must = "a file or directory under each daemon's --data-dir";
  } else if (absl::StrContains(path, '\0')) {
    must = "a path, which holds no NUL character";
  } else if (path[0] == '/') {
    must = "relative to each daemon's --data-dir, without a '/' before it";
  } else {
    for (absl::string_view part : absl::StrSplit(path, '/')) {
      if (part == "..") must = "inside each daemon's --data-dir; remove '..'";
    }
  }
  if (must == nullptr) return absl::OkStatus();
  return NotAllowed("data.path", absl::StrReplaceAll(path, {{absl::string_view("\0", 1), "\\0"}}),
                    must);
}

bool IsShard(absl::string_view name) { return absl::EndsWith(name, ".bin"); }

bool IsValidationShard(absl::string_view name) {
  if (!absl::ConsumeSuffix(&name, ".bin")) return false;
  for (absl::string_view word :
       absl::StrSplit(absl::AsciiStrToLower(name), absl::ByAnyChar("_-. 0123456789"))) {
    if (word == "val" || word == "valid" || word == "validation") return true;
  }
  return false;
}

SampleCounts CutSamples(int64_t tokens, const SampleShape& shape, double validation_share) {
  const int64_t samples = Samples(tokens, shape);
  SampleCounts counts;
  counts.validation = static_cast<int64_t>(static_cast<double>(samples) * validation_share);
  counts.train = samples - counts.validation;
  return counts;
}

SampleCounts CutOwnValidation(int64_t train_tokens, int64_t validation_tokens,
                              const SampleShape& shape) {
  return {Samples(train_tokens, shape), Samples(validation_tokens, shape)};
}

std::string NoWholeRows(int64_t tokens, const SampleShape& shape) {
  if (!shape.rows() || tokens % shape.stride == 0) return "";
  return absl::StrCat("it has ", tokens, " ids, no whole number of rows of ", shape.stride,
                      ", which are model.inputs values and a class each");
}

bool IsOfIds(absl::string_view format) { return format == "tokens" || format == "rows"; }

}  // namespace isthmus
