#include "proto/codec_text.h"

#include <cctype>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace isthmus {
namespace {

constexpr int kMaxNesting = 4;

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
    if (depth >= kMaxNesting) return Expected(absl::StrCat("at most ", kMaxNesting, " nested codecs"));
    SkipSpace();
    const size_t start = at_;
    const std::string name = Word();
    CodecSpec spec;
    if (name == "none") return spec;
    if (name == "bf16") {
      spec.set_kind(CodecSpec::BF16);
    } else if (name == "fp16") {
      spec.set_kind(CodecSpec::FP16);
    } else if (name == "quant") {
      return Quant();
    } else if (name == "delta") {
      return Delta(depth);
    } else {
      at_ = start;
      return Expected("a codec: none, bf16, fp16, quant(BITS), delta(CODEC)");
    }
    return spec;
  }

  absl::StatusOr<CodecSpec> Quant() {
    CodecSpec spec;
    spec.set_kind(CodecSpec::QUANT);
    if (!Take('(')) return Expected("'(' and the number of bits, as in quant(4)");
    int bits = 0;
    if (!absl::SimpleAtoi(Word(), &bits) || bits < 1 || bits > 8) return Expected("bits from 1 to 8");
    spec.set_bits(bits);
    while (Take(',')) {
      const std::string option = Word();
      if (option == "channel") {
        spec.set_scale(CodecSpec::PER_CHANNEL);
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
        return Expected("an option: channel, token, group=N, rms, stochastic, symmetric");
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
    if (Take(',')) {
      if (Word() != "cold" || !Take('=')) return Expected("cold=CODEC");
      absl::StatusOr<CodecSpec> cold = Node(depth + 1);
      if (!cold.ok()) return cold;
      if (cold->kind() != CodecSpec::NONE) *spec.mutable_cold() = *cold;
    }
    if (!Take(')')) return Expected("')'");
    absl::Status valid = ValidateCodec(spec);
    if (!valid.ok()) return valid;
    return spec;
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
        absl::StrCat("codec '", text_, "', column ", at_ + 1, ": expected ", what));
  }

  absl::string_view text_;
  size_t at_ = 0;
};

absl::Status Validate(const CodecSpec& spec, int depth) {
  if (depth >= kMaxNesting) return absl::InvalidArgumentError("codec nested too deeply (limit 4)");
  switch (spec.kind()) {
    case CodecSpec::NONE:
    case CodecSpec::BF16:
    case CodecSpec::FP16:
      break;
    case CodecSpec::QUANT:
      if (spec.bits() < 1 || spec.bits() > 8) {
        return absl::InvalidArgumentError(absl::StrCat("quant: bits ", spec.bits(), " not in 1..8"));
      }
      if (spec.scale() == CodecSpec::PER_GROUP && (spec.group() < 32 || spec.group() > 256)) {
        return absl::InvalidArgumentError(absl::StrCat("quant: group ", spec.group(), " not in 32..256"));
      }
      break;
    case CodecSpec::DELTA: {
      if (!spec.has_inner()) return absl::InvalidArgumentError("delta: no inner codec");
      if (IsStateful(spec.inner()) || IsStateful(spec.cold())) {
        return absl::InvalidArgumentError("delta: the inner and cold codecs must be stateless");
      }
      absl::Status inner = Validate(spec.inner(), depth + 1);
      if (!inner.ok()) return inner;
      if (spec.has_cold()) return Validate(spec.cold(), depth + 1);
      break;
    }
    default:
      return absl::InvalidArgumentError(absl::StrCat("codec kind ", spec.kind(), " is not known to this build"));
  }
  return absl::OkStatus();
}

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
    case CodecSpec::DELTA: {
      std::string out = absl::StrCat("delta(", FormatNode(spec.inner()));
      if (spec.has_cold()) absl::StrAppend(&out, ", cold=", FormatNode(spec.cold()));
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

absl::Status ValidateCodec(const CodecSpec& spec) { return Validate(spec, 0); }

uint32_t CodecId(const CodecSpec& spec) {
  uint32_t hash = 2166136261u;  // FNV-1a over the text form
  for (unsigned char c : FormatCodec(spec)) hash = (hash ^ c) * 16777619u;
  return hash;
}

bool IsStateful(const CodecSpec& spec) { return spec.kind() == CodecSpec::DELTA; }

}  // namespace isthmus
