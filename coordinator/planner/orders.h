// Which daemons in which order are worth a price: all orders for few daemons, else greedy ones,
// improved by swaps. By a rough score (rough_score.h); deterministic. Thread: pure functions.
#ifndef ISTHMUS_COORDINATOR_PLANNER_ORDERS_H_
#define ISTHMUS_COORDINATOR_PLANNER_ORDERS_H_

#include <vector>

#include "coordinator/planner/rough_score.h"

namespace isthmus::coordinator {

// Up to kPricedOrders orders of `stages` of the nodes (indices), best first. Empty: no order has
// usable links.
std::vector<Order> PromisingOrders(const RoughScore& rough, int stages);

// Up to kPricedLayouts ways to make `replicas` chains of `stages` of the nodes, best first. Empty:
// none was found that has the links and the data.
constexpr int kPricedLayouts = 3;
constexpr int kExhaustiveLayouts = 5040;  // as many are all compared
constexpr int kMostSwaps = 20000;         // that one search tries
std::vector<Chains> PromisingChains(const RoughScore& rough, int replicas, int stages);

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_PLANNER_ORDERS_H_
