// Plans beside the planner's own as figures and words: rows of a comparison, what one choice of the
// planner saves, whether any plan is better. Thread: one owner.
#ifndef ISTHMUS_COORDINATOR_PLANNER_COMPARE_WORDS_H_
#define ISTHMUS_COORDINATOR_PLANNER_COMPARE_WORDS_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/planner/planner.h"
#include "proto/comparison.pb.h"

namespace isthmus::coordinator {

constexpr double kSameCost = 1e-3;  // plans that differ by less cost the same
// Where the job names codecs, a plan without them is not one that the planner might have taken.
constexpr char kNoCompression[] = "no compression", kCodecs[] = "codecs";

class CompareWords {
 public:
  // `daemons`: names of those that may be taken. `ours` outlives this.
  CompareWords(const PlannerInput& input, std::vector<std::string> daemons, const PlannedJob& ours);

  // A row. Not OK: the plan is not possible.
  void AddPlan(const std::string& strategy, const absl::StatusOr<PlannedJob>& planned,
               int64_t tried);
  void AddOurs(int64_t tried);
  // A plan without one of the planner's choices, for the words alone. `how`: "with equal numbers of
  // layers".
  void AddGain(const std::string& choice, const std::string& how,
               const absl::StatusOr<PlannedJob>& without);
  PlanComparison Take();

 private:
  struct Better {
    std::string strategy, settings;
    double times = 1;  // its cost over the planner's
  };

  ComparedPlan* AddRow(const std::string& strategy, const PlannedJob& planned, int64_t tried);
  void Judge(const std::string& strategy, const PlannedJob& planned);
  std::string Verdict() const;

  const PlannedJob& ours_;
  const std::vector<std::string> daemons_;
  const bool order_given_, cut_given_, codecs_given_;
  PlanComparison out_;
  std::vector<std::pair<double, std::string>> gains_;  // by times
  std::vector<Better> better_;                         // the best first
};

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_PLANNER_COMPARE_WORDS_H_
