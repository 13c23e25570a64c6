// The first training samples of a corpus, and all of its validation samples: a study passes over
// few samples several times. The corpus outlives it. Thread: const methods from any thread.
#ifndef ISTHMUS_WORKER_STUDY_SUBSET_CORPUS_H_
#define ISTHMUS_WORKER_STUDY_SUBSET_CORPUS_H_

#include <algorithm>

#include "worker/data/corpus.h"

namespace isthmus::study {

class SubsetCorpus : public worker::Corpus {
 public:
  SubsetCorpus(const worker::Corpus& all, int64_t train_samples)
      : all_(all), train_samples_(std::min(train_samples, all.train_samples())) {}

  int64_t train_samples() const override { return train_samples_; }
  int64_t validation_samples() const override { return all_.validation_samples(); }
  int64_t context() const override { return all_.context(); }
  uint64_t fingerprint() const override { return all_.fingerprint(); }
  absl::Status Read(uint32_t id, uint32_t* tokens, uint32_t* targets) const override {
    const bool train = id < train_samples_;
    return all_.Read(train ? id : static_cast<uint32_t>(id - train_samples_ + all_.train_samples()),
                     tokens, targets);
  }

 private:
  const worker::Corpus& all_;
  const int64_t train_samples_;
};

}  // namespace isthmus::study

#endif  // ISTHMUS_WORKER_STUDY_SUBSET_CORPUS_H_
