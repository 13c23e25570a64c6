#include "proto/plan/wiring.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace isthmus {

Wiring Wiring::Chain(int stages) {
  Wiring wiring;
  wiring.ranks = stages;
  for (int b = 0; b + 1 < stages; ++b)
    wiring.links.push_back({b, b + 1, true, absl::StrCat("b", b), 0});
  return wiring;
}

Wiring Wiring::Of(const Plan& plan) {
  Wiring wiring;
  wiring.ranks = plan.ranks_size();
  for (const LinkPlan& link : plan.links()) {
    wiring.links.push_back({link.lower(), link.upper(), link.kind() == LinkPlan::BOUNDARY,
                            link.id(), link.queue_limit()});
  }
  for (const GroupPlan& group : plan.groups()) {
    wiring.groups.push_back({{group.ranks().begin(), group.ranks().end()},
                             group.rule() == GroupPlan::SHARDED,
                             group.id()});
  }
  return wiring;
}

int Wiring::GroupLink(int a, int b) const {
  const int lower = std::min(a, b), upper = std::max(a, b);
  for (size_t l = 0; l < links.size(); ++l) {
    if (!links[l].boundary && links[l].lower == lower && links[l].upper == upper)
      return static_cast<int>(l);
  }
  return -1;
}

}  // namespace isthmus
