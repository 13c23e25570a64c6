#include "proto/codec/codec_text.h"

#include <cctype>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/suggest.h"
#include "proto/codec/codec_grammar.h"
#include "proto/codec/codec_size.h"

namespace isthmus {
namespace {

constexpr double kDefaultRate = 0.05;

class Parser {
 public:
  explicit Parser(absl::string_view text) : text_(text) {}

  absl::StatusOr<CodecSpec> Parse() {
    absl::StatusOr<CodecSpec> spec = Node(0);
    if (!spec.ok()) return spec;
    if (Take('|')) {
      if (Word() != "zstd") return Expected("'zstd' after '|'");
      spec->set_zstd(true);
    }
    SkipSpace();
    if (at_ < text_.size()) return Expected("the end of the codec");
    return spec;
  }

 private:
  absl::StatusOr<CodecSpec> Node(int depth) {
    if (depth >= kMaxCodecNesting)
      return Expected(absl::StrCat("at most ", kMaxCodecNesting, " nested codecs"));
    SkipSpace();
    const size_t start = at_;
    const std::string name = Word();
    CodecSpec spec;
    if (FindCodecForm(name) == nullptr) {
      at_ = start;
      std::vector<std::string> names;
      for (const CodecForm& form : CodecForms()) names.emplace_back(form.name);
      return Expected(absl::StrCat("a codec", Meant(name, names), ": ", CodecList()));
    }
    if (name == "bf16") {
      spec.set_kind(CodecSpec::BF16);
    } else if (name == "fp16") {
      spec.set_kind(CodecSpec::FP16);
    } else if (name == "quant") {
      return Quant();
    } else if (name == "delta") {
      return Delta(depth);
    } else if (name == "topk" || name == "randomk") {
      return Sparse(name == "topk" ? CodecSpec::TOP_K : CodecSpec::RANDOM_K, depth);
    } else if (name == "lowrank") {
      return LowRank(depth);
    } else if (name == "autoencoder") {
      return Autoencoder(depth);
    } else if (name == "kept") {
      return Kept(depth);
    } else if (name == "sign") {
      return Sign();
    } else if (name == "cocktail") {
      return Cocktail();
    } else if (name == "ef" || name == "lep" || name == "predict") {
      return Wrapper(name == "ef"    ? CodecSpec::FEEDBACK
                     : name == "lep" ? CodecSpec::LAZY
                                     : CodecSpec::PREDICT,
                     depth);
    }
    return spec;
  }

  // The next word, if the table has it as an option of `codec` and neither it nor one that
  // contradicts it is in `said`; else nothing, which is none.
  std::string Option(absl::string_view codec, std::vector<std::string>* said = nullptr) {
    const std::string word = Word();
    word_ = word;
    if (FindCodecOption(codec, word) == nullptr) return "";
    if (said == nullptr) return word;
    for (const std::string& before : *said) {
      if (before != word && !(IsScope(before) && IsScope(word))) continue;
      clash_ = before == word ? absl::StrCat("'", word, "' only once")
                              : absl::StrCat("either '", before, "' or '", word, "', not both");
      return "";
    }
    said->push_back(word);
    return word;
  }
  // What a scale or a share is of: one of them at most.
  static bool IsScope(absl::string_view word) {
    return word == "channel" || word == "token" || word == "group" || word == "global";
  }
  absl::Status ExpectedOption(absl::string_view codec) const {
    if (!clash_.empty()) return Expected(clash_);
    std::vector<std::string> words;
    for (const CodecOption& option : FindCodecForm(codec)->options)
      words.emplace_back(option.word());
    const bool known = FindCodecOption(codec, word_) != nullptr;  // its value is the fault
    return Expected(
        absl::StrCat("an option", known ? "" : Meant(word_, words), ": ", CodecOptionList(codec)));
  }
  static std::string Meant(absl::string_view word, const std::vector<std::string>& words) {
    const std::string meant = DidYouMean(word, words);
    return meant.empty() ? "" : absl::StrCat(" (", meant, ")");
  }

  absl::StatusOr<CodecSpec> Quant() {
    CodecSpec spec;
    spec.set_kind(CodecSpec::QUANT);
    if (!Take('(')) return Expected("'(' and the number of bits, as in quant(4)");
    int bits = 0;
    if (!absl::SimpleAtoi(Word(), &bits) || bits < 1 || bits > 8)
      return Expected("bits from 1 to 8");
    spec.set_bits(bits);
    std::vector<std::string> said;
    while (Take(',')) {
      const std::string option = Option("quant", &said);
      if (option == "channel") {
        spec.set_scale(CodecSpec::PER_CHANNEL);
        channel_said_ = true;
      } else if (option == "token") {
        spec.set_scale(CodecSpec::PER_TOKEN);
      } else if (option == "rms") {
        spec.set_rms_scale(true);
      } else if (option == "stochastic") {
        spec.set_stochastic(true);
      } else if (option == "symmetric") {
        spec.set_symmetric(true);
      } else if (option == "group") {
        int group = 0;
        if (!Take('=') || !absl::SimpleAtoi(Word(), &group) || group < 32 || group > 256) {
          return Expected("group=32..256");
        }
        spec.set_scale(CodecSpec::PER_GROUP);
        spec.set_group(group);
      } else {
        return ExpectedOption("quant");
      }
    }
    if (!Take(')')) return Expected("')'");
    return spec;
  }

