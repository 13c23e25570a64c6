// Links in memory that remember every tensor sent over them.
#ifndef ISTHMUS_TESTS_RANK_TAP_LINKS_H_
#define ISTHMUS_TESTS_RANK_TAP_LINKS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "base/mutex.h"
#include "worker/link/link.h"
#include "worker/link/memory_link.h"

namespace isthmus::worker {

struct TappedFrame {
  std::string link;
  FrameHeader::Kind kind = FrameHeader::ACTIVATION;
  int64_t step = 0;
  int32_t micro = 0;
  uint32_t codec = 0;
  uint64_t hash = 0;  // of the payload
  int64_t bytes = 0;
  bool operator==(const TappedFrame& other) const { return hash == other.hash; }
};
// By "b0 from stage 1, gradient of micro-batch 3, step 17".
using TappedFrames = std::map<std::string, TappedFrame>;

class TapOpener : public LinkOpener {
 public:
  absl::StatusOr<std::unique_ptr<Link>> Open(const Plan& plan, const LinkPlan& link, int my_stage,
                                             absl::Duration timeout) override;
  TappedFrames Frames() const;

 private:
  MemoryLinkHub hub_;
  mutable Mutex mutex_;
  TappedFrames frames_ ABSL_GUARDED_BY(mutex_);
  friend class TapLink;
};

}  // namespace isthmus::worker

#endif  // ISTHMUS_TESTS_RANK_TAP_LINKS_H_
