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

// `Codec` is compress::Encoder or compress::Decoder.
template <typename Codec>
class ResumableCodec {
 public:
  ResumableCodec() = default;  // none
  // A new one for one end of one direction of `link`. `up`: lower -> upper. `store`: null: nothing
  // is kept. Both pointers, `plan` and `link` outlive it.
  static absl::StatusOr<ResumableCodec> Make(const SessionPlan& plan, const LinkPlan& link,
                                             const CodecSpec& spec, bool up,
                                             compress::CodecOptions options,
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
  uint64_t Place() const;
  std::string Name() const;
  absl::Status TrySave(int64_t step);
  absl::StatusOr<compress::LoadedCodec<Codec>> TryLoad();

  const SessionPlan* plan_ = nullptr;
  const LinkPlan* link_ = nullptr;
  CodecSpec spec_;
  bool up_ = false;
  compress::CodecOptions options_;
  CodecStateStore* store_ = nullptr;
  bool on_device_ = false;  // where it can't be saved
  std::unique_ptr<Codec> codec_;
};

extern template class ResumableCodec<compress::Encoder>;
extern template class ResumableCodec<compress::Decoder>;

}  // namespace isthmus::worker

#endif  // ISTHMUS_WORKER_LINK_RESUMABLE_CODEC_H_
