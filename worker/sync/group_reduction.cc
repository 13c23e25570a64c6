#include "worker/sync/group_reduction.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/huge_pages.h"
#include "base/log.h"
#include "base/status.h"
#include "proto/codec/codec_size.h"
#include "proto/plan/agreements.h"
#include "proto/plan/groups.h"
#include "proto/plan/parts.h"
#include "worker/link/codec_options.h"

namespace isthmus::worker {

GroupReduction::GroupReduction(const SessionPlan& plan, int group)
    : plan_(plan),
      index_(group),
      group_(plan.plan().groups(group)),
      position_(PositionIn(group_, plan.rank())) {}

absl::StatusOr<std::unique_ptr<GroupReduction>> GroupReduction::Make(
    const SessionPlan& plan, int group, CodecStateStore* states, std::shared_ptr<DeviceLane> lane) {
  std::unique_ptr<GroupReduction> made(new GroupReduction(plan, group));
  if (lane != nullptr && ReducesOnDevice(made->group_)) {
    auto device = DeviceReduction::Make(plan, group, std::move(lane), states);
    if (device.ok()) {
      made->device_ = *std::move(device);
      return made;
    }
    if (!absl::IsUnimplemented(device.status())) return device.status();
  }
  const GroupPlan& of = made->group_;
  ASSIGN_OR_RETURN(made->coded_, made->MakeChannels(of.contribution(), of.sum(), states));
  if (of.value() == GroupPlan::MOMENTUM) {
    ASSIGN_OR_RETURN(made->exact_, made->MakeChannels(CodecSpec(), CodecSpec(), nullptr));
  }
  return made;
}

absl::StatusOr<GroupReduction::Channels> GroupReduction::MakeChannels(const CodecSpec& contribution,
                                                                      const CodecSpec& sum,
                                                                      CodecStateStore* states) {
  Channels made;
  if (!sharded()) {
    ASSIGN_OR_RETURN(Channel all, MakeChannel(contribution, FrameHeader::CONTRIBUTION, -1, states));
    made.contributions.push_back(std::move(all));
    return made;
  }
  for (int rank : group_.ranks()) {
    Channel part;
    if (rank != plan_.rank()) {
      ASSIGN_OR_RETURN(part, MakeChannel(contribution, FrameHeader::CONTRIBUTION, rank, states));
    }
    made.contributions.push_back(std::move(part));
  }
  ASSIGN_OR_RETURN(made.sum, MakeChannel(sum, FrameHeader::SUM, -1, states));
  return made;
}

absl::StatusOr<GroupReduction::Channel> GroupReduction::MakeChannel(const CodecSpec& codec,
                                                                    FrameHeader::Kind kind,
                                                                    int part,
                                                                    CodecStateStore* states) {
  Channel channel;
  const int to = part >= 0 ? part : plan_.rank();
  if (FrameRows(group_, kind, plan_.rank(), to).count() == 0) return channel;
  const compress::CodecOptions options = GroupCodecOptions(plan_, index_, kind, plan_.rank(), to);
  ASSIGN_OR_RETURN(channel.encoder, ResumableCodec<compress::Encoder>::Make(
                                        plan_, CodecPlace::Group(plan_, index_, kind, part), codec,
                                        options, states));
  const bool takes_own = part < 0 && codec.kind() != CodecSpec::NONE;
  if (takes_own) {
    ASSIGN_OR_RETURN(channel.decoder, compress::MakeDecoder(codec, options));
  }
  return channel;
}

absl::StatusOr<std::string> GroupReduction::LoadStates() {
  // The groups of both ends of the tied embedding must encode the same bits: either end may have
  // lost its state.
  if (differences() && group_.tensors() == GroupPlan::TIED) return std::string();
  int kept = 0, found = 0;
  const auto load = [&](ResumableCodec<compress::Encoder>* encoder) -> absl::Status {
    if (encoder->get() == nullptr || !encoder->keeps()) return absl::OkStatus();
    ASSIGN_OR_RETURN(const uint64_t hash, encoder->Load());
    ++kept;
    found += hash != 0;
    return absl::OkStatus();
  };
  if (device_ != nullptr) RETURN_IF_ERROR(load(device_->encoder()));
  for (Channel& channel : coded_.contributions) RETURN_IF_ERROR(load(&channel.encoder));
  RETURN_IF_ERROR(load(&coded_.sum.encoder));
  if (kept == 0) return std::string();
  return absl::StrCat(group_.id(), ": ", found == kept ? "goes on" : "new, its state is not here");
}

void GroupReduction::SaveStates(int64_t step) {
  if (device_ != nullptr) device_->encoder()->Save(step);
  for (Channel& channel : coded_.contributions) channel.encoder.Save(step);
  coded_.sum.encoder.Save(step);
}

Outbound GroupReduction::NewFrame(FrameHeader::Kind kind, const GroupWires& wires) const {
  Outbound frame = wires.new_frame();
  frame.header.set_kind(kind);
  frame.header.set_group(index_);
  frame.encoded = true;
  return frame;
}

absl::StatusOr<Outbound> GroupReduction::Encode(Channel* channel, FrameHeader::Kind kind,
                                                int64_t step, float* data, int64_t rows,
                                                const GroupWires& wires) {
  Outbound frame = NewFrame(kind, wires);
  frame.tensor.dims = {1, rows, group_.width()};
  if (rows == 0) return frame;
  compress::FrameContext context;
  context.step = step;
  const compress::TensorView in{data, compress::DType::kF32, compress::Device::kCpu,
                                frame.tensor.dims};
  const CodecSpec& codec = GroupCodec(plan_.plan(), group_, kind, step);
  ReserveOnHugePages(MaxEncodedBytes(codec, frame.tensor.dims), &frame.payload);
  RETURN_IF_ERROR(channel->encoder->Encode(in, context, &frame.payload));
  frame.header.set_state_version(channel->encoder->version());
  if (channel->decoder == nullptr) return frame;
  const compress::MutableTensorView out{data, compress::DType::kF32, compress::Device::kCpu,
                                        frame.tensor.dims};
  RETURN_IF_ERROR(
      channel->decoder->Decode(frame.payload, frame.header.state_version(), context, out));
  return frame;
}

absl::Status GroupReduction::SendToAll(Outbound frame, const GroupWires& wires) {
  const int last = group_.ranks_size() - 1;
  const int last_peer = group_.ranks(position_ == last ? last - 1 : last);
  for (int rank : group_.ranks()) {
    if (rank != plan_.rank() && rank != last_peer) RETURN_IF_ERROR(wires.send(rank, frame));
  }
  return wires.send(last_peer, std::move(frame));
}

absl::Status GroupReduction::Offer(Stage* stage, int64_t step, const GroupWires& wires) {
  const int64_t width = group_.width();
  RETURN_IF_ERROR(FindElements(*stage));
  if (device_ != nullptr) {
    ISTHMUS_CHECK(stage->OnDevice() != nullptr);  // else there is no lane
    ASSIGN_OR_RETURN(Outbound frame, device_->Offer(stage->OnDevice(), step,
                                                    NewFrame(FrameHeader::CONTRIBUTION, wires)));
    return SendToAll(std::move(frame), wires);
  }
  mine_.assign(group_.rows() * width, 0);
  RETURN_IF_ERROR(Read(stage, step));
  std::vector<Channel>& contributions = ChannelsOf(step).contributions;
  if (!sharded()) {
    ASSIGN_OR_RETURN(Outbound frame, Encode(&contributions[0], FrameHeader::CONTRIBUTION, step,
                                            mine_.data(), group_.rows(), wires));
    return SendToAll(std::move(frame), wires);
  }
  for (int i = 0; i < group_.ranks_size(); ++i) {
    if (i == position_) continue;
    const Rows rows = OwnedRows(group_, i);
    ASSIGN_OR_RETURN(Outbound frame,
                     Encode(&contributions[i], FrameHeader::CONTRIBUTION, step,
                            mine_.data() + rows.begin * width, rows.count(), wires));
    RETURN_IF_ERROR(wires.send(group_.ranks(i), std::move(frame)));
  }
  return absl::OkStatus();
}

// Only the last row may be padded.
absl::Status GroupReduction::FindElements(const Stage& stage) {
  const int64_t room = group_.rows() * group_.width(), all = stage.Elements(group_.tensors());
  pieces_.clear();
  if (group_.parts() > 0 && differences() && group_.tensors() == GroupPlan::OWN) {
    int64_t begin = 0;
    int layer = plan_.mine().first_layer();
    for (const int64_t end : stage.LayerEnds()) {
      if (FragmentOf(plan_.job(), layer++) == group_.part()) pieces_.push_back({begin, end});
      begin = end;
    }
  } else if (group_.parts() > 0 && group_.part() > 0) {
    const int64_t first = FirstElement(plan_.plan(), group_);
    pieces_.push_back({first, std::min(all, first + room)});
  } else {
    pieces_.push_back({FirstElement(plan_.plan(), group_), all});
  }
  elements_ = 0;
  for (const Rows& piece : pieces_) elements_ += piece.count();
  if (elements_ <= room && elements_ > room - group_.width()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("group ", group_.id(), ": the stage has ", elements_,
                                          " elements where the plan has ", group_.rows(), " x ",
                                          group_.width()));
}

absl::Status GroupReduction::Read(Stage* stage, int64_t step) {
  const double share = static_cast<double>(plan_.share().count()) /
                       static_cast<double>(plan_.job().recipe().global_batch());
  // Of a tied embedding the last stage alone brings the old moment: the copies' parts add up.
  const bool brings = group_.tensors() != GroupPlan::TIED || plan_.has_head();
  const bool momentum = group_.value() == GroupPlan::MOMENTUM && FrozenAt(plan_.job(), step);
  int64_t at = 0;
  for (const Rows& piece : pieces_) {
    const absl::Span<float> out(mine_.data() + at, piece.count());
    if (momentum) {
      RETURN_IF_ERROR(
          stage->TakeMomentum(group_.tensors(), piece.begin, piece.count(), brings ? share : 0));
    }
    RETURN_IF_ERROR(differences() ? stage->ReadDifference(group_.tensors(), piece.begin, out)
                                  : stage->ReadGradient(group_.tensors(), piece.begin, out));
    at += piece.count();
  }
  if (!differences()) return absl::OkStatus();
  agreed_.assign(elements_, 0);
  finite_ = true;
  for (int64_t i = 0; i < elements_; ++i) mine_[i] = static_cast<float>(share * mine_[i]);
  return absl::OkStatus();
}

absl::Status GroupReduction::Reduce(Stage* stage, int64_t step, const GroupWires& wires) {
  if (device_ != nullptr) {
    return device_->Reduce(stage->OnDevice(), [&](int peer) {
      return wires.receive(peer, FrameHeader::CONTRIBUTION);
    });
  }
  const Rows rows = sharded() ? OwnedRows(group_, position_) : Rows{0, group_.rows()};
  const int64_t begin = rows.begin * group_.width(), count = rows.count() * group_.width();
  std::vector<float> sum;
  for (int i = 0; i < group_.ranks_size(); ++i) {
    std::vector<float> part;
    if (i == position_ && !sharded()) {
      part = std::move(mine_);
    } else if (i == position_) {
      part.assign(mine_.begin() + begin, mine_.begin() + begin + count);
    } else {
      ASSIGN_OR_RETURN(Inbound item, wires.receive(group_.ranks(i), FrameHeader::CONTRIBUTION));
      part = std::move(item.tensor.data);
      ISTHMUS_CHECK(static_cast<int64_t>(part.size()) == count);  // the inlet looked at its shape
    }
    if (i == 0) {
      sum = std::move(part);
      continue;
    }
    for (int64_t k = 0; k < count; ++k) sum[k] += part[k];
  }
  mine_ = {};
  if (sharded()) {
    ASSIGN_OR_RETURN(Outbound frame, Encode(&ChannelsOf(step).sum, FrameHeader::SUM, step,
                                            sum.data(), rows.count(), wires));
    RETURN_IF_ERROR(SendToAll(std::move(frame), wires));
  }
  return Write(stage, rows.begin, sum);
}

absl::Status GroupReduction::Collect(Stage* stage, const GroupWires& wires) {
  for (int i = 0; i < group_.ranks_size(); ++i) {
    if (i == position_) continue;
    ASSIGN_OR_RETURN(const Inbound item, wires.receive(group_.ranks(i), FrameHeader::SUM));
    RETURN_IF_ERROR(Write(stage, OwnedRows(group_, i).begin, item.tensor.data));
  }
  return absl::OkStatus();
}

absl::Status GroupReduction::Write(Stage* stage, int64_t first_row,
                                   const std::vector<float>& values) {
  const int64_t first = first_row * group_.width();
  const int64_t count = std::min<int64_t>(values.size(), elements_ - first);  // without padding
  if (count <= 0) return absl::OkStatus();
  if (differences()) {
    for (int64_t i = 0; i < count; ++i) finite_ = finite_ && std::isfinite(values[i]);
    std::copy_n(values.begin(), count, agreed_.begin() + first);
    return absl::OkStatus();
  }
  return stage->WriteGradient(group_.tensors(), pieces_[0].begin + first,
                              absl::MakeConstSpan(values.data(), count));
}

absl::Status GroupReduction::Settle(bool commit, double mix, Stage* stage) {
  const std::vector<float> agreed = std::move(agreed_);
  agreed_ = {};
  OuterStep step;
  step.learning_rate = plan_.job().strategy().outer_learning_rate();
  step.momentum = plan_.job().strategy().outer_momentum();
  step.mix = mix;
  int64_t at = 0;
  for (const Rows& piece : pieces_) {
    const int64_t n = piece.count();
    RETURN_IF_ERROR(commit
                        ? stage->ApplyDifference(group_.tensors(), piece.begin,
                                                 absl::MakeConstSpan(agreed.data() + at, n), step)
                        : stage->RestoreAgreed(group_.tensors(), piece.begin, n));
    at += n;
  }
  return absl::OkStatus();
}

}  // namespace isthmus::worker
