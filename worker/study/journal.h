// The finished cells of a study, durable: a JSON object a line in DIR/cells.jsonl, appended and
// synced as each cell ends. A line cut off by a crash is dropped at the next opening; any other
// line that is not one of ours is an error that names it. One process at a time has a directory
// open. Thread: one owner.
#ifndef ISTHMUS_WORKER_STUDY_JOURNAL_H_
#define ISTHMUS_WORKER_STUDY_JOURNAL_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/study/stage_line.h"
#include "worker/study/step_time.h"

namespace isthmus::study {

struct CellRecord {
  std::string key;      // of everything that decides the result
  std::string setting;  // Setting::Text
  std::string where;
  uint64_t seed = 0;
  double loss = 0;
  double validation = 0;
  int64_t steps = 0;
  int64_t raw_bytes = 0;
  int64_t wire_bytes = 0;
  double encode_s = 0;
  double decode_s = 0;
  double seconds = 0;
  WireCost wire;
  std::vector<EnergyShare> energies;  // of an uncompressed cell
};

std::string ToJsonLine(const CellRecord& record);  // without the end of the line
absl::StatusOr<CellRecord> FromJsonLine(const std::string& line);

class Journal {
 public:
  // Makes the directory. AlreadyExists: another process has it open. InvalidArgument: a line that
  // is not ours. ResourceExhausted: it can't be written.
  static absl::StatusOr<std::unique_ptr<Journal>> Open(const std::string& directory);
  ~Journal();

  const CellRecord* Find(const std::string& key) const;
  // On disk when it returns.
  absl::Status Append(const CellRecord& record);

  // Passes of this machine, by the key of the job; measured once a study.
  const ComputeCost* Compute(const std::string& key) const;
  absl::Status AppendCompute(const std::string& key, const ComputeCost& cost);

 private:
  Journal(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  absl::Status Load();
  absl::Status Take(const std::string& line);
  absl::Status WriteLine(const std::string& line);

  const std::string path_;
  const int fd_;
  std::map<std::string, CellRecord> records_;
  std::map<std::string, ComputeCost> computes_;
};

}  // namespace isthmus::study

#endif  // ISTHMUS_WORKER_STUDY_JOURNAL_H_
