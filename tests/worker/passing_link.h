// A link that hands everything on to another: what a test's own link begins with. Thread: as the
// other's.
#ifndef ISTHMUS_TESTS_WORKER_PASSING_LINK_H_
#define ISTHMUS_TESTS_WORKER_PASSING_LINK_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "worker/link/link.h"

namespace isthmus::worker {

class PassingLink : public Link {
 public:
  explicit PassingLink(std::unique_ptr<Link> link) : link_(std::move(link)) {}
  absl::Status Send(Frame frame, absl::Duration timeout) override {
    return link_->Send(std::move(frame), timeout);
  }
  absl::StatusOr<Frame> Receive(int64_t max_payload_bytes, absl::Duration timeout) override {
    return link_->Receive(max_payload_bytes, timeout);
  }
  void Cancel(absl::Status why) override { link_->Cancel(std::move(why)); }
  absl::Status Finish(absl::Duration timeout) override { return link_->Finish(timeout); }
  bool peer_exchanges_codec_state() const override { return link_->peer_exchanges_codec_state(); }
  int64_t wire_bytes_sent() const override { return link_->wire_bytes_sent(); }

 private:
  const std::unique_ptr<Link> link_;
};

}  // namespace isthmus::worker

#endif  // ISTHMUS_TESTS_WORKER_PASSING_LINK_H_