  absl::StatusOr<CodecSpec> Delta(int depth) {
    CodecSpec spec;
    spec.set_kind(CodecSpec::DELTA);
    if (!Take('(')) return Expected("'(' and the inner codec, as in delta(quant(3))");
    absl::StatusOr<CodecSpec> inner = Node(depth + 1);
    if (!inner.ok()) return inner;
    *spec.mutable_inner() = *inner;
    std::vector<std::string> said;
    while (Take(',')) {
      const std::string option = Option("delta", &said);
      int bits = 0;
      if (option == "cold" && Take('=')) {
        absl::StatusOr<CodecSpec> cold = Node(depth + 1);
        if (!cold.ok()) return cold;
        spec.clear_cold();
        if (cold->kind() != CodecSpec::NONE) *spec.mutable_cold() = *cold;
      } else if (option == "buffer" && Take('=') && absl::SimpleAtoi(Word(), &bits) &&
                 IsBufferBits(bits)) {
        spec.set_buffer_bits(bits);
      } else {
        return ExpectedOption("delta");
      }
    }
    return Closed(std::move(spec));
  }

  absl::StatusOr<CodecSpec> Sparse(CodecSpec::Kind kind, int depth) {
    CodecSpec spec;
    spec.set_kind(kind);
    double ratio = 0;
    if (!Take('(') || !Ratio(&ratio))
      return Expected("'(' and the share to keep, over 0 and at most 1, as in topk(0.05)");
    spec.set_ratio(ratio);
    const absl::string_view name = kind == CodecSpec::TOP_K ? "topk" : "randomk";
    std::vector<std::string> said;
    while (Take(',')) {
      const std::string option = Option(name, &said);
      if (option == "values" && Take('=')) {
        absl::Status status = Values(depth, &spec);
        if (!status.ok()) return status;
      } else if (option == "global" || option == "token") {
        spec.set_global(option == "global");
      } else if (option == "scaled") {
        spec.set_scaled(true);
      } else {
        return ExpectedOption(name);
      }
    }
    return Closed(std::move(spec));
  }

  absl::StatusOr<CodecSpec> LowRank(int depth) {
    CodecSpec spec;
    spec.set_kind(CodecSpec::LOW_RANK);
    int rank = 0;
    if (!Take('(') || !absl::SimpleAtoi(Word(), &rank) || rank < 1 || rank > 128)
      return Expected("'(' and a rank from 1 to 128, as in lowrank(16)");
    spec.set_rank(rank);
    if (Take(',')) {
      if (Option("lowrank") != "values" || !Take('=')) return ExpectedOption("lowrank");
      absl::Status status = Values(depth, &spec);
      if (!status.ok()) return status;
    }
    return Closed(std::move(spec));
  }

  absl::StatusOr<CodecSpec> Autoencoder(int depth) {
    CodecSpec spec;
    spec.set_kind(CodecSpec::AUTOENCODER);
    int channels = 0;
    if (!Take('(') || !absl::SimpleAtoi(Word(), &channels) || channels < 1 ||
        channels > kMaxCodecChannels)
      return Expected("'(' and the number of channels, as in autoencoder(32)");
    spec.set_channels(channels);
    if (Take(',')) {
      if (Option("autoencoder") != "values" || !Take('=')) return ExpectedOption("autoencoder");
      absl::Status status = Values(depth, &spec);
      if (!status.ok()) return status;
    }
    if (depth > 0) return absl::InvalidArgumentError(kAutoencoderIsOutermost);
    return Closed(std::move(spec));
  }

  // A scale per channel has no meaning for a list of values: here, not said means per token.
  absl::StatusOr<CodecSpec> Kept(int depth) {
    if (depth > 0) return absl::InvalidArgumentError(kKeptIsOutermost);
    CodecSpec spec;
    spec.set_kind(CodecSpec::KEPT);
    if (!Take('(')) return spec;
    channel_said_ = false;
    absl::Status status = Values(depth, &spec);
    if (!status.ok()) return status;
    if (spec.inner().kind() == CodecSpec::QUANT && !channel_said_ &&
        spec.inner().scale() == CodecSpec::PER_CHANNEL)
      spec.mutable_inner()->set_scale(CodecSpec::PER_TOKEN);
    return Closed(std::move(spec));
  }

