#include "tests/rank/tap_links.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "tests/worker/passing_link.h"
#include "worker/link/frames.h"

namespace isthmus::worker {

class TapLink : public PassingLink {
 public:
  TapLink(std::unique_ptr<Link> link, std::string id, int stage, TapOpener* opener)
      : PassingLink(std::move(link)), id_(std::move(id)), stage_(stage), opener_(opener) {}
  absl::Status Send(Frame frame, absl::Duration timeout) override {
    const FrameHeader& h = frame.header;
    if (HasTensor(h.kind())) {
      MutexLock lock(&opener_->mutex_);
      opener_->frames_[absl::StrCat(id_, " from stage ", stage_, ", ",
                                    FrameName(h.kind(), h.step(), h.micro()))] = {
          id_,
          h.kind(),
          h.step(),
          h.micro(),
          h.codec(),
          Hash64(frame.payload),
          static_cast<int64_t>(frame.payload.size())};
    }
    return PassingLink::Send(std::move(frame), timeout);
  }

 private:
  const std::string id_;
  const int stage_;
  TapOpener* const opener_;
};

absl::StatusOr<std::unique_ptr<Link>> TapOpener::Open(const Plan& plan, const LinkPlan& link,
                                                      int my_stage, absl::Duration timeout) {
  absl::StatusOr<std::unique_ptr<Link>> made = hub_.Open(plan, link, my_stage, timeout);
  if (!made.ok()) return made;
  return std::make_unique<TapLink>(*std::move(made), link.id(), my_stage, this);
}

TappedFrames TapOpener::Frames() const {
  MutexLock lock(&mutex_);
  return frames_;
}

}  // namespace isthmus::worker
