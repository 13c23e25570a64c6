// What ranks of a group do in a step: reductions, and hashes of weights that must be equal.
#include <utility>

#include "base/status.h"
#include "worker/executor.h"

namespace isthmus::worker {

// Where nothing is under way and all replicas hold the same weights.
absl::Status Executor::TakeHashes(int64_t step) {
  if (filled_ || !equal_) return absl::OkStatus();
  equal_ = !plan_.local();
  ScopedTimer timer(&result_.times.sync_ns);
  return weights_.Take(step, o_.stage);
}

GroupWires Executor::WiresOf(int group) {
  const auto port = [this](int peer) -> const Port& {
    return o_.ports[plan_.index_of(plan_.group_link(peer))];
  };
  GroupWires wires;
  wires.new_frame = [this] { return NewFrame(FrameHeader::CONTRIBUTION, step_, 0); };
  wires.send = [this, port, group](int peer, Outbound frame) {
    if (frame.header.kind() == FrameHeader::CONTRIBUTION)
      frame.header.set_buffer_hash(weights_.hash(group));
    return port(peer).out->Push(std::move(frame));
  };
  wires.receive = [this, port, group](int peer, FrameHeader::Kind kind) {
    ScopedTimer wait_timer(&result_.groups[group].wait_ns);
    absl::StatusOr<Inbound> item = Pop(port(peer), kind, step_, 0);
    if (item.ok() && kind == FrameHeader::CONTRIBUTION)
      weights_.Heard(group, peer, item->header.buffer_hash());
    return item;
  };
  return wires;
}

absl::Status Executor::Reduction(const Action& action) {
  ScopedTimer timer(&result_.times.sync_ns);
  ScopedTimer group_timer(&result_.groups[action.group()].reduce_ns);
  TraceScope span(o_.tracer, step_, {TraceSpan::REDUCE, -1, nullptr, action.group()});
  const GroupWires wires = WiresOf(action.group());
  GroupReduction& group = *groups_[action.group()];
  if (action.op() == Action::OFFER) return group.Offer(o_.stage, step_, wires);
  if (action.op() == Action::REDUCE) {
    RETURN_IF_ERROR(group.Reduce(o_.stage, step_, wires));
    return weights_.Compare(action.group());
  }
  RETURN_IF_ERROR(group.Collect(o_.stage, wires));
  StepState& state = states_[step_ % 2];
  state.finite = state.finite && group.finite();
  return absl::OkStatus();
}

}  // namespace isthmus::worker
