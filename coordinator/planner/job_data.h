// The data of a job, as daemons list them: how many samples, whether they can be what the job says,
// and whether two daemons hold the same. Thread: pure functions.
#ifndef ISTHMUS_COORDINATOR_PLANNER_JOB_DATA_H_
#define ISTHMUS_COORDINATOR_PLANNER_JOB_DATA_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/job.pb.h"
#include "proto/plan.pb.h"

namespace isthmus::coordinator {

struct DataSize {
  bool known = false;
  int64_t train_samples = 0;
  int64_t validation_samples = 0;
  double passes = 0;  // over the training samples, by the whole job
  // In words, where they are not the last share of the training files: "val.bin".
  std::string validation_files;
  // In words, of data.format tokens: "2 shards of 16-bit tokens, 1048576 tokens in all".
  std::string read_as;
  std::string doubt;  // in words: what could not be checked or looks odd; empty: nothing
};

// From the files a daemon lists. NotFound: it lists them and data.path is not among them.
// InvalidArgument: its contents are not of data.format, hold ids beyond the vocabulary, or make
// less than one step of samples. In words, with what to do.
absl::StatusOr<DataSize> CountSamples(const JobSpec& job, const NodeInfo& node);

// FailedPrecondition: both daemons list the data, and hold different ones. What is not known is no
// difference: the session compares the contents themselves.
absl::Status SameData(const JobSpec& job, const NodeInfo& a, const NodeInfo& b);

// Whether the daemons' next words may tell more of the job's data than is known now: none of them
// lists it (it may just have been put there), or one of this `version` has not told yet what it
// looks like. Another version's daemon may never tell.
bool DataMayCome(const JobSpec& job, const std::vector<const NodeInfo*>& nodes,
                 absl::string_view version);

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_PLANNER_JOB_DATA_H_
