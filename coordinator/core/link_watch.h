// What the links of a running job carry, read from the frames that it sends anyway.
//
// A frame of several chunks that its receiver waited for is a train: its bytes after the first
// chunk and the time they took show the rate, less what TCP's slow start takes, which begins anew
// after each pause. Trains are added up over windows of some steps; what two windows in a row say
// is true. Links beside each other on one line share it: of reductions among more than two ranks so
// many at once are thought of. A job whose frames are no longer than a chunk shows nothing. Thread:
// one owner. Pure: no clock, no I/O. Bound: the directions of the plan's links.
#ifndef ISTHMUS_COORDINATOR_CORE_LINK_WATCH_H_
#define ISTHMUS_COORDINATOR_CORE_LINK_WATCH_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "proto/control.pb.h"
#include "proto/plan.pb.h"

namespace isthmus::coordinator {

constexpr int kWindowSteps = 3;  // a window has as many, and as many seconds, at least
constexpr double kWindowSeconds = 3;
constexpr double kMuchSlower = 0.6;  // expected time / measured time: the link is called slower
constexpr double kMuchFaster = 1.6;  // ... or faster
// Of a window: less time than that in trains, and the link holds nothing up.
constexpr double kLeastShare = 0.1;
// Beyond it trains show the hosts rather than the link.
constexpr double kMostBitsPerSecond = 5e8;

struct Trains {
  int64_t frames = 0;
  int64_t bytes = 0;
  double seconds = 0;
};

// One direction of a link over two windows, one after the other.
struct LinkLook {
  std::string link_id, from_id, to_id;
  double round_trip_s = 0;
  int side_by_side = 1;  // links that may share its line at the same time
  Trains before, now;
  double before_s = 0, now_s = 0;  // how long the windows were
};

// What it carries, where that is far from `believed_bits_per_s`; nothing: it is not, or the trains
// tell too little.
std::optional<double> CarriedRate(const LinkLook& look, double believed_bits_per_s);

class LinkWatch {
 public:
  LinkWatch() = default;
  explicit LinkWatch(const Plan& plan);  // of the generation that begins

  // What all ranks told of a step. The looks at which a window ends with it.
  std::vector<LinkLook> OnStep(const std::vector<StepRecord>& ranks, double step_s);

 private:
  struct Direction {
    LinkLook look;
    bool forward = false;
    bool whole = false;  // look.before is of a window
  };
  Direction* Find(const std::string& link_id, bool forward);

  std::vector<Direction> directions_;
  int steps_ = 0;  // of the window that is under way
  double seconds_ = 0;
};

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_CORE_LINK_WATCH_H_
