#include "coordinator/planner/what_if.h"

#include <algorithm>
#include <functional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/core/card.h"
#include "coordinator/core/format.h"
#include "coordinator/planner/planner.h"

namespace isthmus::coordinator {
namespace {

using Pair = std::pair<std::string, std::string>;  // names of two daemons, in order

Pair PairOf(std::string a, std::string b) {
  if (b < a) std::swap(a, b);
  return {std::move(a), std::move(b)};
}

std::string NameOf(const Topology& topology, const std::string& id) {
  for (const NodeInfo& node : topology.nodes())
    if (node.id() == id) return node.name();
  return id;
}

class Changes {
 public:
  explicit Changes(const PlannerInput& input) : input_(input) {}

  void Try(std::string change, const std::function<void(Topology*)>& make) {
    if (planned_ >= kMostChanges) return;
    ++planned_;
    PlannerInput changed = input_;
    make(&changed.topology);
    const absl::StatusOr<PlannedJob> planned = MakePlan(changed);
    if (planned.ok()) found_.push_back({std::move(change), planned->plan.predicted_step_s()});
  }

  std::vector<WhatIf> Take() {
    std::stable_sort(found_.begin(), found_.end(),
                     [](const WhatIf& a, const WhatIf& b) { return a.step_s < b.step_s; });
    return std::move(found_);
  }

 private:
  const PlannerInput& input_;
  std::vector<WhatIf> found_;
  int planned_ = 0;
};

void MakeFaster(NodeInfo* node) {
  node->set_block_forward_s(node->block_forward_s() / 2);
  node->set_block_backward_s(node->block_backward_s() / 2);
}

// A daemon like `like`, joined to it and to the others as well as `like` is.
void AddOneLike(const NodeInfo& like, Topology* topology) {
  NodeInfo more = like;
  more.set_id(absl::StrCat(like.id(), "+"));
  more.set_name(absl::StrCat(like.name(), "+"));
  more.set_device(DeviceName(like.device()));  // a card of its own
  const LinkMeasurement* best = nullptr;
  const int links = topology->links_size();
  for (int i = 0; i < links; ++i) {
    LinkMeasurement link = topology->links(i);
    if (link.from_id() != like.id() && link.to_id() != like.id()) continue;
    (link.from_id() == like.id() ? *link.mutable_from_id() : *link.mutable_to_id()) = more.id();
    *topology->add_links() = link;
  }
  for (const LinkMeasurement& link : topology->links()) {
    if (link.from_id() != like.id()) continue;
    if (best == nullptr || link.rate_bits_per_s() > best->rate_bits_per_s()) best = &link;
  }
  if (best != nullptr) {
    LinkMeasurement between = *best;
    for (const Pair& ends : {Pair(like.id(), more.id()), Pair(more.id(), like.id())}) {
      between.set_from_id(ends.first);
      between.set_to_id(ends.second);
      *topology->add_links() = between;
    }
  }
  *topology->add_nodes() = std::move(more);
}

}  // namespace

std::vector<WhatIf> WhatIfs(const PlannerInput& input, const Plan& plan) {
  Changes changes(input);
  std::set<std::string> used;
  for (const RankPlan& rank : plan.ranks()) used.insert(rank.node_name());
  const NodeInfo* fastest = nullptr;
  for (const NodeInfo& node : input.topology.nodes()) {
    if (used.count(node.name()) == 0) continue;
    const auto pass = [](const NodeInfo& n) {
      return (n.block_forward_s() + n.block_backward_s()) / n.block_flops();
    };
    if (fastest == nullptr || pass(node) < pass(*fastest)) fastest = &node;
  }
  if (fastest != nullptr) {
    changes.Try(absl::StrCat("one daemon more like ", fastest->name()),
                [&](Topology* t) { AddOneLike(*fastest, t); });
  }
  changes.Try("all round trips halved", [](Topology* t) {
    for (LinkMeasurement& link : *t->mutable_links())
      link.set_round_trip_s(link.round_trip_s() / 2);
  });
  std::set<Pair> pairs;
  for (const LinkPlan& link : plan.links()) {
    const Pair ends =
        PairOf(plan.ranks(link.lower()).node_name(), plan.ranks(link.upper()).node_name());
    if (ends.first != ends.second) pairs.insert(ends);
  }
  for (const Pair& ends : pairs) {
    double least = 0;
    for (const LinkMeasurement& link : input.topology.links()) {
      if (PairOf(NameOf(input.topology, link.from_id()), NameOf(input.topology, link.to_id())) ==
          ends)
        least = least == 0 ? link.rate_bits_per_s() : std::min(least, link.rate_bits_per_s());
    }
    changes.Try(absl::StrCat(ends.first, " - ", ends.second, " at ", FormatRate(2 * least)),
                [&](Topology* t) {
                  for (LinkMeasurement& link : *t->mutable_links()) {
                    if (PairOf(NameOf(*t, link.from_id()), NameOf(*t, link.to_id())) == ends)
                      link.set_rate_bits_per_s(2 * link.rate_bits_per_s());
                  }
                });
  }
  for (const std::string& name : used) {
    changes.Try(absl::StrCat(name, " twice as fast"), [&](Topology* t) {
      for (NodeInfo& node : *t->mutable_nodes())
        if (node.name() == name) MakeFaster(&node);
    });
  }
  return changes.Take();
}

}  // namespace isthmus::coordinator
