// What `watch` shows: on a terminal a frame that redraws itself, else a line now and then. Text in,
// text out. Thread: one owner. Keeps the last kMaxHistory losses and records; older ones are
// thinned out.
#ifndef ISTHMUS_COORDINATOR_CLI_VIEW_WATCH_VIEW_H_
#define ISTHMUS_COORDINATOR_CLI_VIEW_WATCH_VIEW_H_

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "proto/control.pb.h"

namespace isthmus::cli {

constexpr size_t kMaxHistory = 4096;

struct WatchViewOptions {
  bool terminal = false;  // redraw in place
  bool unicode = true;
  size_t width = 80;                             // columns
  absl::Duration line_every = absl::Seconds(2);  // not a terminal: at most one line so often
  absl::Duration frame_every = absl::Milliseconds(100);
};

class WatchView {
 public:
  explicit WatchView(WatchViewOptions options) : options_(options) {}

  // What to print after this reply; may be empty.
  std::string Update(const WatchReply& reply, absl::Time now);
  // A remark (lost connection...) between frames.
  std::string Remark(const std::string& text);
  // The last frame or lines (step, then the state that the job ended in), and the cursor below.
  std::string Finish();

  const JobStatus& status() const { return status_; }
  int64_t next_step() const { return next_step_; }  // the first step without a record
  const std::vector<JobRecord>& records() const { return records_; }

 private:
  void Take(const WatchReply& reply);
  std::string StateLine();
  std::string ValidationLines();
  std::string NewWarnings();
  std::string Draw(const std::vector<std::string>& lines);

  const WatchViewOptions options_;
  JobStatus status_;
  std::vector<JobRecord> records_;
  std::vector<double> losses_;  // thinned to every stride_-th
  size_t stride_ = 1;
  size_t seen_ = 0;
  int64_t next_step_ = 0;
  uint64_t generation_ = 0;   // of the last record
  int64_t history_end_ = -1;  // committed steps when the watching began
  int64_t printed_step_ = -1;
  int64_t validated_step_ = -1;  // the last validation that has a line
  JobState printed_state_ = JOB_PENDING;
  std::string printed_reason_;
  std::set<std::string> warned_;  // kinds of warnings that are out
  bool state_printed_ = false;
  size_t drawn_lines_ = 0;
  absl::Time last_output_ = absl::InfinitePast();
};

// The pure parts.
std::vector<std::string> WatchFrame(const JobStatus& status, const std::vector<JobRecord>& records,
                                    const std::vector<double>& losses, size_t width, bool unicode);
std::string WatchLine(const JobStatus& status, const JobRecord& record, bool newest = true);

}  // namespace isthmus::cli

#endif  // ISTHMUS_COORDINATOR_CLI_VIEW_WATCH_VIEW_H_
