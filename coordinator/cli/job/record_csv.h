// The records of a job as CSV (RFC 4180, lines end in LF), for spreadsheets and
// deploy/tensorboard.py: the fields of JobRecord by their names. Thread: pure functions.
#ifndef ISTHMUS_COORDINATOR_CLI_JOB_RECORD_CSV_H_
#define ISTHMUS_COORDINATOR_CLI_JOB_RECORD_CSV_H_

#include <string>

#include "proto/control.pb.h"

namespace isthmus::cli {

// With its end of line, as the line of each record.
std::string RecordCsvHeader();
// Numbers as JSON has them; empty: no validation at this step, or a number that is not finite.
std::string RecordCsv(const JobRecord& record);

}  // namespace isthmus::cli

#endif  // ISTHMUS_COORDINATOR_CLI_JOB_RECORD_CSV_H_
