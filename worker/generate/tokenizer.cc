#include "worker/generate/tokenizer.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/byte_alphabet.h"
#include "base/file/read_file.h"
#include "base/status.h"
#include "worker/generate/pretokenize.h"

namespace isthmus::generate {
namespace {

using nlohmann::json;

constexpr int kBytes = 256;
constexpr int64_t kMaxTokens = 1 << 24;
constexpr int64_t kMaxFileBytes = 256 << 20;

// The bytes of a token as GPT-2 writes it.
absl::StatusOr<std::string> BytesOf(const std::string& written) {
  static const std::map<int, char> bytes = [] {
    std::map<int, char> out;
    const std::array<int, kBytes> table = ByteAlphabet();
    for (int b = 0; b < kBytes; ++b) out[table[b]] = static_cast<char>(b);
    return out;
  }();
  std::string out;
  for (size_t i = 0; i < written.size(); ++i) {
    int character = static_cast<unsigned char>(written[i]);
    if (character >= 0x80 && i + 1 < written.size())  // all lie below U+0800: two bytes
      character = (character & 0x1f) << 6 | (static_cast<unsigned char>(written[++i]) & 0x3f);
    const auto byte = bytes.find(character);
    if (byte == bytes.end())
      return absl::InvalidArgumentError(
          absl::StrCat("token '", written,
                       "' has a character that stands for no byte: this is no "
                       "byte-level tokenizer as GPT-2 has it"));
    out += byte->second;
  }
  return out;
}

// `value` of a section that may be null or missing.
bool Set(const json& section, const char* key) {
  const auto it = section.find(key);
  return it != section.end() && !it->is_null() && *it != json(false) && *it != json("");
}

absl::Status OtherKind(absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat(what,
                   "; only byte-level BPE, the tokenizer of GPT-2, is read. Encode the prompt with "
                   "transformers instead: pipeline(\"text-generation\", DIR)"));
}

absl::Status CheckKind(const json& file) {
  if (!file.is_object() || !file.contains("model") || !file["model"].is_object())
    return OtherKind("it has no section 'model'");
  const json& model = file["model"];
  if (model.value("type", json("BPE")) != json("BPE"))
    return OtherKind(absl::StrCat("its model is ", model["type"].dump()));
  for (const char* key : {"byte_fallback", "continuing_subword_prefix", "end_of_word_suffix"}) {
    if (Set(model, key)) return OtherKind(absl::StrCat("its model has ", key));
  }
  if (Set(file, "normalizer")) return OtherKind("it has a normalizer");
  const auto cut = file.find("pre_tokenizer");
  if (cut == file.end() || !cut->is_object() || cut->value("type", json()) != json("ByteLevel"))
    return OtherKind("its pre_tokenizer is not ByteLevel");
  return absl::OkStatus();
}

uint64_t Key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
}

}  // namespace

Tokenizer Tokenizer::OfBytes() {
  Tokenizer t;
  for (int b = 0; b < kBytes; ++b) {
    t.ids_[std::string(1, static_cast<char>(b))] = b;
    t.tokens_[b] = std::string(1, static_cast<char>(b));
  }
  t.words_ = false;
  return t;
}

absl::Status Tokenizer::AddToken(const std::string& written, int64_t id) {
  if (id < 0 || id >= kMaxTokens)
    return absl::InvalidArgumentError(absl::StrCat("token '", written, "' has the id ", id));
  absl::StatusOr<std::string> bytes = BytesOf(written);
  // Of a special token that stands among the others the text is taken as it is.
  const std::string text = bytes.ok() ? *bytes : written;
  if (!bytes.ok() && added_.count(written) == 0) return bytes.status();
  ids_[text] = static_cast<int32_t>(id);
  tokens_[static_cast<int32_t>(id)] = text;
  return absl::OkStatus();
}

