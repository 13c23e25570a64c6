// The real engine over links in memory: a small GPT on a small generated text, ranks as threads.
#ifndef ISTHMUS_TESTS_RANK_GPT_WORLD_H_
#define ISTHMUS_TESTS_RANK_GPT_WORLD_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tests/worker/world.h"
#include "worker/engine/engine_options.h"

namespace isthmus::worker {

// English-like sentences out of a small vocabulary, a function of the seed: bytes that a small
// model learns in a few hundred steps.
std::string GenerateText(int64_t bytes, uint64_t seed);

// Samples of a text in memory, the last ones for validation.
class TextCorpus : public Corpus {
 public:
  TextCorpus(std::string text, int64_t context, int64_t validation);
  int64_t train_samples() const override { return samples_ - validation_; }
  int64_t validation_samples() const override { return validation_; }
  int64_t context() const override { return context_; }
  absl::Status Read(uint32_t id, uint32_t* tokens, uint32_t* targets) const override;
  uint64_t fingerprint() const override { return 1; }

 private:
  const std::string text_;
  const int64_t context_, validation_, samples_;
};

// Rows of `classes` classes, a function of the seed: each class has a value of its own at each
// place, and every row its noise. The last ones are for validation.
class RowCorpus : public Corpus {
 public:
  RowCorpus(int64_t rows, int inputs, int classes, int64_t validation, uint64_t seed = 1)
      : rows_(rows), inputs_(inputs), classes_(classes), validation_(validation), seed_(seed) {}
  int64_t train_samples() const override { return rows_ - validation_; }
  int64_t validation_samples() const override { return validation_; }
  int64_t context() const override { return 1; }
  absl::Status Read(uint32_t id, uint32_t* values, uint32_t* classes) const override;
  uint64_t fingerprint() const override { return 1; }

 private:
  const int64_t rows_;
  const int inputs_, classes_;
  const int64_t validation_;
  const uint64_t seed_;
};

// An MLP of 3 hidden layers of 24 units for rows of 20 values and 5 classes.
WorldShape SmallMlp();

// A shape of 4 layers, width 32, context 16 over bytes.
WorldShape SmallGpt();

struct GptRun {
  std::vector<double> losses;  // of each step
  std::vector<double> validation;
  std::vector<double> accuracy;  // of the same passes, of a classifier
  int64_t wire_bytes = 0;        // of all boundaries, both directions
  int64_t key_frames = 0;        // samples that delta codecs sent in full, at all boundaries
  std::string weights;           // safetensors, merged over the stages
};

// Ranks with the real engine; what is given outlives them.
World::Options GptOptions(MemoryStore* store, const Corpus* corpus,
                          const std::string& device = "cpu");

// Runs the session of every stage to its end, over `links` or else the world's own; a failed stage
// is fatal.
GptRun RunGpt(const WorldShape& shape, const Corpus& corpus, LinkOpener* links = nullptr,
              const std::string& device = "cpu");

GptRun RunWorld(const Plan& plan, const World::Options& options);

// Mean of the last `count` values.
double MeanOfLast(const std::vector<double>& values, int count);

World::Options GptOptions(MemoryStore* store, const Corpus* corpus,
                          const std::vector<engine::EngineOptions>& devices);

// On `device`: cpu or cuda:N.
StageFactory GptStages(const std::string& device = "cpu");

}  // namespace isthmus::worker

#endif  // ISTHMUS_TESTS_RANK_GPT_WORLD_H_
