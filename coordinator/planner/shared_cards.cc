#include "coordinator/planner/shared_cards.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/core/card.h"
#include "coordinator/core/format.h"
#include "coordinator/planner/cost_model.h"
#include "coordinator/planner/job_data.h"

namespace isthmus::coordinator {
namespace {

struct Card {
  std::vector<NodeInfo*> nodes;  // that the job may take, in order of their names
  std::vector<std::string> busy;
  int64_t busy_bytes = 0;  // planned by the jobs of those
};

bool MayTake(const JobSpec& job, const NodeInfo& node) {
  const auto& named = job.strategy().nodes();
  return named.empty() || std::any_of(named.begin(), named.end(), [&](const std::string& name) {
           return name == node.name() || name == node.id();
         });
}

std::map<std::string, Card> CardsOf(PlannerInput* input) {
  std::map<std::string, Card> cards;
  for (NodeInfo& node : *input->topology.mutable_nodes()) {
    const std::string card = CardOf(node.device());
    if (!card.empty() && OnCard(node) && MayTake(input->job, node))
      cards[card].nodes.push_back(&node);
  }
  for (const AbsentNode& absent : input->absent) {
    if (!absent.node.has_value() || absent.planned_bytes == 0) continue;
    const auto card = cards.find(CardOf(absent.node->device()));
    if (card == cards.end()) continue;
    card->second.busy.push_back(absent.name);
    card->second.busy_bytes += absent.planned_bytes;
  }
  for (auto& [uuid, card] : cards) {
    std::sort(card.nodes.begin(), card.nodes.end(), [](const NodeInfo* a, const NodeInfo* b) {
      return std::tie(a->name(), a->id()) < std::tie(b->name(), b->id());
    });
  }
  return cards;
}

bool WasIn(const Plan& plan, const NodeInfo& node) {
  return std::any_of(plan.ranks().begin(), plan.ranks().end(),
                     [&](const RankPlan& rank) { return rank.node_id() == node.id(); });
}

std::string NamesOf(const std::vector<NodeInfo*>& nodes) {
  return absl::StrJoin(nodes, ", ", [](std::string* out, const NodeInfo* node) {
    absl::StrAppend(out, node->name());
  });
}

std::vector<std::string> IdsOf(const std::vector<NodeInfo*>& nodes) {
  std::vector<std::string> ids;
  for (const NodeInfo* node : nodes) ids.push_back(node->id());
  return ids;
}

// Daemons elsewhere to which it has usable links.
int64_t LinksOf(const NodeInfo& node, const Topology& topology, const LinkIndex& links) {
  const std::string card = CardOf(node.device());
  return std::count_if(topology.nodes().begin(), topology.nodes().end(),
                       [&](const NodeInfo& other) {
                         return CardOf(other.device()) != card && links.Both(node.id(), other.id());
                       });
}

// Moves these, by their identities, to those that are absent.
void MoveToAbsent(std::map<std::string, AbsentNode> out, PlannerInput* input) {
  if (out.empty()) return;
  Topology kept;
  for (NodeInfo& node : *input->topology.mutable_nodes()) {
    const auto absent = out.find(node.id());
    if (absent == out.end()) {
      *kept.add_nodes() = std::move(node);
    } else {
      input->absent.push_back(std::move(absent->second));
    }
  }
  input->topology.mutable_nodes()->Swap(kept.mutable_nodes());
}

// "jobs on b, c were planned to take 30.0 GiB of it"; empty: none.
std::string BusyWords(const Card& card) {
  return card.busy.empty()
             ? ""
             : absl::StrCat("jobs on ", absl::StrJoin(card.busy, ", "), " were planned to take ",
                            FormatBytes(card.busy_bytes), " of it");
}

}  // namespace

bool LeaveSomeOfEachCard(int most, PlannerInput* input, std::vector<CardWords>* words) {
  if (!input->job.strategy().nodes().empty()) return false;
  std::map<std::string, AbsentNode> out;
  const LinkIndex links(input->topology);
  for (auto& [uuid, card] : CardsOf(input)) {
    const auto was = std::count_if(card.nodes.begin(), card.nodes.end(),
                                   [&](const NodeInfo* n) { return WasIn(input->previous, *n); });
    const auto stay = std::max<size_t>(most, was);
    if (card.nodes.size() <= stay) continue;
    const auto worth = [&](const NodeInfo* n) {
      return std::make_tuple(WasIn(input->previous, *n), HasCompute(*n),
                             CountSamples(input->job, *n).ok(),
                             LinksOf(*n, input->topology, links));
    };
    std::stable_sort(card.nodes.begin(), card.nodes.end(),
                     [&](const NodeInfo* a, const NodeInfo* b) { return worth(a) > worth(b); });
    const std::vector<NodeInfo*> kept(card.nodes.begin(), card.nodes.begin() + stay),
        left(card.nodes.begin() + stay, card.nodes.end());
    const std::string names = NamesOf(kept);
    for (const NodeInfo* node : left) {
      out[node->id()] = {node->id(), node->name(),
                         absl::StrCat(node->name(), " computes on the card of ", names), false,
                         std::nullopt};
    }
    words->push_back(
        {IdsOf(kept), absl::StrCat("card of ", names, ": ", NamesOf(left),
                                   left.size() == 1 ? " computes" : " compute",
                                   " on it as well and ", left.size() == 1 ? "is" : "are",
                                   " left out: daemons of one card are together no "
                                   "faster than one (strategy.nodes takes those that "
                                   "it names)")});
  }
  const bool some = !out.empty();
  MoveToAbsent(std::move(out), input);
  return some;
}

void ShareCards(PlannerInput* input, std::vector<CardWords>* words) {
  const bool named = !input->job.strategy().nodes().empty();
  std::map<std::string, AbsentNode> full;
  for (const auto& [uuid, card] : CardsOf(input)) {
    const auto parts = static_cast<int64_t>(card.nodes.size());
    if (parts < 2 && card.busy.empty()) continue;
    const int64_t whole = card.nodes.front()->device_memory_bytes();
    const int64_t left = std::max<int64_t>(0, whole - card.busy_bytes) / parts;
    const int64_t part = std::max<int64_t>(1, left);  // 0 would be a daemon on its CPU
    if (left < kProcessBytes && !named) {
      for (const NodeInfo* node : card.nodes) {
        full[node->id()] = {node->id(), node->name(),
                            absl::StrCat(node->name(), " has ", FormatBytes(left), " of its card (",
                                         FormatBytes(whole),
                                         ") for a job, less than a process "
                                         "takes",
                                         card.busy.empty() ? "" : ": ", BusyWords(card)),
                            !card.busy.empty(), *node};
      }
      continue;
    }
    for (NodeInfo* node : card.nodes) {
      node->set_device_memory_bytes(part);
      node->set_block_forward_s(node->block_forward_s() * static_cast<double>(parts));
      node->set_block_backward_s(node->block_backward_s() * static_cast<double>(parts));
    }
    std::string text =
        absl::StrCat("card of ", NamesOf(card.nodes), " (", card.nodes.front()->device_model(),
                     ", ", FormatBytes(whole), "): ");
    absl::StrAppend(&text, BusyWords(card), card.busy.empty() ? "" : ", ",
                    parts > 1 ? "each counts on " : "this job counts on ", FormatBytes(part));
    if (parts > 1)
      absl::StrAppend(&text, " and on 1/", parts, " of its speed, as they compute at once");
    words->push_back({IdsOf(card.nodes), std::move(text)});
  }
  MoveToAbsent(std::move(full), input);
}

}  // namespace isthmus::coordinator