  absl::StatusOr<CodecSpec> Sign() {
    CodecSpec spec;
    spec.set_kind(CodecSpec::SIGN);
    if (!Take('(')) return spec;
    const std::string option = Option("sign");
    int group = 0;
    if (option == "token") {
      spec.set_scale(CodecSpec::PER_TOKEN);
    } else if (option == "group" && Take('=') && absl::SimpleAtoi(Word(), &group) && group >= 32 &&
               group <= 256) {
      spec.set_scale(CodecSpec::PER_GROUP);
      spec.set_group(group);
    } else if (option != "channel") {
      return ExpectedOption("sign");
    }
    return Closed(std::move(spec));
  }

  absl::StatusOr<CodecSpec> Cocktail() {
    CodecSpec spec;
    spec.set_kind(CodecSpec::COCKTAIL);
    double subset = 0, ratio = 0;
    int bits = 0;
    if (!Take('(') || !Ratio(&subset) || !Take(',') || !Ratio(&ratio) || !Take(',') ||
        !absl::SimpleAtoi(Word(), &bits) || bits < 1 || bits > 8) {
      return Expected("(SUBSET, RATIO, BITS), as in cocktail(0.1, 0.2, 4)");
    }
    spec.set_subset(subset);
    spec.set_ratio(ratio);
    spec.set_bits(bits);
    return Closed(std::move(spec));
  }

  absl::StatusOr<CodecSpec> Wrapper(CodecSpec::Kind kind, int depth) {
    CodecSpec spec;
    spec.set_kind(kind);
    if (!Take('(')) return Expected("'(' and the inner codec, as in ef(quant(4))");
    absl::StatusOr<CodecSpec> inner = Node(depth + 1);
    if (!inner.ok()) return inner;
    *spec.mutable_inner() = *inner;
    std::vector<std::string> said;
    while (kind == CodecSpec::PREDICT && Take(',')) {
      const std::string option = Option("predict", &said);
      double rate = 0;
      int context = 0;
      if (option == "rate" && Take('=') && Ratio(&rate)) {
        spec.set_rate(rate == kDefaultRate ? 0 : rate);
      } else if (option == "context" && Take('=') && absl::SimpleAtoi(Word(), &context) &&
                 context >= 1 && context <= kMaxPredictContext) {
        spec.set_context(context == 1 ? 0 : context);
      } else if (option == "next") {
        spec.set_next(true);
      } else {
        return ExpectedOption("predict");
      }
    }
    return Closed(std::move(spec));
  }

  absl::Status Values(int depth, CodecSpec* spec) {
    absl::StatusOr<CodecSpec> values = Node(depth + 1);
    if (!values.ok()) return values.status();
    CodecSpec without = *spec;
    without.clear_inner();
    if (FormatCodec(ValuesOf(without)) != FormatCodec(*values)) *spec->mutable_inner() = *values;
    return absl::OkStatus();
  }

  absl::StatusOr<CodecSpec> Closed(CodecSpec spec) {
    if (!Take(')')) return Expected("')'");
    absl::Status valid = ValidateCodec(spec);
    if (!valid.ok()) return valid;
    return spec;
  }

  // A number over 0 and at most 1, kept as precisely as FormatCodec prints it.
  bool Ratio(double* ratio) {
    SkipSpace();
    const size_t start = at_;
    while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) ||
                                  text_[at_] == '.' || text_[at_] == '-'))
      ++at_;
    return absl::SimpleAtod(text_.substr(start, at_ - start), ratio) &&
           absl::SimpleAtod(absl::StrCat(*ratio), ratio) && *ratio > 0 && *ratio <= 1;
  }

  void SkipSpace() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
  }
  bool Take(char c) {
    SkipSpace();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  std::string Word() {
    SkipSpace();
    const size_t start = at_;
    while (at_ < text_.size() && std::isalnum(static_cast<unsigned char>(text_[at_]))) ++at_;
    return std::string(text_.substr(start, at_ - start));
  }
  absl::Status Expected(absl::string_view what) const {
    return absl::InvalidArgumentError(
        absl::StrCat("codec '", Shown(), "', column ", at_ + 1, ": expected ", what));
  }
  // A long text around the place alone.
  std::string Shown() const {
    constexpr size_t kBefore = 60, kMost = 100;
    if (text_.size() <= kMost) return std::string(text_);
    const size_t start = at_ > kBefore ? at_ - kBefore : 0;
    return absl::StrCat(start > 0 ? "..." : "", text_.substr(start, kMost),
                        start + kMost < text_.size() ? "..." : "");
  }

  absl::string_view text_;
  size_t at_ = 0;
  bool channel_said_ = false;  // by a quant
  std::string word_;           // the option that was read last
  std::string clash_;          // what may be said of options that do not go together
};

