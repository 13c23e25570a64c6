// A stage with exact arithmetic: a small bilinear model over the integers modulo 1021, which float
// and fp16 both hold exactly. Losses, norms and weights are then bit-identical however the layers
// are cut and whatever order gradients arrive in, and any mistake in the order, the pairing of
// micro-batches, the scale or the optimiser's arguments changes them.
#ifndef ISTHMUS_TESTS_WORKER_FAKE_STAGE_H_
#define ISTHMUS_TESTS_WORKER_FAKE_STAGE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "proto/model/stage_shapes.h"
#include "proto/plan.pb.h"
#include "worker/data/corpus.h"
#include "worker/session.h"
#include "worker/stage.h"

namespace isthmus::worker {

// What a test can do to a fake stage. Called on its compute thread before each operation:
// "forward", "backward", "read_gradient", "write_gradient", "norm", "apply".
struct StageFault {
  bool loss_is_nan = false;
  bool norm_is_infinite = false;
};
using StageHook =
    std::function<absl::StatusOr<StageFault>(int rank, int64_t step, const std::string& operation)>;

StageFactory FakeStages(StageHook hook = nullptr);

// The own parameters of such a stage, layer by layer; the embedding is before them.
LayerTensors FakeLayers(const Plan& plan, int rank);

// Tokens that are a function of the sample and the position.
class FakeCorpus : public Corpus {
 public:
  FakeCorpus(int64_t train, int64_t validation, int64_t context, int vocabulary, uint64_t seed = 7)
      : train_(train),
        validation_(validation),
        context_(context),
        vocabulary_(vocabulary),
        seed_(seed) {}
  int64_t train_samples() const override { return train_; }
  int64_t validation_samples() const override { return validation_; }
  int64_t context() const override { return context_; }
  absl::Status Read(uint32_t id, uint32_t* tokens, uint32_t* targets) const override;
  uint64_t fingerprint() const override { return seed_ + 1000; }

 private:
  const int64_t train_, validation_, context_;
  const int vocabulary_;
  const uint64_t seed_;
};

}  // namespace isthmus::worker

#endif  // ISTHMUS_TESTS_WORKER_FAKE_STAGE_H_
