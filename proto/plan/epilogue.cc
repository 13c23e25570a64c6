#include "proto/plan/epilogue.h"

#include "proto/plan/actions.h"

namespace isthmus {

std::vector<int> EpilogueMicros(const ActionList& receiver, int link) {
  std::vector<int> micros;
  for (const Action& a : receiver) {
    if (a.op() == Action::FWD) micros.clear();
    if (a.op() == Action::RECV && a.link() == link && a.what() == FrameHeader::GRADIENT)
      micros.push_back(a.micro());
  }
  if (!micros.empty()) micros.erase(micros.begin());
  return micros;
}

std::vector<int> EpilogueMicros(const Plan& plan, const LinkPlan& link) {
  if (!link.epilogue() || link.lower() < 0 || link.lower() >= plan.ranks_size()) return {};
  for (int l = 0; l < plan.links_size(); ++l) {
    if (&plan.links(l) == &link) return EpilogueMicros(TrainOf(plan, link.lower()), l);
  }
  return {};
}

}  // namespace isthmus