absl::Status Tokenizer::AddMerge(const std::string& left, const std::string& right) {
  ASSIGN_OR_RETURN(const std::string a, BytesOf(left));
  ASSIGN_OR_RETURN(const std::string b, BytesOf(right));
  const auto first = ids_.find(a), second = ids_.find(b), both = ids_.find(a + b);
  if (first == ids_.end() || second == ids_.end() || both == ids_.end())
    return absl::InvalidArgumentError(absl::StrCat(
        "the merge '", left, " ", right, "' has a part or a result that is not in the vocabulary"));
  merges_.emplace(Key(first->second, second->second),
                  Merge{static_cast<int32_t>(merges_.size()), both->second});
  return absl::OkStatus();
}

absl::StatusOr<Tokenizer> Tokenizer::FromJson(absl::string_view tokenizer_json) {
  const json file = json::parse(tokenizer_json.begin(), tokenizer_json.end(), nullptr, false);
  RETURN_IF_ERROR(CheckKind(file));
  Tokenizer t;
  const json& cut = file["pre_tokenizer"];
  t.prefix_space_ = Set(cut, "add_prefix_space");
  t.words_ = !cut.contains("use_regex") || Set(cut, "use_regex");
  for (const json& token : file.value("added_tokens", json::array())) {
    if (!token.is_object() || !token.value("content", json()).is_string() ||
        !token.value("id", json()).is_number_unsigned() || token["content"] == "")
      return absl::InvalidArgumentError("an entry of added_tokens has no content or no id");
    t.added_[token["content"].get<std::string>()] = token["id"].get<int32_t>();
  }
  const json& model = file["model"];
  if (!model.contains("vocab") || !model["vocab"].is_object() || model["vocab"].empty())
    return absl::InvalidArgumentError("it has no model.vocab");
  for (const auto& item : model["vocab"].items()) {
    if (!item.value().is_number_unsigned())
      return absl::InvalidArgumentError(absl::StrCat("token '", item.key(), "' has no id"));
    RETURN_IF_ERROR(t.AddToken(item.key(), item.value().get<int64_t>()));
  }
  for (const auto& [content, id] : t.added_) t.tokens_[id] = content;
  for (const json& merge : model.value("merges", json::array())) {
    std::vector<std::string> parts;  // "a b", or since 2024 ["a", "b"]
    if (merge.is_string()) {
      parts = absl::StrSplit(merge.get_ref<const std::string&>(), ' ');
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
               merge[1].is_string()) {
      parts = merge.get<std::vector<std::string>>();
    }
    if (parts.size() != 2)
      return absl::InvalidArgumentError(absl::StrCat("the merge ", merge.dump(), " is no pair"));
    RETURN_IF_ERROR(t.AddMerge(parts[0], parts[1]));
  }
  return t;
}

absl::StatusOr<Tokenizer> Tokenizer::FromVocabulary(absl::string_view vocab_json,
                                                    absl::string_view merges_txt) {
  constexpr char kEndOfText[] = "<|endoftext|>";
  const json vocabulary = json::parse(vocab_json.begin(), vocab_json.end(), nullptr, false);
  if (!vocabulary.is_object() || vocabulary.empty())
    return absl::InvalidArgumentError("vocab.json is not a JSON object of tokens and ids");
  Tokenizer t;
  for (const auto& item : vocabulary.items()) {
    if (!item.value().is_number_unsigned())
      return absl::InvalidArgumentError(absl::StrCat("token '", item.key(), "' has no id"));
    if (item.key() == kEndOfText) t.added_[kEndOfText] = item.value().get<int32_t>();
    RETURN_IF_ERROR(t.AddToken(item.key(), item.value().get<int64_t>()));
  }
  for (absl::string_view line : absl::StrSplit(merges_txt, '\n')) {
    if (line.empty() || absl::StartsWith(line, "#version")) continue;
    const std::vector<std::string> parts = absl::StrSplit(line, ' ');
    if (parts.size() != 2)
      return absl::InvalidArgumentError(absl::StrCat("merges.txt: '", line, "' is no pair"));
    RETURN_IF_ERROR(t.AddMerge(parts[0], parts[1]));
  }
  return t;
}

