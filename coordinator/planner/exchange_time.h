// How long the links take for what ranks of replicas exchange at once: as long as the slowest pair,
// and as long as the line of the rank that sends or gets the most; its links are thought to share
// one line, as fast as the fastest of them. Thread: one owner.
#ifndef ISTHMUS_COORDINATOR_PLANNER_EXCHANGE_TIME_H_
#define ISTHMUS_COORDINATOR_PLANNER_EXCHANGE_TIME_H_

#include <map>
#include <utility>
#include <vector>

#include "coordinator/planner/layout.h"

namespace isthmus::coordinator {

class ExchangeTime {
 public:
  explicit ExchangeTime(const Layout& layout);  // outlives this

  // One of the two phases of a sharded reduction (contributions, sums) of so many bytes in all.
  void AddReduction(const std::vector<int>& ranks, double bytes);
  // Subnetworks' weights of a stage, so many bytes in all: a pair has in common what chance makes
  // it, either way. `merged`: all that others hold goes to the first replica instead.
  void AddSlices(const std::vector<int>& ranks, double bytes, bool merged);

  double Seconds() const;

 private:
  struct Line {
    double out = 0, in = 0;
  };

  void Fastest(int rank, double out, double in);
  void Send(int from, int to, double bytes);

  const Layout& layout_;
  std::map<std::pair<int, int>, double> between_;  // bytes, of the direction that has more
  std::map<int, Line> through_;                    // bytes of each rank
  std::map<int, Line> lines_;                      // bit/s of each rank
};

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_PLANNER_EXCHANGE_TIME_H_
