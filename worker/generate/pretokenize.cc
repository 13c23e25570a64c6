#include "worker/generate/pretokenize.h"

#include <re2/re2.h>

#include <algorithm>
#include <string>

namespace isthmus::generate {
namespace {

// Unicode's White_Space; RE2's \s is ASCII alone.
#define BLANK \
  R"(\t-\r \x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})"
constexpr char kWord[] =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\p{L}\p{N})" BLANK R"(]+)";
constexpr char kBlanks[] = "[" BLANK "]+";
#undef BLANK

size_t LastCharacterBytes(absl::string_view text) {
  size_t bytes = 1;
  while (bytes < text.size() && (static_cast<unsigned char>(text[text.size() - bytes]) >> 6) == 2)
    ++bytes;
  return bytes;
}

size_t MatchedBytes(const re2::RE2& pattern, absl::string_view text) {
  re2::StringPiece match;
  const re2::StringPiece whole(text.data(), text.size());
  return pattern.Match(whole, 0, text.size(), re2::RE2::ANCHOR_START, &match, 1) ? match.size() : 0;
}

}  // namespace

bool IsUtf8(absl::string_view text) {
  static const re2::RE2 any(R"((?s).*)");
  return re2::RE2::FullMatch(re2::StringPiece(text.data(), text.size()), any);
}

// GPT-2's pattern ends with `\s+(?!\S)|\s+`: of several blanks before a word, the last one is not
// theirs.
std::vector<absl::string_view> SplitWords(absl::string_view text) {
  static const re2::RE2 word(kWord);
  static const re2::RE2 blanks(kBlanks);
  std::vector<absl::string_view> words;
  while (!text.empty()) {
    size_t bytes = MatchedBytes(word, text);
    if (bytes == 0) {
      bytes = MatchedBytes(blanks, text);
      const size_t last = bytes > 0 ? LastCharacterBytes(text.substr(0, bytes)) : 0;
      if (bytes < text.size() && bytes > last) bytes -= last;
      bytes = std::max<size_t>(bytes, 1);
    }
    words.push_back(text.substr(0, bytes));
    text.remove_prefix(bytes);
  }
  return words;
}

}  // namespace isthmus::generate
