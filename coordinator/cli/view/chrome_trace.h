// A trace of a job as a file for Perfetto and chrome://tracing, and in words. The format: Trace
// Event Format, JSON object form; coordinator/TRACE.md says what is what. Thread: pure functions.
#ifndef ISTHMUS_COORDINATOR_CLI_VIEW_CHROME_TRACE_H_
#define ISTHMUS_COORDINATOR_CLI_VIEW_CHROME_TRACE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "proto/control.pb.h"

namespace isthmus::cli {

// "stage 1 on n2", "stage 0 of replica 1 on n3".
std::string RankName(const Plan& plan, int rank);

// What is to be added to a rank's clock. Of one whose clock is not known: so that its first span
// begins with the first one of the others.
std::vector<int64_t> ClockOffsets(const TraceJobReply& reply);

// Events in the order of ranks and spans; times from the first span on, in microseconds.
std::string ChromeTrace(const TraceJobReply& reply);

// Shares of a rank's time in the traced steps. The first ones are of the compute thread and add up
// to 1; the others pass beside it, each the share of the time in which any link does so.
struct RankShares {
  int64_t steps = 0;  // 0: it told of none
  int64_t dropped = 0;
  double step_s = 0;
  double forward = 0, backward = 0, optimiser = 0, reduce = 0, wait = 0, evaluate = 0,
         checkpoint = 0, other = 0;
  double encode = 0, send = 0, receive = 0, decode = 0;
};
std::vector<RankShares> SharesOf(const TraceJobReply& reply);  // by rank

// A line a rank.
std::string TraceSummary(const TraceJobReply& reply);
// One JSON object of the same; `file`: where the trace is.
std::string TraceSummaryJson(const TraceJobReply& reply, const std::string& file);

// What is not as it was asked for, a line each: ranks that told nothing, fewer steps, spans beyond
// the bound, clocks that are not known.
std::vector<std::string> TraceFaults(const TraceJobReply& reply, int steps);

}  // namespace isthmus::cli

#endif  // ISTHMUS_COORDINATOR_CLI_VIEW_CHROME_TRACE_H_
