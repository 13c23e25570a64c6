// How GPT-2 cuts a text into words before it merges bytes: contractions, letters, digits and other
// signs, each with the blank before it, and runs of blanks. The only door to RE2. Thread: pure
// functions.
#ifndef ISTHMUS_WORKER_GENERATE_PRETOKENIZE_H_
#define ISTHMUS_WORKER_GENERATE_PRETOKENIZE_H_

#include <vector>

#include "absl/strings/string_view.h"

namespace isthmus::generate {

bool IsUtf8(absl::string_view text);

// Views into `text`, which is UTF-8; joined they are the text.
std::vector<absl::string_view> SplitWords(absl::string_view text);

}  // namespace isthmus::generate

#endif  // ISTHMUS_WORKER_GENERATE_PRETOKENIZE_H_
