#include "base/suggest.h"

#include <algorithm>
#include <array>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace isthmus {
namespace {

constexpr size_t kMaxWord = 64;

std::string Normal(absl::string_view word) {
  std::string out = absl::AsciiStrToLower(word.substr(0, kMaxWord));
  std::replace(out.begin(), out.end(), '-', '_');
  return out;
}

}  // namespace

int EditDistance(absl::string_view a, absl::string_view b) {
  a = a.substr(0, kMaxWord);
  b = b.substr(0, kMaxWord);
  std::array<std::array<int, kMaxWord + 1>, kMaxWord + 1> d;
  for (size_t i = 0; i <= a.size(); ++i) d[i][0] = static_cast<int>(i);
  for (size_t j = 0; j <= b.size(); ++j) d[0][j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      const int change = a[i - 1] == b[j - 1] ? 0 : 1;
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + change});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

std::string Nearest(absl::string_view word, const std::vector<std::string>& candidates) {
  const std::string wanted = Normal(word);
  std::string best;
  int best_distance = static_cast<int>(kMaxWord) + 1;
  for (const std::string& candidate : candidates) {
    const int distance = EditDistance(wanted, Normal(candidate));
    const int limit =
        std::max<int>(1, static_cast<int>(std::max(wanted.size(), candidate.size())) / 3);
    if (distance <= limit && distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

std::string DidYouMean(absl::string_view word, const std::vector<std::string>& candidates) {
  const std::string near = Nearest(word, candidates);
  return near.empty() ? "" : absl::StrCat("did you mean '", near, "'?");
}

}  // namespace isthmus
