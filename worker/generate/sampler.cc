#include "worker/generate/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "base/rng.h"
#include "base/status.h"

namespace isthmus::generate {
namespace {

constexpr uint64_t kStream = 0x67656e;  // of the random numbers

// Likelier first; of equal ones the lower id, so that the order is one and the same everywhere.
std::vector<int32_t> Likeliest(absl::Span<const float> logits, int64_t count) {
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::partial_sort(ids.begin(), ids.begin() + count, ids.end(), [&](int32_t a, int32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  });
  ids.resize(count);
  return ids;
}

}  // namespace

absl::StatusOr<int32_t> PickToken(absl::Span<const float> logits, const SamplerOptions& options,
                                  int64_t index) {
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!std::isfinite(logits[i]))
      return absl::DataLossError(absl::StrCat(
          "the model's output for token ", i, " is ", logits[i],
          ": its weights are damaged, or its training diverged; export an earlier checkpoint"));
  }
  if (logits.empty()) return absl::InvalidArgumentError("a model without a vocabulary");
  const auto all = static_cast<int64_t>(logits.size());
  const int64_t count = options.greedy ? 1 : options.top_k > 0 ? std::min(options.top_k, all) : all;
  const std::vector<int32_t> ids = Likeliest(logits, count);
  if (options.greedy) return ids.front();
  std::vector<double> weights;
  double total = 0;
  for (const int32_t id : ids) {
    const double below = static_cast<double>(logits[id]) - static_cast<double>(logits[ids[0]]);
    weights.push_back(std::exp(below / options.temperature));
    total += weights.back();
  }
  double left = total * RandomUniform(options.seed, kStream, static_cast<uint64_t>(index));
  for (size_t i = 0; i < ids.size(); ++i) {
    left -= weights[i];
    if (left < 0) return ids[i];
  }
  return ids.back();
}

absl::Status Generate(Decoder* decoder, std::vector<int32_t> prompt, const GenerateOptions& options,
                      const std::function<bool(int32_t)>& emit) {
  if (prompt.empty()) return absl::InvalidArgumentError("a prompt without a token");
  std::vector<int32_t> text = std::move(prompt);
  const auto last = [&](int64_t count) {
    const int64_t size = std::min<int64_t>(count, static_cast<int64_t>(text.size()));
    return absl::MakeConstSpan(text).last(static_cast<size_t>(size));
  };
  decoder->Clear();
  absl::Span<const int32_t> next = last(decoder->context());
  for (int64_t i = 0; i < options.tokens; ++i) {
    if (decoder->seen() + static_cast<int64_t>(next.size()) > decoder->context()) {
      decoder->Clear();
      next = last(std::max<int64_t>(1, decoder->context() / 2));
    }
    ASSIGN_OR_RETURN(const std::vector<float> logits, decoder->Append(next));
    ASSIGN_OR_RETURN(const int32_t token, PickToken(logits, options.sampling, i));
    if (token == options.end || !emit(token)) break;
    text.push_back(token);
    next = last(1);
  }
  return absl::OkStatus();
}

}  // namespace isthmus::generate
