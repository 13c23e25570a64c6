// A codec of a link, and the states of it that are kept with checkpoints, so that a resumed session
// does not begin with key frames, cold means and empty residuals.
//
// A resumed session takes a state up only if the peer has the same (state_exchange.h). What can't
// be saved or loaded is logged and costs the session nothing but the state. Thread: one owner at a
// time.
#ifndef ISTHMUS_WORKER_LINK_RESUMABLE_CODEC_H_
#define ISTHMUS_WORKER_LINK_RESUMABLE_CODEC_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "compress/codec.h"
#include "compress/state/codec_state.h"
#include "worker/link/codec_state_store.h"
#include "worker/session_plan.h"

namespace isthmus::worker {

// Where in a plan a codec is. No other codec of any job has the same.
struct CodecPlace {
  std::string file;    // of its state, within the job
  uint64_t place = 0;  // the two ends of a direction have the same
  std::string words;   // "link b0 with ..., upwards"

  // One end of one direction of a boundary. `up`: lower -> upper.
  static CodecPlace Boundary(const SessionPlan& plan, const LinkPlan& link, bool up);
  // The encoder of what this rank sends to plan.groups(group); `part`: the rank whose part it is,
  // or -1: all of it, or this rank's own sum.
  static CodecPlace Group(const SessionPlan& plan, int group, FrameHeader::Kind kind, int part);
};

// `Codec` is compress::Encoder or compress::Decoder.
template <typename Codec>
class ResumableCodec {
 public:
  ResumableCodec() = default;  // none
  // A new one. `store`: null: nothing is kept. It and `plan` outlive it.
  static absl::StatusOr<ResumableCodec> Make(const SessionPlan& plan, CodecPlace place,
                                             const CodecSpec& spec, compress::CodecOptions options,
                                             CodecStateStore* store);

  Codec* get() const { return codec_.get(); }
  Codec* operator->() const { return codec_.get(); }
  bool keeps() const { return store_ != nullptr && compress::KeepsState(spec_); }

  // As of `step` committed steps. On a device (Unimplemented) it keeps nothing from then on. Gives
  // up when it has taken a quarter of the plan's timeout of a step, so that no peer's wait ends for
  // it.
  void Save(int64_t step);

  // Takes up the state of plan.start_step. The result is what the peer's must equal
  // (compress::AgreementHash); 0: there is none, and the codec is new. An error: a new one could
  // not be made either.
  absl::StatusOr<uint64_t> Load();
  // A new codec again.
  absl::Status Forget();

 private:
  CodecStateKey Key(int64_t step) const;
  std::string Name() const;
  absl::Status TrySave(int64_t step);
  absl::StatusOr<compress::LoadedCodec<Codec>> TryLoad();

  const SessionPlan* plan_ = nullptr;
  CodecPlace place_;
  CodecSpec spec_;
  compress::CodecOptions options_;
  CodecStateStore* store_ = nullptr;
  bool on_device_ = false;  // where it can't be saved
  std::unique_ptr<Codec> codec_;
};

extern template class ResumableCodec<compress::Encoder>;
extern template class ResumableCodec<compress::Decoder>;

}  // namespace isthmus::worker

#endif  // ISTHMUS_WORKER_LINK_RESUMABLE_CODEC_H_
