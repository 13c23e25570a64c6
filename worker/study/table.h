// The results of a study: a row for each setting and choice of boundaries, over its seeds; as text,
// CSV and JSON. Thread: pure functions.
#ifndef ISTHMUS_WORKER_STUDY_TABLE_H_
#define ISTHMUS_WORKER_STUDY_TABLE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/study/journal.h"
#include "worker/study/step_time.h"

namespace isthmus::study {

struct Row {
  std::string setting;
  std::string where;
  int seeds = 0;  // of which there is a result
  double loss = 0;
  double difference = 0;  // mean over the seeds of loss - uncompressed loss of the same seed
  double deviation = 0;   // standard deviation of that over the seeds; 0 with one seed
  double validation = 0;
  double raw_bytes = 0;  // a step, of the uncompressed run: fp32
  double wire_bytes = 0;
  double encode_s = 0;  // a step
  double decode_s = 0;
  std::vector<double> step_s;  // predicted, a value a rate of kRatesMbit
  std::string note;            // why there is no result
  double ratio() const { return wire_bytes > 0 ? raw_bytes / wire_bytes : 0; }
};

struct Energy {  // means over the places
  std::string what;
  int matrices = 0;
  double share = 0, least = 0, most = 0;
};

// Rows in the order in which their first record comes. A record without an uncompressed one of its
// seed has no difference and is left out.
absl::StatusOr<std::vector<Row>> MakeRows(const std::vector<CellRecord>& records,
                                          const StepShape& shape, const ComputeCost& compute);
std::vector<Energy> MakeEnergies(const std::vector<CellRecord>& records);

std::string RenderTable(const std::vector<Row>& rows, const std::vector<Energy>& energies);
std::string RenderCsv(const std::vector<Row>& rows);
std::string RenderJson(const std::vector<Row>& rows, const std::vector<Energy>& energies);

// Loss against bytes on the wire a step (logarithmic), a point a row, the uncompressed loss as a
// line.
std::string RenderSvg(const std::vector<Row>& rows, const std::string& title);

}  // namespace isthmus::study

#endif  // ISTHMUS_WORKER_STUDY_TABLE_H_
