// Merges what each stage says about a step into one record, and adds up bytes per boundary and
// direction.
//
// A step is whole when every stage has told; repeated and foreign records change nothing. Steps may
// become whole out of order (a daemon that lost its connection sends again). Memory is bounded by
// kMaxPendingSteps and kMaxAhead. Thread: one owner. Pure: no clock, no I/O.
#ifndef ISTHMUS_COORDINATOR_CORE_RECORDS_H_
#define ISTHMUS_COORDINATOR_CORE_RECORDS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/control.pb.h"
#include "proto/plan.pb.h"

namespace isthmus::coordinator {

struct MergedStep {
  JobRecord record;
  std::vector<StepRecord> stages;  // what it was merged from
};

class RecordMerger {
 public:
  static constexpr int kMaxPendingSteps =
      4096;                               // incomplete steps kept; beyond it the oldest is given up
  static constexpr int kMaxAhead = 8192;  // whole steps kept in mind above the first gap

  RecordMerger() = default;
  // For one generation: `stages` records make a step; steps before `next_step` are done.
  RecordMerger(uint64_t generation, int stages, int64_t next_step);

  // The merged step if `record` completed it, nothing if not. InvalidArgument: it does not belong
  // here or is broken.
  absl::StatusOr<std::optional<MergedStep>> Add(const StepRecord& record);

  // Of the steps before `before`, those that some rank of `plan` told of and another one no longer
  // can: merged from what was told. Of their loss, the replicas that told it stand for all; where
  // none did, a step is left out. For a run that goes on from a checkpoint: its steps were made.
  std::vector<MergedStep> TakeRest(int64_t before, const Plan& plan);

  // Every step before this one is merged (or given up).
  int64_t next_step() const { return next_step_; }

 private:
  void MarkDone(int64_t step);

  uint64_t generation_ = 0;
  int stages_ = 0;
  int64_t next_step_ = 0;
  std::set<int64_t> ahead_;  // whole steps above next_step_
  std::map<int64_t, std::map<int, StepRecord>> pending_;
};

// InvalidArgument unless every figure is finite and not negative, and there are not more than
// kMaxDirections directions or groups.
absl::Status CheckStepRecord(const StepRecord& record);
constexpr int kMaxDirections = 1024;

// Whether the boundaries of both lie between the same layers: else bytes over them don't add up.
bool SameCut(const Plan& a, const Plan& b);

// Adds the record's bytes to the totals of the links of `plan`; unknown links are left out. Keeps
// totals in link order, forward first, a row for each codec that carried bytes ("quant(4),
// validations bf16" where a validation pass was among them: `validated`), at most kMaxCodecRows of
// a direction and one of others. New rows are counted from the plan's start on.
void AddBytes(const StepRecord& record, const Plan& plan, bool validated,
              std::vector<BoundaryTotals>* totals);
constexpr int kMaxCodecRows = 8;

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_CORE_RECORDS_H_