absl::StatusOr<Tokenizer> Tokenizer::Read(const std::string& dir, int64_t vocabulary) {
  const auto there = [&](const char* name) {
    std::error_code error;
    return std::filesystem::exists(dir + "/" + name, error);
  };
  absl::StatusOr<Tokenizer> t = OfBytes();
  if (there("tokenizer.json")) {
    ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(dir + "/tokenizer.json", kMaxFileBytes));
    t = FromJson(text);
    if (!t.ok()) return Annotate(t.status(), dir + "/tokenizer.json");
  } else if (there("vocab.json") && there("merges.txt")) {
    ASSIGN_OR_RETURN(const std::string vocab, ReadSmallFile(dir + "/vocab.json", kMaxFileBytes));
    ASSIGN_OR_RETURN(const std::string merges, ReadSmallFile(dir + "/merges.txt", kMaxFileBytes));
    t = FromVocabulary(vocab, merges);
    if (!t.ok()) return Annotate(t.status(), dir);
  } else if (vocabulary != kBytes) {
    return absl::NotFoundError(
        absl::StrCat(dir,
                     " has no tokenizer (tokenizer.json, or vocab.json and merges.txt), and its "
                     "vocabulary of ",
                     vocabulary,
                     " is not that of bytes. Name the tokenizer's directory: `isthmus generate JOB "
                     "--tokenizer DIR`, or `isthmus export` with it; or copy its files there"));
  }
  if (t->size() > vocabulary)
    return absl::InvalidArgumentError(
        absl::StrCat("the tokenizer in ", dir, " has ids up to ", t->size() - 1,
                     ", but the model's vocabulary is ", vocabulary, ": it is another model's"));
  return t;
}

absl::Status Tokenizer::EncodeWord(absl::string_view word, std::vector<int32_t>* out) const {
  std::vector<int32_t> parts;
  for (const char byte : word) {
    const auto id = ids_.find(std::string(1, byte));
    if (id == ids_.end())
      return absl::InvalidArgumentError(absl::StrFormat(
          "the tokenizer has no token for the byte 0x%02x", static_cast<unsigned char>(byte)));
    parts.push_back(id->second);
  }
  while (parts.size() > 1) {
    Merge best{std::numeric_limits<int32_t>::max(), -1};
    size_t at = 0;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto merge = merges_.find(Key(parts[i], parts[i + 1]));
      if (merge == merges_.end() || merge->second.rank >= best.rank) continue;
      best = merge->second;
      at = i;
    }
    if (best.id < 0) break;
    parts[at] = best.id;
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
  out->insert(out->end(), parts.begin(), parts.end());
  return absl::OkStatus();
}

absl::Status Tokenizer::EncodePlain(absl::string_view text, std::vector<int32_t>* out) const {
  const std::string spaced = prefix_space_ && !text.empty() && text[0] != ' '
                                 ? absl::StrCat(" ", text)
                                 : std::string(text);
  const absl::string_view view = spaced;
  const std::vector<absl::string_view> words =
      words_ ? SplitWords(view) : std::vector<absl::string_view>{view};
  for (const absl::string_view word : words) RETURN_IF_ERROR(EncodeWord(word, out));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::Encode(absl::string_view text) const {
  if (words_ && !IsUtf8(text)) return absl::InvalidArgumentError("the prompt is not UTF-8");
  std::vector<int32_t> out;
  while (!text.empty()) {
    size_t at = absl::string_view::npos;
    const std::pair<const std::string, int32_t>* found = nullptr;
    for (const auto& token : added_) {  // the leftmost, of those the longest
      const size_t here = text.find(token.first);
      if (here == absl::string_view::npos || here > at) continue;
      if (here == at && token.first.size() <= found->first.size()) continue;
      at = here;
      found = &token;
    }
    RETURN_IF_ERROR(EncodePlain(text.substr(0, at), &out));
    if (found == nullptr) break;
    out.push_back(found->second);
    text.remove_prefix(at + found->first.size());
  }
  return out;
}

std::string Tokenizer::Decode(int32_t id) const {
  const auto token = tokens_.find(id);
  return token == tokens_.end() ? std::string() : token->second;
}

int64_t Tokenizer::size() const {
  int64_t size = 0;
  for (const auto& [id, token] : tokens_) size = std::max<int64_t>(size, int64_t{id} + 1);
  return size;
}

}  // namespace isthmus::generate
