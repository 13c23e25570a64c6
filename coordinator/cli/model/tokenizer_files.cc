#include "coordinator/cli/model/tokenizer_files.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/byte_alphabet.h"
#include "base/file/read_file.h"
#include "base/status.h"
#include "proto/model/family.h"
#include "proto/model/tokenizer_file_names.h"

namespace isthmus::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using nlohmann::ordered_json;

constexpr char kEndOfText[] = "<|endoftext|>";
constexpr int32_t kGpt2Vocabulary = 50257;  // its last id ends a text

// The tokenizer's files in `dir`; empty without a tokenizer there.
absl::StatusOr<std::map<std::string, std::string>> ReadFiles(const std::string& dir) {
  std::map<std::string, std::string> files;
  for (const char* name : kTokenizerFileNames) {
    const std::string path = absl::StrCat(dir, "/", name);
    std::error_code error;
    if (!fs::is_regular_file(path, error)) continue;
    ASSIGN_OR_RETURN(files[name], ReadSmallFile(path, kMaxTokenizerBytes));
  }
  const bool whole = files.count("tokenizer.json") > 0 ||
                     (files.count("vocab.json") > 0 && files.count("merges.txt") > 0);
  if (!whole) files.clear();
  return files;
}

// The id of the token that ends a text, where the tokenizer has the usual one.
std::optional<int64_t> EndOfText(const std::map<std::string, std::string>& files) {
  const auto id = [](const json& value) {
    return value.is_number_unsigned() ? std::optional<int64_t>(value.get<int64_t>()) : std::nullopt;
  };
  if (const auto it = files.find("tokenizer.json"); it != files.end()) {
    const json file = json::parse(it->second, nullptr, false);
    if (!file.is_object()) return std::nullopt;
    for (const json& token : file.value("added_tokens", json::array())) {
      if (token.is_object() && token.value("content", json()) == json(kEndOfText))
        return id(token.value("id", json()));
    }
  } else if (const auto vocabulary = files.find("vocab.json"); vocabulary != files.end()) {
    const json file = json::parse(vocabulary->second, nullptr, false);
    if (file.is_object()) return id(file.value(kEndOfText, json()));
  }
  return std::nullopt;
}

std::string GenerationConfig(std::optional<int64_t> end) {
  ordered_json config = {{"_from_model_config", true}};
  if (end.has_value()) {
    for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) config[key] = *end;
  }
  return config.dump(2) + "\n";
}

std::string MissingNote(const JobSpec& job) {
  const std::string from = job.model().init_from();
  return absl::StrCat(
      "no tokenizer: the job's data are tokens",
      from.empty() ? " and the job does not say of which tokenizer"
                   : absl::StrCat(", and ", from, " (model.init_from) has no tokenizer files here"),
      "; export again with --tokenizer DIR, the directory with tokenizer.json (deploy/tokenize.py "
      "writes one beside its shards)");
}

}  // namespace

std::map<std::string, std::string> ByteTokenizer(int64_t context) {
  const std::array<int, 256> alphabet = ByteAlphabet();
  ordered_json vocabulary = ordered_json::object();
  for (int byte = 0; byte < 256; ++byte) vocabulary[ByteCharacter(alphabet[byte])] = byte;
  const ordered_json bytes = {{"type", "ByteLevel"},
                              {"add_prefix_space", false},
                              {"trim_offsets", true},
                              {"use_regex", false}};
  const ordered_json file = {{"version", "1.0"},
                             {"truncation", nullptr},
                             {"padding", nullptr},
                             {"added_tokens", ordered_json::array()},
                             {"normalizer", nullptr},
                             {"pre_tokenizer", bytes},
                             {"post_processor", nullptr},
                             {"decoder", bytes},
                             {"model",
                              {{"type", "BPE"},
                               {"dropout", nullptr},
                               {"unk_token", nullptr},
                               {"continuing_subword_prefix", nullptr},
                               {"end_of_word_suffix", nullptr},
                               {"fuse_unk", false},
                               {"byte_fallback", false},
                               {"vocab", vocabulary},
                               {"merges", ordered_json::array()}}}};
  // Not GPT2TokenizerFast: that one adds an end of text, which such a model has no row for.
  const ordered_json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                               {"model_max_length", context},
                               {"clean_up_tokenization_spaces", false}};
  return {{"tokenizer.json", file.dump(1) + "\n"},
          {"tokenizer_config.json", config.dump(2) + "\n"}};
}

absl::StatusOr<TokenizerFiles> FindTokenizer(const JobSpec& job, const std::string& asked) {
  TokenizerFiles out;
  const ModelSpec& model = job.model();
  if (IsMlp(model)) {
    if (asked.empty()) return out;
    return absl::InvalidArgumentError(
        "--tokenizer: a model of family mlp takes rows of values, no text");
  }
  if (!asked.empty()) {
    ASSIGN_OR_RETURN(out.files, ReadFiles(asked));
    if (out.files.empty())
      return absl::NotFoundError(absl::StrCat(
          "--tokenizer: ", asked, " has neither tokenizer.json nor vocab.json and merges.txt"));
    out.origin = asked;
  } else if (job.data().format() == "bytes") {
    out.files = ByteTokenizer(model.context());
    out.origin = "bytes";
  } else if (!model.init_from().empty()) {
    ASSIGN_OR_RETURN(out.files, ReadFiles(model.init_from()));
    if (!out.files.empty()) out.origin = model.init_from();
  }
  std::optional<int64_t> end = EndOfText(out.files);
  if (out.origin.empty() && model.vocabulary() == kGpt2Vocabulary) end = kGpt2Vocabulary - 1;
  if (end.has_value() && *end >= model.vocabulary()) end.reset();
  out.files["generation_config.json"] = GenerationConfig(end);
  out.note = out.origin == "bytes" ? "tokenizer: of bytes"
             : !out.origin.empty() ? absl::StrCat("tokenizer: copied from ", out.origin)
                                   : MissingNote(job);
  return out;
}

}  // namespace isthmus::cli
