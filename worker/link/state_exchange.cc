#include "worker/link/state_exchange.h"

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "proto/codec/codec_text.h"
#include "worker/link/frames.h"

namespace isthmus::worker {
namespace {

const char* Outcome(uint64_t mine, uint64_t theirs) {
  if (mine != 0 && mine == theirs) return "goes on";
  if (mine == 0) return theirs == 0 ? "new, neither end has its state" : "new, not here";
  return theirs == 0 ? "new, the peer has no state" : "new, the two ends' states differ";
}

}  // namespace

StateExchange::StateExchange(const SessionPlan& plan, const LinkPlan& link, Link* wire,
                             ResumableCodec<compress::Encoder>* encoder,
                             ResumableCodec<compress::Decoder>* decoder)
    : plan_(plan),
      link_(link),
      wire_(wire),
      encoder_(encoder),
      decoder_(decoder),
      lower_(link.lower() == plan.rank()) {}

// The same at both ends: it follows from the plan, and from what each end told when the link
// opened.
bool StateExchange::due() const {
  return plan_.goes_on() && wire_->peer_exchanges_codec_state() &&
         (compress::KeepsState(link_.forward()) || compress::KeepsState(link_.backward()));
}

absl::Status StateExchange::Offer() {
  if (!due()) return absl::OkStatus();
  ASSIGN_OR_RETURN(sent_, encoder_->Load());
  ASSIGN_OR_RETURN(received_, decoder_->Load());
  Frame frame;
  frame.header.set_kind(FrameHeader::CODEC_STATE);
  frame.header.set_step(plan_.plan().start_step());
  CodecStateOffer* offer = frame.header.mutable_codec_state();
  offer->set_up(lower_ ? sent_ : received_);
  offer->set_down(lower_ ? received_ : sent_);
  SealFrame(plan_.plan(), &frame);
  return Annotate(wire_->Send(std::move(frame), plan_.timeout(plan_.plan().start_step())),
                  plan_.DescribeLink(link_));
}

absl::StatusOr<std::string> StateExchange::Settle() {
  if (!due()) return std::string();
  const int64_t step = plan_.plan().start_step();
  const absl::StatusOr<Frame> frame = wire_->Receive(0, plan_.timeout(step));
  if (!frame.ok())
    return Annotate(frame.status(), absl::StrCat(plan_.DescribeLink(link_),
                                                 ": waiting for the peer's codec states"));
  ExpectedFrame expected;
  expected.kind = FrameHeader::CODEC_STATE;
  expected.step = step;
  if (absl::Status s = CheckFrame(plan_, link_, expected, *frame); !s.ok())
    return Annotate(s, plan_.DescribeLink(link_));
  const CodecStateOffer& offer = frame->header.codec_state();
  const uint64_t they_send = lower_ ? offer.down() : offer.up();
  const uint64_t they_receive = lower_ ? offer.up() : offer.down();
  if (sent_ != 0 && sent_ != they_receive) RETURN_IF_ERROR(encoder_->Forget());
  if (received_ != 0 && received_ != they_send) RETURN_IF_ERROR(decoder_->Forget());
  std::string words = absl::StrCat(link_.id(), ":");
  const auto tell = [&](const char* direction, bool keeps, uint64_t mine, uint64_t theirs) {
    if (keeps) absl::StrAppend(&words, " ", direction, " ", Outcome(mine, theirs), ";");
  };
  tell("outgoing codec", encoder_->keeps(), sent_, they_receive);
  tell("incoming codec", decoder_->keeps(), received_, they_send);
  if (words.back() == ';') words.pop_back();
  return words;
}

}  // namespace isthmus::worker
