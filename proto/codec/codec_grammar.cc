#include "proto/codec/codec_grammar.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace isthmus {
namespace {

constexpr CodecOption kQuantOptions[] = {
    {"channel", "a scale a channel, over the positions of the sample (the default)"},
    {"token", "a scale a token, over its channels"},
    {"group=32..256", "a scale for so many neighbouring channels of a token"},
    {"rms", "the scale is 2 x RMS instead of the largest magnitude"},
    {"stochastic", "rounds up or down by chance, from a shared seed"},
    {"symmetric", "levels to both ends of the scale, and none at zero"},
};
constexpr CodecOption kSignOptions[] = {
    {"channel", "a scale a channel (the default)"},
    {"token", "a scale a token"},
    {"group=32..256", "a scale for so many neighbouring channels of a token"},
};
constexpr CodecOption kTopKOptions[] = {
    {"token", "the share is of each token (the default)"},
    {"global", "the share is of the whole sample"},
    {"values=CODEC",
     "of the kept elements: none, bf16 (the default), fp16 or a quant by token or group"},
};
constexpr CodecOption kRandomKOptions[] = {
    {"scaled", "times elements / kept, so that the mean is right"},
    {"values=CODEC",
     "of the kept elements: none, bf16 (the default), fp16, a quant by token or group, or a topk"},
};
constexpr CodecOption kFactorOptions[] = {
    {"values=CODEC", "of the factors: none (the default), bf16, fp16 or a quant"},
};
constexpr CodecOption kChannelsOptions[] = {
    {"values=CODEC", "of the channels: none (the default), bf16, fp16 or a quant"},
};
constexpr CodecOption kPredictOptions[] = {
    {"rate=R", "how fast the means move, over 0 and at most 1; 0.05 if not said"},
    {"context=1..4", "means of the last so many tokens, not of one alone"},
    {"next", "the last of them is the token after the position (for gradients)"},
};
constexpr CodecOption kDeltaOptions[] = {
    {"cold=CODEC", "of a sample's first visit; none (fp32) if not said"},
    {"buffer=2|4|8", "bits of memory an element of the buffers takes, instead of 16"},
};

constexpr CodecForm kForms[] = {
    {"none", "", true, "fp32, as it is", {}},
    {"bf16", "", true, "16 bits, the range of fp32", {}},
    {"fp16", "", true, "16 bits, up to 65504", {}},
    {"quant", "BITS", false, "1 to 8 bits", kQuantOptions},
    {"delta", "CODEC", false, "forward: the difference to the sample's last visit", kDeltaOptions},
    {"predict", "CODEC", false,
     "forward, on every boundary from the first: the difference to running means of tokens and "
     "positions; backward where forward is one too",
     kPredictOptions},
    {"topk", "RATIO", false, "the largest magnitudes, that share of them", kTopKOptions},
    {"randomk", "RATIO", false, "that share, at indices from a shared seed", kRandomKOptions},
    {"lowrank", "RANK", false, "two factors of rank 1 to 128", kFactorOptions},
    {"sign", "", true, "one bit and a scale", kSignOptions},
    {"cocktail", "SUBSET, RATIO, BITS", false, "of a random subset the largest, quantised", {}},
    {"autoencoder", "CHANNELS", false, "forward: learned; gradients have its channels too",
     kChannelsOptions},
    {"kept",
     "CODEC",
     true,
     "backward, where forward is topk or randomk: gradients at the indices that the forward pass "
     "kept, no indices sent; CODEC of the values",
     {}},
    {"ef",
     "CODEC",
     false,
     "error feedback: what was lost is added at the same place of the next step",
     {}},
    {"lep", "CODEC", false, "lazy error propagation: it is added in the next micro-batch", {}},
};

std::string FormText(const CodecForm& form) {
  if (form.argument.empty()) return std::string(form.name);
  const std::string whole = absl::StrCat(form.name, "(", form.argument, ")");
  return form.optional ? absl::StrCat(form.name, " | ", whole) : whole;
}

}  // namespace

absl::Span<const CodecForm> CodecForms() { return kForms; }

const CodecForm* FindCodecForm(absl::string_view name) {
  const auto* found = std::find_if(std::begin(kForms), std::end(kForms),
                                   [&](const CodecForm& form) { return form.name == name; });
  return found == std::end(kForms) ? nullptr : found;
}

const CodecOption* FindCodecOption(absl::string_view name, absl::string_view word) {
  const CodecForm* form = FindCodecForm(name);
  if (form == nullptr) return nullptr;
  for (const CodecOption& option : form->options) {
    if (option.word() == word) return &option;
  }
  return nullptr;
}

std::string CodecList() {
  std::string out;
  for (const CodecForm& form : kForms) {
    absl::StrAppend(
        &out, out.empty() ? "" : ", ", form.name,
        form.argument.empty() || form.optional ? "" : absl::StrCat("(", form.argument, ")"));
  }
  return out;
}

std::string CodecOptionList(absl::string_view name) {
  std::string out;
  const CodecForm* form = FindCodecForm(name);
  if (form == nullptr) return out;
  for (const CodecOption& option : form->options)
    absl::StrAppend(&out, out.empty() ? "" : ", ", option.form);
  return out;
}

std::string CodecHelp() {
  constexpr size_t kMeaningColumn = 26;
  std::string out;
  const auto line = [&](std::string text, absl::string_view meaning) {
    text.resize(std::max(text.size() + 1, kMeaningColumn), ' ');
    absl::StrAppend(&out, text, meaning, "\n");
  };
  for (const CodecForm& form : kForms) {
    line(absl::StrCat("  ", FormText(form)), form.meaning);
    for (const CodecOption& option : form.options)
      line(absl::StrCat(form.argument.empty() ? "    (" : "    , ", option.form,
                        form.argument.empty() ? ")" : ""),
           option.meaning);
  }
  return out;
}

}  // namespace isthmus
