// Daemons that compute on one GPU. Each of them reports the whole card and the speed that it has
// alone, so a plan that takes several would promise memory and compute that are there once.
//
// A plan takes one daemon of a card, unless the job names its daemons or needs more of them than
// there are cards, or ran on several: two on one card are no faster than one (worker/engine's
// README.md). Where several are needed, as few of each card may be taken as will do, and each
// counts an equal part of the card's memory and of its speed. What the jobs of other daemons of a
// card were planned to take of its memory is not there; what they compute shows in the steps of
// both (compute_table.h). Thread: pure functions.
#ifndef ISTHMUS_COORDINATOR_PLANNER_SHARED_CARDS_H_
#define ISTHMUS_COORDINATOR_PLANNER_SHARED_CARDS_H_

#include <string>
#include <vector>

#include "coordinator/planner/planner_input.h"

namespace isthmus::coordinator {

// Said of a plan that takes one of these daemons.
struct CardWords {
  std::vector<std::string> ids;
  std::string text;
};

// Moves all but `most` (1 or more) daemons of each card from the topology to those that are absent;
// of a card whose daemons were in the previous plan, no fewer stay than those. False: nothing is
// left out. Those stay that were in the previous plan, can read the data, have more links, or come
// first by name.
bool LeaveSomeOfEachCard(int most, PlannerInput* input, std::vector<CardWords>* words);

// Gives each daemon that the job may take its part of its card. One whose part has no room for a
// process is moved to those that are absent, unless the job names it.
void ShareCards(PlannerInput* input, std::vector<CardWords>* words);

// Ranks of the plan whose daemons compute on `card`, of which `card_of` tells that of a daemon by
// its identity; at least 1.
template <typename CardOfNode>
int RanksOnCard(const Plan& plan, const std::string& card, CardOfNode card_of) {
  int ranks = 0;
  for (const RankPlan& rank : plan.ranks())
    ranks += !card.empty() && card_of(rank.node_id()) == card;
  return ranks > 1 ? ranks : 1;
}

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_PLANNER_SHARED_CARDS_H_
