// The figures at the end of a watched job: what `submit --watch` and `testnet` print and write as
// summary.json.
//
//   {"job_id", "name", "state", "reason", "generation", "step", "steps", "checkpoint_step",
//    "loss_first", "loss_last", "loss_last_mean" (of the last 10 committed steps),
//    "validation_loss" (null: none; the losses too before the first step), "validation_accuracy"
//    (a classifier's), "tokens", "tokens_per_s"
//    (as in `status`: of the last 20 steps), "elapsed_s", "raw_bytes", "wire_bytes", "ratio" (null:
//    no boundary), "boundaries": [{"link_id", "direction" (forward|backward), "from", "to",
//    "codec", "validation_codec" (where validation passes had another one, and were made),
//    "from_step" (bytes are counted from it on), "raw_bytes", "wire_bytes", "ratio"}]: a row for
//    each codec that a direction had}
//
// Thread: values and pure functions.
#ifndef ISTHMUS_COORDINATOR_CLI_VIEW_SUMMARY_H_
#define ISTHMUS_COORDINATOR_CLI_VIEW_SUMMARY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "proto/control.pb.h"
#include "proto/job/job_state.h"

namespace isthmus::cli {

struct Summary {
  JobStatus status;
  double loss_last_mean = 0;
  double tokens_per_s = 0;
  int64_t raw_bytes = 0;
  int64_t wire_bytes = 0;
};

constexpr size_t kMeanOf = 10;  // steps that the mean loss is of

// `records`: those of the last steps, for the means; may be empty.
Summary MakeSummary(const JobStatus& status, const std::vector<JobRecord>& records);

std::string SummaryTable(const Summary& summary);
std::string SummaryJson(const Summary& summary);

// Nothing more happens without a command: PAUSED, STOPPED, FINISHED, FAILED.
bool IsEnd(JobState state);

// Finished, or stopped with every step in a checkpoint. A stop that lost steps, in bad order or at
// once, is no success for who waits for the job.
bool EndedWell(const JobStatus& status);

double Ratio(int64_t raw_bytes, int64_t wire_bytes);  // 0: no bytes

}  // namespace isthmus::cli

#endif  // ISTHMUS_COORDINATOR_CLI_VIEW_SUMMARY_H_
