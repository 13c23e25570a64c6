#include "coordinator/core/membership.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "coordinator/core/format.h"
#include "proto/data/data_files.h"

namespace isthmus::coordinator {
namespace {

constexpr size_t kMaxNameBytes = 255;
constexpr size_t kLabelDigits = 6;  // of an identity, or as many more as tell it apart

std::string Describe(const NodeInfo& node) {
  return absl::StrCat(node.name(), " (", node.address(), ", identity ", node.id(), ")");
}

absl::Status CheckText(absl::string_view field, const std::string& text, bool required) {
  if (required && text.empty())
    return absl::InvalidArgumentError(absl::StrCat("register: ", field, " is empty"));
  if (text.size() > kMaxNameBytes) {
    return absl::InvalidArgumentError(absl::StrCat("register: ", field, " has ", text.size(),
                                                   " bytes; at most ", kMaxNameBytes,
                                                   " are allowed"));
  }
  for (unsigned char c : text) {
    if (c < 0x20 || c == 0x7f)
      return absl::InvalidArgumentError(
          absl::StrCat("register: ", field, " has a control character"));
  }
  return absl::OkStatus();
}

}  // namespace

std::string LocalOnly(const std::string& address) {
  const std::string host = HostOf(address);
  if (absl::StartsWith(host, "127.") || absl::StartsWith(host, "localhost") || host == "[::1]")
    return absl::StrCat("advertises ", address,
                        ", a loopback address, which other hosts can't "
                        "reach: start it with --advertise HOST:PORT");
  if (absl::StartsWith(host, "169.254.") || absl::StartsWithIgnoreCase(host, "[fe80:"))
    return absl::StrCat("advertises ", address,
                        ", a link-local address, which only hosts on the "
                        "same cable reach: start it with --advertise HOST:PORT");
  return "";
}

bool IsUsable(const CoordinatorPath& path) {
  for (double v : {path.up_bits_per_s(), path.down_bits_per_s(), path.round_trip_s()})
    if (!std::isfinite(v) || v < 0) return false;
  return true;
}

absl::Status CheckNodeInfo(const NodeInfo& node) {
  RETURN_IF_ERROR(CheckText("node.id", node.id(), true));
  RETURN_IF_ERROR(CheckText("node.name", node.name(), true));
  RETURN_IF_ERROR(CheckText("node.address", node.address(), true));
  const std::string host = HostOf(node.address());
  if (host == "0.0.0.0" || host == "[::]" || host == "*" || host.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("register: node.address is ", node.address(),
                     ", which nobody can dial: start the daemon with --advertise HOST:PORT"));
  }
  RETURN_IF_ERROR(CheckText("node.metrics_address", node.metrics_address(), false));
  RETURN_IF_ERROR(CheckText("node.device", node.device(), false));
  RETURN_IF_ERROR(CheckText("node.version", node.version(), false));
  for (double v : {node.block_forward_s(), node.block_backward_s(), node.block_flops()}) {
    if (!std::isfinite(v) || v < 0)
      return absl::InvalidArgumentError(
          "register: a measured time of the reference block is not a number");
  }
  if (node.memory_bytes() < 0 || node.disk_bytes() < 0)
    return absl::InvalidArgumentError("register: memory or disk is negative");
  if (node.data_files_size() > kMaxDataFiles) {
    return absl::InvalidArgumentError(
        absl::StrCat("register: ", node.data_files_size(), " data files; at most ", kMaxDataFiles));
  }
  return absl::OkStatus();
}

// It is known from the store alone.
static bool NotHeardYet(const Member& member) {
  return !member.connected() && !member.has_heartbeat && member.instance.empty();
}

std::string AwayWords(const Member& member, absl::Time now) {
  if (!member.leaving && NotHeardYet(member)) return "is not heard since the coordinator started";
  if (!member.leaving)
    return absl::StrCat("is lost, last heard ", DurationWords(member.silent(now)), " ago");
  return absl::StrCat(
      "left in good order ", DurationWords(now - member.lost_since), " ago: it was told to end",
      member.why_leaving.empty() ? "" : absl::StrCat(" (", member.why_leaving, ")"));
}

