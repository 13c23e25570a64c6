// A model that says after token n the token n + 1, and notes what it was given. Thread: one owner.
#ifndef ISTHMUS_TESTS_GENERATE_FAKE_DECODER_H_
#define ISTHMUS_TESTS_GENERATE_FAKE_DECODER_H_

#include <vector>

#include "worker/generate/decoder.h"

namespace isthmus::generate {

class FakeDecoder : public Decoder {
 public:
  FakeDecoder(int64_t context, int32_t vocabulary) : context_(context), vocabulary_(vocabulary) {}
  int64_t context() const override { return context_; }
  int64_t seen() const override { return seen_; }
  void Clear() override { seen_ = 0; }
  absl::StatusOr<std::vector<float>> Append(absl::Span<const int32_t> tokens) override {
    appended_.emplace_back(tokens.begin(), tokens.end());
    seen_ += static_cast<int64_t>(tokens.size());
    if (tokens.empty() || seen_ > context_)
      return absl::InvalidArgumentError("more than the context");
    std::vector<float> logits(vocabulary_, 0);
    logits[(tokens.back() + 1) % vocabulary_] = 50;
    return logits;
  }
  const std::vector<std::vector<int32_t>>& appended() const { return appended_; }

 private:
  const int64_t context_;
  const int32_t vocabulary_;
  int64_t seen_ = 0;
  std::vector<std::vector<int32_t>> appended_;
};

}  // namespace isthmus::generate

#endif  // ISTHMUS_TESTS_GENERATE_FAKE_DECODER_H_