std::string FormatNode(const CodecSpec& spec) {
  switch (spec.kind()) {
    case CodecSpec::BF16:
      return "bf16";
    case CodecSpec::FP16:
      return "fp16";
    case CodecSpec::QUANT: {
      std::string out = absl::StrCat("quant(", spec.bits());
      if (spec.scale() == CodecSpec::PER_TOKEN) absl::StrAppend(&out, ", token");
      if (spec.scale() == CodecSpec::PER_GROUP) absl::StrAppend(&out, ", group=", spec.group());
      if (spec.rms_scale()) absl::StrAppend(&out, ", rms");
      if (spec.stochastic()) absl::StrAppend(&out, ", stochastic");
      if (spec.symmetric()) absl::StrAppend(&out, ", symmetric");
      return out + ")";
    }
    case CodecSpec::SIGN:
      if (spec.scale() == CodecSpec::PER_TOKEN) return "sign(token)";
      return spec.scale() == CodecSpec::PER_GROUP ? absl::StrCat("sign(group=", spec.group(), ")")
                                                  : "sign";
    case CodecSpec::TOP_K:
    case CodecSpec::RANDOM_K:
    case CodecSpec::AUTOENCODER:
    case CodecSpec::LOW_RANK: {
      std::string out =
          spec.kind() == CodecSpec::TOP_K
              ? absl::StrCat("topk(", spec.ratio(), spec.global() ? ", global" : "")
          : spec.kind() == CodecSpec::RANDOM_K
              ? absl::StrCat("randomk(", spec.ratio(), spec.scaled() ? ", scaled" : "")
          : spec.kind() == CodecSpec::AUTOENCODER ? absl::StrCat("autoencoder(", spec.channels())
                                                  : absl::StrCat("lowrank(", spec.rank());
      if (spec.has_inner()) absl::StrAppend(&out, ", values=", FormatNode(spec.inner()));
      return out + ")";
    }
    case CodecSpec::KEPT: {
      CodecSpec values = spec.inner();
      if (values.kind() == CodecSpec::QUANT && values.scale() == CodecSpec::PER_TOKEN)
        values.clear_scale();
      return spec.has_inner() ? absl::StrCat("kept(", FormatNode(values), ")") : "kept";
    }
    case CodecSpec::COCKTAIL:
      return absl::StrCat("cocktail(", spec.subset(), ", ", spec.ratio(), ", ", spec.bits(), ")");
    case CodecSpec::FEEDBACK:
      return absl::StrCat("ef(", FormatNode(spec.inner()), ")");
    case CodecSpec::LAZY:
      return absl::StrCat("lep(", FormatNode(spec.inner()), ")");
    case CodecSpec::PREDICT:
      return absl::StrCat("predict(", FormatNode(spec.inner()),
                          spec.rate() > 0 ? absl::StrCat(", rate=", spec.rate()) : "",
                          spec.context() > 1 ? absl::StrCat(", context=", spec.context()) : "",
                          spec.next() ? ", next" : "", ")");
    case CodecSpec::DELTA: {
      std::string out = absl::StrCat("delta(", FormatNode(spec.inner()));
      if (spec.has_cold()) absl::StrAppend(&out, ", cold=", FormatNode(spec.cold()));
      if (spec.buffer_bits() > 0) absl::StrAppend(&out, ", buffer=", spec.buffer_bits());
      return out + ")";
    }
    default:
      return "none";
  }
}

}  // namespace

absl::StatusOr<CodecSpec> ParseCodec(absl::string_view text) { return Parser(text).Parse(); }

std::string FormatCodec(const CodecSpec& spec) {
  return spec.zstd() ? FormatNode(spec) + " | zstd" : FormatNode(spec);
}

uint32_t CodecId(const CodecSpec& spec) {
  uint32_t hash = 2166136261u;  // FNV-1a over the text form
  for (unsigned char c : FormatCodec(spec)) hash = (hash ^ c) * 16777619u;
  return hash;
}

bool IsStateful(const CodecSpec& spec) {
  return spec.kind() == CodecSpec::DELTA || spec.kind() == CodecSpec::PREDICT;
}

bool NeedsTokenIds(const CodecSpec& spec) {
  if (spec.kind() == CodecSpec::PREDICT) return true;
  return (spec.has_inner() && NeedsTokenIds(spec.inner())) ||
         (spec.has_cold() && NeedsTokenIds(spec.cold()));
}

}  // namespace isthmus
