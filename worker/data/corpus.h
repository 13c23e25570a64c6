// The training text: UTF-8 bytes or tokens of 16 or 32 bits, cut into samples of `context` + 1
// tokens (sample i covers tokens [i * context, (i + 1) * context], its targets are shifted by one).
// Sample ids are these positions: stable across epochs, restarts and re-partition. The last
// `validation_share` of the samples is the validation split; in a directory with shards that are
// called val (proto/data/data_files.h) these are it. Its ids follow the training ids.
// Of data.format rows sample i is row i: model.inputs values, then a class.
// Thread: const methods from any thread.
#ifndef ISTHMUS_WORKER_DATA_CORPUS_H_
#define ISTHMUS_WORKER_DATA_CORPUS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/job.pb.h"
#include "proto/plan.pb.h"
#include "proto/plan/groups.h"

namespace isthmus::worker {

class Corpus {
 public:
  virtual ~Corpus() = default;
  virtual int64_t train_samples() const = 0;
  virtual int64_t validation_samples() const = 0;
  virtual int64_t context() const = 0;
  // Writes context() tokens and targets of sample `id`, of rows the values and one class. 0 <= id <
  // train_samples() + validation_samples(). Either may be null. An error names the file and what to
  // do: it could not be read, or holds other bytes than when it was opened
  // (worker/data/watched_file.h).
  virtual absl::Status Read(uint32_t id, uint32_t* tokens, uint32_t* targets) const = 0;
  // Hash of the length and of the contents: stages that read data must agree.
  virtual uint64_t fingerprint() const = 0;
};

// `job` has its defaults. The samples run over the .bin shards of a directory, in name order, as if
// they were one file; validation shards as another one. NotFound names the path; InvalidArgument a
// path outside `data_dir` (links inside it are followed), contents that are not of data.format
// (worker/data/file_look.h), a token beyond the vocabulary or a class beyond model.classes (file
// and offset), a file of no whole number of rows, or too few samples
// for one global batch. Reads the contents once, at most 1 GiB: beyond that, token ids are checked
// in evenly spaced blocks only, and the first stage checks them again.
absl::StatusOr<std::unique_ptr<Corpus>> OpenCorpus(const std::string& data_dir, const JobSpec& job);

// The order of samples: a permutation of [0, samples) for each epoch, a function of (seed, epoch).
// A step takes the next global_batch ids of it (proto/data/data_position.h); a remainder smaller
// than that is left out (no id twice in a step). Up to kMostShuffled samples an epoch is shuffled
// when its first step is asked for (Fisher-Yates; 64 MiB and about a second at most); beyond that
// the ids are computed as they are asked for (worker/data/permutation.h), so that a step costs the
// same however large the text is. Every stage has to make the same choice, and so has a resume.
//
// A replica that takes a part of each batch has samples of its own for good, in proportion: places
// SamplesOf(share, samples, global_batch) of a permutation that no epoch changes. Each epoch
// permutes them anew. So no two replicas ever read the same sample, and delta buffers stay warm.
// These ids are computed, however large the text is.
class SampleOrder {
 public:
  static constexpr int64_t kMostShuffled = int64_t{1} << 24;

  // Steps from `start_step` on, before which the data stand at `start`. `most_shuffled` is another
  // one in tests alone. `share`: of the batch; 0, 0: all of it.
  SampleOrder(uint64_t seed, int64_t samples, int64_t global_batch, int64_t start_step = 0,
              const DataPosition& start = DataPosition(), int64_t most_shuffled = kMostShuffled,
              Share share = {});
  // The ids of step `step` (0-based, from start_step on), as many as the share has.
  std::vector<uint32_t> Step(int64_t step);
  // Before `step`.
  DataPosition At(int64_t step) const;

 private:
  void Shuffle(int64_t epoch);
  std::vector<uint32_t> OfShare(const DataPosition& at) const;

  uint64_t seed_;
  int64_t samples_;
  int64_t global_batch_;
  int64_t start_step_;
  DataPosition start_;
  int64_t most_shuffled_;
  Share share_;
  int64_t epoch_ = -1;
  std::vector<uint32_t> permutation_;  // of epoch_; empty where ids are computed
};

}  // namespace isthmus::worker

#endif  // ISTHMUS_WORKER_DATA_CORPUS_H_
