#include "tests/worker/faulty_link.h"

#include <optional>
#include <utility>

#include "base/rng.h"
#include "base/status.h"

namespace isthmus::worker {
namespace {

void FlipBit(uint64_t seed, Frame* frame) {
  if (!frame->payload.empty()) {
    const uint64_t bit = RandomBelow(seed, 1, 0, 8 * frame->payload.size());
    frame->payload[bit / 8] ^= static_cast<char>(1 << (bit % 8));
    return;
  }
  FrameHeader& h = frame->header;
  switch (RandomBelow(seed, 2, 0, 5)) {
    case 0:
      h.set_step(h.step() ^ 1);
      return;
    case 1:
      h.mutable_vote()->set_norm_sq(h.vote().norm_sq() + 1);
      return;
    case 2:
      h.mutable_vote()->set_stop(!h.vote().stop());
      return;
    case 3:
      h.mutable_vote()->set_commit(!h.vote().commit());
      return;
    default:
      h.set_checksum(h.checksum() ^ 4);
      return;
  }
}

class FaultyLink : public Link {
 public:
  FaultyLink(std::unique_ptr<Link> inner, const Fault& fault, FaultyLinkOpener::Struck* struck)
      : inner_(std::move(inner)), fault_(fault), struck_(struck) {}

  absl::Status Send(Frame frame, absl::Duration timeout) override {
    const int64_t n = sent_++;
    if (fault_.kind == Fault::kStall && n >= fault_.frame) {
      if (n == fault_.frame) Note(frame);
      return absl::OkStatus();
    }
    if (n == fault_.frame) return Strike(std::move(frame), timeout);
    RETURN_IF_ERROR(inner_->Send(std::move(frame), timeout));
    if (!held_.has_value()) return absl::OkStatus();
    Frame late = *std::move(held_);
    held_.reset();
    return inner_->Send(std::move(late), timeout);
  }

  absl::StatusOr<Frame> Receive(int64_t max_payload_bytes, absl::Duration timeout) override {
    return inner_->Receive(max_payload_bytes, timeout);
  }
  void Cancel(absl::Status why) override { inner_->Cancel(std::move(why)); }
  absl::Status Finish(absl::Duration timeout) override { return inner_->Finish(timeout); }
  bool peer_exchanges_codec_state() const override { return inner_->peer_exchanges_codec_state(); }
  int64_t wire_bytes_sent() const override { return inner_->wire_bytes_sent(); }

 private:
  void Note(const Frame& frame) {
    struck_->kind = frame.header.kind();
    struck_->step = frame.header.step();
  }

  absl::Status Strike(Frame frame, absl::Duration timeout) {
    Note(frame);
    switch (fault_.kind) {
      case Fault::kDrop:
        return absl::OkStatus();
      case Fault::kRepeat:
        RETURN_IF_ERROR(inner_->Send(frame, timeout));
        return inner_->Send(std::move(frame), timeout);
      case Fault::kCorrupt:
        FlipBit(fault_.seed, &frame);
        break;
      case Fault::kReorder:
        held_ = std::move(frame);
        return absl::OkStatus();
      case Fault::kCut: {
        absl::Status cut = absl::UnavailableError("the connection was cut");
        inner_->Cancel(cut);
        return cut;
      }
      default:
        break;
    }
    return inner_->Send(std::move(frame), timeout);
  }

  const std::unique_ptr<Link> inner_;
  const Fault fault_;
  FaultyLinkOpener::Struck* const struck_;
  int64_t sent_ = 0;
  std::optional<Frame> held_;
};

}  // namespace

const char* FaultName(Fault::Kind kind) {
  switch (kind) {
    case Fault::kNone:
      return "none";
    case Fault::kDrop:
      return "drop";
    case Fault::kRepeat:
      return "repeat";
    case Fault::kCorrupt:
      return "corrupt";
    case Fault::kReorder:
      return "reorder";
    case Fault::kStall:
      return "stall";
    case Fault::kCut:
      return "cut";
  }
  return "?";
}

absl::StatusOr<std::unique_ptr<Link>> FaultyLinkOpener::Open(const Plan& plan, const LinkPlan& link,
                                                             int my_stage, absl::Duration timeout) {
  ASSIGN_OR_RETURN(std::unique_ptr<Link> inner, inner_->Open(plan, link, my_stage, timeout));
  if (fault_.kind == Fault::kNone || link.id() != fault_.link_id || my_stage != fault_.sender_stage)
    return inner;
  return std::make_unique<FaultyLink>(std::move(inner), fault_, &struck_);
}

}  // namespace isthmus::worker
