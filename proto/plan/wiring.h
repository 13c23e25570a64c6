// Who is joined to whom: the links and groups of a plan as its schedules need them.
// Thread: values and pure functions.
#ifndef ISTHMUS_PROTO_PLAN_WIRING_H_
#define ISTHMUS_PROTO_PLAN_WIRING_H_

#include <string>
#include <utility>
#include <vector>

#include "proto/plan.pb.h"

namespace isthmus {

struct Wiring {
  struct Link {
    int lower = 0, upper = 0;  // ranks
    bool boundary = true;
    std::string name;
    int queue_limit = 0;  // frames a direction may hold; 0: what the simulation is told
  };
  struct Group {
    std::vector<int> ranks;
    bool sharded = false;
    std::string name;
  };
  int ranks = 0;
  std::vector<Link> links;
  std::vector<Group> groups;

  // One replica: boundary b joins ranks b and b + 1.
  static Wiring Chain(int stages);
  static Wiring Of(const Plan& plan);

  // The GROUP link between two ranks; -1: none.
  int GroupLink(int a, int b) const;
};

}  // namespace isthmus

#endif  // ISTHMUS_PROTO_PLAN_WIRING_H_