RegisterDecision Membership::Register(const isthmus::Register& request, uint64_t stream,
                                      absl::Time first_asked, absl::Time now) {
  RegisterDecision decision;
  const NodeInfo& node = request.node();
  if (absl::Status good = CheckNodeInfo(node); !good.ok()) {
    return {RegisterDecision::kRefused, std::string(good.message())};
  }
  for (const auto& [id, other] : members_) {
    if (id == node.id() || !other.connected() || other.node.address() != node.address()) continue;
    RegisterDecision there = InTheWay(
        other,
        absl::StrCat(Describe(node), " advertises the address of ", Describe(other.node),
                     ", which is connected and alive: whoever dials one of them would reach the "
                     "other. Give each its own --advertise HOST:PORT"),
        first_asked, now);
    if (there.kind != RegisterDecision::kAccepted) return there;
  }
  auto it = members_.find(node.id());
  if (it == members_.end()) {
    if (static_cast<int>(members_.size()) >= options_.max_nodes && !MakeRoom()) {
      return {RegisterDecision::kRefused, absl::StrCat("the coordinator already serves ",
                                                       members_.size(), " daemons, its limit")};
    }
    it = members_.emplace(node.id(), Member{}).first;
    decision.reason = absl::StrCat("new daemon ", Describe(node));
    decision.restarted = true;
  } else {
    const Member& old = it->second;
    const bool same_process = !request.instance().empty() && request.instance() == old.instance;
    if (old.connected() && !same_process) {
      RegisterDecision there = InTheWay(
          old,
          absl::StrCat("identity ", node.id(), " belongs to ", Describe(old.node),
                       ", which is connected and alive. Was its state directory copied, or its "
                       "certificate? Give this daemon an empty --state-dir, or with --tls-dir a "
                       "certificate of its own name"),
          first_asked, now);
      if (there.kind != RegisterDecision::kAccepted) return there;
    }
    decision.restarted = !same_process;
    decision.replaced_stream = old.stream;
    decision.reason =
        absl::StrCat(Describe(node),
                     same_process           ? " dialled again"
                     : old.instance.empty() ? " is known from before the coordinator's restart"
                                            : " is back after a restart",
                     old.connected() ? "; its earlier stream is ended" : "");
  }
  Member& member = it->second;
  if (decision.restarted || member.heartbeat.generation() != request.running_generation()) {
    member.heartbeat.Clear();
    member.heartbeat.set_generation(request.running_generation());
  }
  member.progress_changed = now;
  member.node = node;
  member.instance = request.instance();
  member.stream = stream;
  member.registered = now;
  member.last_heartbeat = now;
  member.forgiven = absl::ZeroDuration();
  member.has_heartbeat = false;
  member.leaving = false;
  member.why_leaving.clear();
  changed_.insert(node.id());
  return decision;
}

RegisterDecision Membership::InTheWay(const Member& member, const std::string& refusal,
                                      absl::Time first_asked, absl::Time now) const {
  if (member.last_heartbeat > first_asked) return {RegisterDecision::kRefused, refusal};
  RegisterDecision decision;
  if (member.silent(now) < options_.silence) {
    decision.kind = RegisterDecision::kWait;
    decision.reason = absl::StrCat(Describe(member.node), " is in the way, last heard ",
                                   DurationWords(member.silent(now)), " ago");
  }
  return decision;
}

bool Membership::MakeRoom() {
  auto oldest = members_.end();
  for (auto it = members_.begin(); it != members_.end(); ++it) {
    if (it->second.connected()) continue;
    const auto age = [](const Member& m) { return std::make_pair(m.drained, m.lost_since); };
    if (oldest == members_.end() || age(it->second) < age(oldest->second)) oldest = it;
  }
  if (oldest == members_.end()) return false;
  members_.erase(oldest);
  return true;
}

absl::Status Membership::OnHeartbeat(const std::string& node_id, uint64_t stream,
                                     const Heartbeat& heartbeat, absl::Time now) {
  auto it = members_.find(node_id);
  if (it == members_.end() || it->second.stream != stream) {
    return absl::NotFoundError(
        absl::StrCat("heartbeat of ", node_id, " on a stream that is no longer its own"));
  }
  Member& member = it->second;
  if (!member.has_heartbeat || heartbeat.progress() != member.heartbeat.progress() ||
      heartbeat.checkpoint_bytes() != member.heartbeat.checkpoint_bytes() ||
      heartbeat.generation() != member.heartbeat.generation()) {
    member.progress_changed = now;
  }
  member.heartbeat = heartbeat;
  member.heartbeat.clear_data();
  member.heartbeat.clear_path();
  if (heartbeat.has_path() && IsUsable(heartbeat.path())) member.path = heartbeat.path();
  if (heartbeat.has_data() && heartbeat.data().files_size() <= kMaxDataFiles) {
    *member.node.mutable_data_files() = heartbeat.data().files();
    member.node.set_data_listed(heartbeat.data().complete());
    changed_.insert(node_id);
  }
  member.has_heartbeat = true;
  member.last_heartbeat = now;
  member.forgiven = absl::ZeroDuration();
  return absl::OkStatus();
}

void Membership::SetCompute(const std::string& node_id, const ComputeTimes& times) {
  const auto it = members_.find(node_id);
  if (it == members_.end()) return;
  it->second.node.set_block_forward_s(times.block_forward_s());
  it->second.node.set_block_backward_s(times.block_backward_s());
  it->second.node.set_block_flops(times.block_flops());
  changed_.insert(node_id);
}

std::vector<NodeInfo> Membership::TakeChanged() {
  std::vector<NodeInfo> nodes;
  for (const std::string& id : changed_) {
    if (const Member* member = Find(id)) nodes.push_back(member->node);
  }
  changed_.clear();
  return nodes;
}

