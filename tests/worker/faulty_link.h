// A LinkOpener that breaks one chosen frame of one direction of one link: for tests that every
// fault is detected and nothing hangs. Thread: as link.h says.
#ifndef ISTHMUS_TESTS_WORKER_FAULTY_LINK_H_
#define ISTHMUS_TESTS_WORKER_FAULTY_LINK_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "worker/link/link.h"

namespace isthmus::worker {

struct Fault {
  enum Kind {
    kNone,
    kDrop,     // the frame vanishes
    kRepeat,   // it comes twice
    kCorrupt,  // one bit of it flips: in the payload, or in the header where there is none
    kReorder,  // it comes after the next one
    kStall,    // from it on nothing arrives, without an error
    kCut,      // the link breaks at it: both ends get Unavailable
  };
  Kind kind = kNone;
  std::string link_id;
  int sender_stage = 0;
  int64_t frame = 0;  // 0-based, of those sent in this direction
  uint64_t seed = 0;  // which bit
};

const char* FaultName(Fault::Kind kind);

class FaultyLinkOpener : public LinkOpener {
 public:
  // `inner` outlives the opener, which outlives its links.
  FaultyLinkOpener(LinkOpener* inner, Fault fault) : inner_(inner), fault_(std::move(fault)) {}

  absl::StatusOr<std::unique_ptr<Link>> Open(const Plan& plan, const LinkPlan& link, int my_stage,
                                             absl::Duration timeout) override;

  bool struck() const { return struck_.step >= 0; }  // the frame was reached
  // Of that frame.
  int64_t struck_step() const { return struck_.step; }
  FrameHeader::Kind struck_kind() const { return struck_.kind; }

  struct Struck {
    std::atomic<FrameHeader::Kind> kind{FrameHeader::ACTIVATION};
    std::atomic<int64_t> step{-1};
  };

 private:
  LinkOpener* const inner_;
  const Fault fault_;
  Struck struck_;
};

}  // namespace isthmus::worker

#endif  // ISTHMUS_TESTS_WORKER_FAULTY_LINK_H_
