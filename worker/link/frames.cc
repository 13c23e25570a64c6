#include "worker/link/frames.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/hash.h"
#include "base/status.h"
#include "proto/codec/codec_text.h"
#include "proto/plan/deal.h"
#include "proto/plan/groups.h"

namespace isthmus::worker {
namespace {

template <typename T>
void Add(Hasher* hasher, T value) {
  hasher->Update(&value, sizeof value);
}

const char* KindName(FrameHeader::Kind kind) {
  switch (kind) {
    case FrameHeader::ACTIVATION:
      return "activation";
    case FrameHeader::GRADIENT:
      return "gradient";
    case FrameHeader::CONTRIBUTION:
      return "contribution to a reduction";
    case FrameHeader::SUM:
      return "sum of a reduction";
    case FrameHeader::SLICE:
      return "slice of weights";
    case FrameHeader::VOTE:
      return "vote";
    case FrameHeader::DECISION:
      return "decision";
    case FrameHeader::EVAL_ACTIVATION:
      return "validation activation";
    case FrameHeader::BUFFER_HASH:
      return "buffer hash";
    case FrameHeader::CODEC_STATE:
      return "offer of codec states";
    default:
      return "frame of an unknown kind";
  }
}

bool HasMicro(FrameHeader::Kind kind) {
  return kind == FrameHeader::ACTIVATION || kind == FrameHeader::GRADIENT ||
         kind == FrameHeader::EVAL_ACTIVATION;
}

absl::Status CheckShape(const SessionPlan& plan, const LinkPlan& link,
                        const ExpectedFrame& expected, const FrameHeader& h) {
  const TensorDims want = FrameDims(plan, link, expected);
  const bool eval = expected.kind == FrameHeader::EVAL_ACTIVATION;
  const bool good =
      h.shape_size() == 3 && h.shape(1) == want.positions && h.shape(2) == want.hidden &&
      (eval ? h.shape(0) >= 0 && h.shape(0) <= want.samples : h.shape(0) == want.samples);
  if (!good) {
    return absl::InvalidArgumentError(
        absl::StrCat("shape ", absl::StrJoin(h.shape(), "x"), " where the plan has ",
                     eval ? "at most " : "", want.samples, "x", want.positions, "x", want.hidden));
  }
  const int64_t ids = OfGroup(expected.kind) ? 0 : h.shape(0);
  if (h.sample_ids_size() != ids) {
    return absl::InvalidArgumentError(
        absl::StrCat(h.sample_ids_size(), " sample ids for ", ids, " samples"));
  }
  return absl::OkStatus();
}

}  // namespace

uint64_t FrameChecksum(const FrameHeader& h, absl::string_view payload) {
  Hasher hasher;
  Add(&hasher, static_cast<uint64_t>(h.job_id().size()));
  hasher.Update(h.job_id().data(), h.job_id().size());
  Add(&hasher, h.generation());
  Add(&hasher, h.step());
  Add(&hasher, h.micro());
  Add(&hasher, static_cast<int32_t>(h.kind()));
  Add(&hasher, static_cast<uint64_t>(h.sample_ids_size()));
  hasher.Update(h.sample_ids().data(), h.sample_ids_size() * sizeof(uint32_t));
  Add(&hasher, static_cast<uint64_t>(h.shape_size()));
  hasher.Update(h.shape().data(), h.shape_size() * sizeof(int64_t));
  Add(&hasher, h.codec());
  Add(&hasher, h.state_version());
  Add(&hasher, h.payload_bytes());
  Add(&hasher, h.buffer_hash());
  Add(&hasher, h.group());
  const Vote& v = h.vote();
  Add(&hasher, v.norm_sq());
  const uint8_t flags[7] = {h.has_vote(), v.finite(), v.stop(), v.checkpoint(),
                            v.busy(),     v.commit(), v.drain()};
  hasher.Update(flags, sizeof flags);
  if (v.hold() || v.local()) {  // which older daemons do not know
    const uint8_t local[2] = {v.hold(), v.local()};
    hasher.Update(local, sizeof local);
  }
  if (h.has_codec_state()) {
    Add(&hasher, h.codec_state().up());
    Add(&hasher, h.codec_state().down());
  }
  return Hash64(payload, hasher.Digest());
}

void SealFrame(const Plan& plan, Frame* frame) {
  FrameHeader& h = frame->header;
  h.set_job_id(plan.job_id());
  h.set_generation(plan.generation());
  h.set_payload_bytes(frame->payload.size());
  h.set_checksum(FrameChecksum(h, frame->payload));
}

std::string FrameName(FrameHeader::Kind kind, int64_t step, int32_t micro) {
  if (HasMicro(kind))
    return absl::StrCat(KindName(kind), " of micro-batch ", micro, ", step ", step);
  return absl::StrCat(KindName(kind), " of step ", step);
}

bool HasTensor(FrameHeader::Kind kind) { return HasMicro(kind) || OfGroup(kind); }

bool OfGroup(FrameHeader::Kind kind) {
  return kind == FrameHeader::CONTRIBUTION || kind == FrameHeader::SUM ||
         kind == FrameHeader::SLICE;
}

const CodecSpec& FrameCodec(const SessionPlan& plan, const LinkPlan& link, FrameHeader::Kind kind,
                            int64_t step, int micro, int group) {
  switch (kind) {
    case FrameHeader::ACTIVATION:
      return link.forward();
    case FrameHeader::GRADIENT:
      if (!plan.CodesGradient(link, micro)) return CodecSpec::default_instance();
      return link.backward();
    case FrameHeader::EVAL_ACTIVATION:
      return link.evaluation();
    case FrameHeader::CONTRIBUTION:
    case FrameHeader::SUM:
    case FrameHeader::SLICE:
      return GroupCodec(plan.plan(), plan.plan().groups(group), kind, step);
    default:
      return CodecSpec::default_instance();
  }
}

TensorDims FrameDims(const SessionPlan& plan, const LinkPlan& link, const ExpectedFrame& expected) {
  if (!HasTensor(expected.kind)) return {};
  if (OfGroup(expected.kind)) {
    const GroupPlan& group = plan.plan().groups(expected.group);
    if (expected.kind == FrameHeader::SLICE)
      return SliceDims(plan.plan(), plan.peer(link), plan.rank(), expected.step, expected.merged);
    return {1, FrameRows(group, expected.kind, plan.peer(link), plan.rank()).count(),
            group.width()};
  }
  if (expected.kind == FrameHeader::EVAL_ACTIVATION)
    return plan.boundary_dims(link, plan.job().recipe().micro_batch());
  return plan.boundary_dims(link, plan.samples(expected.micro));
}

int64_t MaxPayloadBytes(const SessionPlan& plan, const LinkPlan& link,
                        const ExpectedFrame& expected) {
  if (!HasTensor(expected.kind)) return 0;
  if (OfGroup(expected.kind)) {
    const GroupPlan& group = plan.plan().groups(expected.group);
    if (expected.kind == FrameHeader::SLICE)
      return MaxEncodedBytes(group.contribution(), {group.rows(), 1, group.width()});
    const Rows rows = FrameRows(group, expected.kind, plan.peer(link), plan.rank());
    const CodecSpec& codec = GroupCodec(plan.plan(), group, expected.kind, expected.step);
    return RowsBytes(group, codec, rows, true);
  }
  return MaxEncodedBytes(
      FrameCodec(plan, link, expected.kind, expected.step, expected.micro, expected.group),
      FrameDims(plan, link, expected));
}

absl::Status CheckFrame(const SessionPlan& plan, const LinkPlan& link,
                        const ExpectedFrame& expected, const Frame& frame) {
  const FrameHeader& h = frame.header;
  if (h.payload_bytes() != frame.payload.size() ||
      h.checksum() != FrameChecksum(h, frame.payload)) {
    return absl::DataLossError(absl::StrCat("the checksum of the ",
                                            FrameName(expected.kind, expected.step, expected.micro),
                                            " is wrong"));
  }
  if (h.job_id() != plan.plan().job_id() || h.generation() != plan.plan().generation()) {
    return absl::FailedPreconditionError(
        absl::StrCat("a frame of job ", h.job_id().substr(0, 64), " generation ", h.generation(),
                     " where generation ", plan.plan().generation(), " runs"));
  }
  if (h.kind() != expected.kind || h.step() != expected.step || h.micro() != expected.micro ||
      h.group() != expected.group) {
    return absl::DataLossError(absl::StrCat("the ", FrameName(h.kind(), h.step(), h.micro()),
                                            " came where the ",
                                            FrameName(expected.kind, expected.step, expected.micro),
                                            " was due: a frame was lost, repeated or overtaken"));
  }
  if (HasTensor(expected.kind)) {
    const CodecSpec& spec =
        FrameCodec(plan, link, expected.kind, expected.step, expected.micro, expected.group);
    if (h.codec() != CodecId(spec)) {
      return absl::InvalidArgumentError(
          absl::StrCat("the peer built another codec than ", FormatCodec(spec)));
    }
    RETURN_IF_ERROR(CheckShape(plan, link, expected, h));
    if (!h.has_vote()) return absl::OkStatus();
    const bool leaves = expected.kind == FrameHeader::EVAL_ACTIVATION && h.shape(0) == 0;
    return leaves ? absl::OkStatus()
                  : absl::InvalidArgumentError("a frame with a tensor and a vote");
  }
  const bool votes = expected.kind == FrameHeader::VOTE || expected.kind == FrameHeader::DECISION;
  const bool offers = expected.kind == FrameHeader::CODEC_STATE;
  if (votes != h.has_vote() || offers != h.has_codec_state() || !frame.payload.empty())
    return absl::InvalidArgumentError("a control frame with wrong contents");
  return absl::OkStatus();
}

FrameSequence::FrameSequence(const SessionPlan& plan, const LinkPlan& link)
    : plan_(plan),
      step_(plan.plan().start_step()),
      agreement_(NextAgreement(plan.plan(), step_, false)) {
  Add(plan.mine().train(), kTrain, link);
  std::copy_if(items_[kTrain].begin(), items_[kTrain].end(), std::back_inserter(items_[kFill]),
               [](const Item& item) { return item.ahead != 0; });
  Add(plan.mine().agree(), kAgree, link);
  Add(plan.mine().eval(), kEval, link);
  for (const std::vector<Item>& items : items_) {
    decides_ = decides_ || std::any_of(items.begin(), items.end(), [](const Item& item) {
                 return item.kind == FrameHeader::DECISION;
               });
  }
}

void FrameSequence::Add(const google::protobuf::RepeatedPtrField<Action>& list, Part part,
                        const LinkPlan& link) {
  const int index = plan_.index_of(link), peer = plan_.peer(link);
  const auto shares = [&](int group) {
    return link.kind() == LinkPlan::GROUP && PositionIn(plan_.plan().groups(group), peer) >= 0;
  };
  std::vector<Item>& items = items_[part];
  for (const Action& a : list) {
    if (a.op() == Action::RECV && a.link() == index)
      items.push_back({a.what(), a.micro(), 0, a.ahead()});
    if (a.op() == Action::REDUCE && shares(a.group()))
      items.push_back({FrameHeader::CONTRIBUTION, 0, a.group(), 0});
    if (a.op() == Action::COLLECT && shares(a.group()))
      items.push_back({FrameHeader::SUM, 0, a.group(), 0});
    if (a.op() == Action::MERGE && shares(a.group()))
      items.push_back({FrameHeader::SLICE, 0, a.group(), 0});
  }
}

std::vector<ExpectedFrame> FrameSequence::Each() const {
  std::vector<ExpectedFrame> each;
  for (const std::vector<Item>& items : items_) {
    for (const Item& item : items) {
      const bool known = std::any_of(each.begin(), each.end(), [&](const ExpectedFrame& e) {
        return e.kind == item.kind && e.group == item.group;
      });
      if (!known) each.push_back({item.kind, 0, item.micro, item.group, false});
    }
  }
  return each;
}

void FrameSequence::LeaveEval() {
  if (part_ == kEval) at_ = items_[kEval].size();
}

bool FrameSequence::Has(Part part) const {
  if (part == kFill && filled_) return false;
  if (part == kAgree && !plan_.local()) return false;
  if (part == kEval && !plan_.EvalAfter(step_)) return false;
  return !items_[part].empty();
}

bool FrameSequence::Due(const Item& item) const {
  if (part_ != kAgree) return true;
  const bool covers = !OfGroup(item.kind) || agreement_.Covers(plan_.plan().groups(item.group));
  const bool first = item.kind == FrameHeader::CONTRIBUTION;
  return covers && step_ == (first ? agreement_.reduce : agreement_.apply);
}

int64_t FrameSequence::StepOf(const Item& item) const {
  if (part_ == kTrain) return step_ + item.ahead;
  if (part_ != kAgree || !OfGroup(item.kind)) return step_;
  return item.kind == FrameHeader::CONTRIBUTION ? agreement_.offer : agreement_.reduce;
}

bool FrameSequence::EndAgreement() {
  if (part_ != kAgree || agreement_.apply != step_) return true;
  bool all = all_agree_;
  if (asks() && drains_ != nullptr) {
    const std::optional<bool> answer = drains_(step_);
    if (!answer.has_value()) return false;
    all = *answer;
  }
  agreement_ = NextAgreement(plan_.plan(), step_ + 1, all);
  return true;
}

// The item just taken is the last one of the step itself.
bool FrameSequence::EndsStep() const {
  if (part_ != Ending()) return false;
  const std::vector<Item>& items = items_[part_];
  return items[at_ - 1].ahead == 0 &&
         std::none_of(items.begin() + static_cast<std::ptrdiff_t>(at_), items.end(),
                      [&](const Item& item) { return item.ahead == 0 && Due(item); });
}

std::optional<ExpectedFrame> FrameSequence::Next() {
  if (stopped_ || (items_[kTrain].empty() && items_[kAgree].empty())) return std::nullopt;
  for (;;) {
    if (part_ != kEval && step_ >= plan_.end_step()) return std::nullopt;
    if (at_ < items_[part_].size() && Has(static_cast<Part>(part_))) {
      const Item& item = items_[part_][at_++];
      if (!Due(item)) continue;
      if (part_ == kTrain && item.ahead != 0) {
        if (asked_ != step_ && drains_ != nullptr) {
          const std::optional<bool> drained = drains_(step_);
          if (!drained.has_value()) return std::nullopt;
          if (*drained) drained_ = step_;
          asked_ = step_;
        }
        if (Drains()) continue;
      }
      return ExpectedFrame{item.kind,  StepOf(item), item.micro,
                           item.group, EndsStep(),   agreement_.merged};
    }
    if (!EndAgreement()) return std::nullopt;
    at_ = 0;
    if (++part_ < kParts) continue;
    filled_ = !Drains();
    part_ = kFill;
    ++step_;
  }
}

}  // namespace isthmus::worker
