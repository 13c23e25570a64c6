// Where the states of codecs go and come from, which are kept with checkpoints: implemented by
// daemon/ in files, in memory by tests.
//
// A state is of exactly the committed step of its checkpoint. It stays on the host that made it and
// never crosses the network. Thread: any; a writer or source has one owner.
#ifndef ISTHMUS_WORKER_LINK_CODEC_STATE_STORE_H_
#define ISTHMUS_WORKER_LINK_CODEC_STATE_STORE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "compress/state/state_io.h"

namespace isthmus::worker {

struct CodecStateKey {
  std::string job_id;
  std::string name;  // link, end and direction, as in "b0-lower-up": fit for a file name
  int64_t step = 0;  // committed steps
};

class CodecStateStore {
 public:
  class Writer : public compress::StateSink {
   public:
    // All of it was appended. Only now does the state exist, whole; a writer that goes without
    // leaves nothing.
    virtual absl::Status Commit() = 0;
  };

  virtual ~CodecStateStore() = default;

  // A session of the job begins with this many committed steps: states of later ones are of steps
  // that will be done anew, and go.
  virtual void Begin(const std::string& job_id, int64_t step) = 0;
  // A state of the same key that was there is gone with this call, whatever becomes of the writer.
  // Of each name the two newest steps are kept.
  virtual absl::StatusOr<std::unique_ptr<Writer>> Create(const CodecStateKey& key) = 0;
  // NotFound: none of this step.
  virtual absl::StatusOr<std::unique_ptr<compress::StateSource>> Open(const CodecStateKey& key) = 0;
};

}  // namespace isthmus::worker

#endif  // ISTHMUS_WORKER_LINK_CODEC_STATE_STORE_H_
