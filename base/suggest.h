// The nearest valid word, for error messages. Thread: pure functions.
#ifndef ISTHMUS_BASE_SUGGEST_H_
#define ISTHMUS_BASE_SUGGEST_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace isthmus {

// Insertions, deletions, substitutions and swaps of neighbours that turn `a` into `b`. Inputs are
// cut at 64 bytes.
int EditDistance(absl::string_view a, absl::string_view b);

// The candidate nearest to `word` ('-' and '_', upper and lower case count as alike); "" if none is
// near enough (a third of its length, at least 1).
std::string Nearest(absl::string_view word, const std::vector<std::string>& candidates);

// "did you mean 'steps'?", or "" where nothing is near enough.
std::string DidYouMean(absl::string_view word, const std::vector<std::string>& candidates);

}  // namespace isthmus

#endif  // ISTHMUS_BASE_SUGGEST_H_