void Membership::OnLeaving(const std::string& node_id, const std::string& reason) {
  auto it = members_.find(node_id);
  if (it == members_.end()) return;
  it->second.leaving = true;
  it->second.why_leaving = reason.substr(0, kMaxLeavingBytes);
  changed_.insert(node_id);
}

absl::StatusOr<std::string> Membership::Drain(absl::string_view name_or_id, bool drained) {
  std::vector<std::string> ids;
  for (const auto& [id, m] : members_) {
    if (id == name_or_id || m.node.name() == name_or_id) ids.push_back(id);
  }
  if (ids.empty()) {
    return absl::NotFoundError(absl::StrCat("no daemon is called '", name_or_id.substr(0, 80),
                                            "' (isthmus nodes lists them)"));
  }
  if (ids.size() > 1) {
    return absl::FailedPreconditionError(
        absl::StrCat(ids.size(), " daemons are called '", name_or_id.substr(0, 80),
                     "': name one by its identity, ", absl::StrJoin(ids, " or ")));
  }
  members_[ids[0]].drained = drained;
  changed_.insert(ids[0]);
  return ids[0];
}

bool Membership::OnStreamGone(const std::string& node_id, uint64_t stream, absl::Time now) {
  auto it = members_.find(node_id);
  if (it == members_.end() || it->second.stream != stream) return false;
  it->second.stream = 0;
  it->second.lost_since = now;
  return true;
}

std::vector<LostNode> Membership::Expire(absl::Time now) {
  std::vector<LostNode> lost;
  for (auto it = members_.begin(); it != members_.end();) {
    Member& m = it->second;
    const absl::Duration silent = m.silent(now);
    if (m.connected() && silent >= options_.lease) {
      lost.push_back(
          {it->first, m.node.name(), m.stream,
           absl::StrCat("daemon ", m.node.name(), " is lost: ",
                        m.has_heartbeat ? absl::StrCat("no heartbeat for ", DurationWords(silent))
                                        : absl::StrCat("it registered ", DurationWords(silent),
                                                       " ago and never sent a heartbeat"),
                        " (lease ", DurationWords(options_.lease), ")")});
      m.stream = 0;
      m.lost_since = now;
    }
    if (!m.connected() && !m.drained && now - m.lost_since >= options_.forget_after) {
      it = members_.erase(it);
    } else {
      ++it;
    }
  }
  return lost;
}

void Membership::Forgive(absl::Duration pause, absl::Time now) {
  const absl::Duration longest = options_.lease - options_.heartbeat;
  for (auto& [id, m] : members_) {
    if (!m.connected()) continue;
    m.forgiven += std::max(pause, m.silent(now) - longest);
    m.progress_changed += pause;
  }
}

void Membership::Restore(const NodeInfo& node, bool drained, absl::Time now) {
  if (static_cast<int>(members_.size()) >= options_.max_nodes || !CheckNodeInfo(node).ok()) return;
  Member& member = members_[node.id()];
  member.node = node;
  member.drained = drained;
  member.last_heartbeat = member.registered = member.lost_since = member.progress_changed = now;
}

bool Membership::Moves(const std::string& node_id, uint64_t generation, absl::Duration patience,
                       absl::Time now) const {
  const Member* m = Find(node_id);
  return m != nullptr && m->alive() && m->has_heartbeat &&
         m->heartbeat.generation() == generation && now - m->progress_changed < patience;
}

absl::Duration Membership::NoProgressFor(const std::string& node_id, uint64_t generation,
                                         absl::Time now) const {
  const Member* m = Find(node_id);
  if (m == nullptr || !m->alive() || !m->has_heartbeat || m->heartbeat.generation() != generation)
    return absl::ZeroDuration();
  return now - m->progress_changed;
}

std::map<std::string, std::string> Membership::Labels() const {
  std::map<std::string, std::vector<std::string>> named, lost;
  for (const auto& [id, m] : members_) (m.alive() ? named : lost)[m.node.name()].push_back(id);
  named.merge(std::move(lost));  // where no alive one has the name
  std::map<std::string, std::string> labels;
  for (const auto& [name, ids] : named) {
    for (const std::string& id : ids) {
      size_t head = ids.size() == 1 ? 0 : kLabelDigits;
      const auto same_head = [&](const std::string& other) {
        return other != id && other.compare(0, head, id, 0, head) == 0;
      };
      while (ids.size() > 1 && head < id.size() && std::any_of(ids.begin(), ids.end(), same_head))
        ++head;
      labels[id] = head == 0 ? name : absl::StrCat(name, "/", id.substr(0, head));
    }
  }
  return labels;
}

const Member* Membership::Find(const std::string& node_id) const {
  auto it = members_.find(node_id);
  return it == members_.end() ? nullptr : &it->second;
}

}  // namespace isthmus::coordinator
