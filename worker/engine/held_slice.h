// A stage that trains a slice of its layers (worker::StageSlice, proto/plan/deal.h). Its parameters
// have the shapes of what is held, in every round the same ones, so that a deal moves values and
// nothing else. The whole model, while it is together, lies beside them: weights alone, in the same
// memory (a GPU's, or the host's). For worker/engine alone. Thread: the compute thread.
#ifndef ISTHMUS_WORKER_ENGINE_HELD_SLICE_H_
#define ISTHMUS_WORKER_ENGINE_HELD_SLICE_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "proto/job.pb.h"
#include "proto/plan.pb.h"
#include "worker/engine/blocks.h"
#include "worker/engine/versions.h"
#include "worker/stage.h"

namespace isthmus::engine {

class HeldSlice : public worker::StageSlice {
 public:
  // Of plan.ranks(rank), whose parameters are in `versions`, which outlives this.
  HeldSlice(const Plan& plan, int rank, Versions* versions);

  // What a stage holds when a session begins; empty: all of its layers.
  static Slice AtStart(const Plan& plan, int rank);

  absl::Status Read(const Slice& units, absl::Span<float> out) override;
  absl::Status Hold(const Slice& next) override;
  absl::Status Write(const Slice& units, absl::Span<const float> in) override;
  absl::Status BeginWhole() override;
  absl::Status WriteWhole(const Slice& units, absl::Span<const float> in) override;
  void EndWhole() override;

  // Also where all of its layers are whole in every slice.
  bool together() const { return together_ || !deals_; }
  // Of a block in a pass of training, or with the whole model.
  BlockShape ShapeOf(int layer, bool whole) const;
  // By what a slice's products with the hidden units of a layer are multiplied: all / held.
  double UnitScale(int layer, bool whole) const;
  // The optimiser's steps since the last deal, with the one that is about to be made.
  int64_t CountStep() { return ++steps_; }

 private:
  absl::Status Check(const Slice& units, size_t values) const;
  void FillResting(uint64_t seed);

  const ModelSpec model_;
  const int first_layer_;
  Versions* const versions_;
  Slice held_;
  const bool deals_;  // some of it
  bool together_ = false;
  int64_t steps_ = 0;
};

// Elements [first, first + in.size()) of a whole parameter: those that are held are written.
void WriteHeld(int64_t first, absl::Span<const float> in, const Parameter& parameter);

}  // namespace isthmus::engine

#endif  // ISTHMUS_WORKER_ENGINE_HELD_SLICE_H_
