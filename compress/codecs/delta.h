// AQ-SGD (arXiv 2206.01299, algorithm 1): both ends keep the last activation of every sample as the
// receiver had it, and only its change is sent.
//
//   sample not known:  key frame by the `cold` codec (fp32 unless the job says otherwise; `predict`
//   where samples are seen rarely);
//                      m := bf16(what the receiver has)
//   sample known:      codes of a - m by the inner codec;  receiver computes with m + difference in
//   fp32;  m := bf16(that) anything not finite in the sample or in its updated buffer:  fp32 key
//   frame, and both ends forget the sample
//
// Payload, per sample: kind (1 byte), version of the sample's buffer after this frame (4 bytes),
// body. See README.md. The frame's version and the sample's version are both checked before
// anything changes: a lost, repeated or stale frame is DataLoss. Thread: one owner.
#ifndef ISTHMUS_COMPRESS_CODECS_DELTA_H_
#define ISTHMUS_COMPRESS_CODECS_DELTA_H_

#include <memory>
#include <vector>

#include "compress/buffers/buffer_format.h"
#include "compress/buffers/message_store.h"
#include "compress/codecs/plain.h"
#include "compress/codecs/quant.h"
#include "compress/codecs/sample_codec.h"

namespace isthmus::compress {

// The three codecs of a delta codec and its buffers: what its two ends have in common.
struct DeltaState {
  static absl::StatusOr<DeltaState> Make(const CodecSpec& spec, const CodecOptions& options);

  CodecOptions options;
  std::unique_ptr<SampleCodec> inner;
  std::unique_ptr<SampleCodec> cold;
  std::unique_ptr<PlainCodec> full;  // fp32
  QuantCodec* fused = nullptr;       // `inner`, where it can work in one pass
  std::unique_ptr<MessageStore> store;
  std::unique_ptr<BufferFormat> format;  // of what the store holds
  uint64_t version = 0;
  absl::Status failed;  // an error half-way: the state is not to be trusted any more
  CodecStats stats;

  // The buffer of a kept sample in bf16, to be changed (`whole`: every element of it); Keep puts it
  // back as the sample's next version. Nothing else is asked of the store in between.
  absl::StatusOr<BufferRows*> Open(uint32_t id, bool whole);
  void Keep(uint32_t id);

  absl::StatusOr<uint64_t> StateHash() const;
  CodecStats Stats() const;
  absl::Status Save(StateWriter* to);
  absl::Status Load(StateReader* from);
};

class DeltaEncoder : public Encoder {
 public:
  explicit DeltaEncoder(DeltaState state) : s_(std::move(state)) {}
  absl::Status Encode(const TensorView& in, const FrameContext& context,
                      std::string* payload) override;
  uint64_t version() const override { return s_.version; }
  absl::StatusOr<uint64_t> StateHash() const override { return s_.StateHash(); }
  CodecStats stats() const override { return s_.Stats(); }
  absl::Status SaveState(StateWriter* to) override { return s_.Save(to); }
  absl::Status LoadState(StateReader* from) override { return s_.Load(from); }
  void Prefetch(absl::Span<const uint32_t> sample_ids) override { s_.store->Prefetch(sample_ids); }

 private:
  absl::Status EncodeSample(const TensorView& in, const SampleInfo& info, uint32_t id,
                            const MessageStore::Slot& slot, std::string* payload);
  absl::StatusOr<bool> EncodeDelta(RowSource& rows, const SampleInfo& info, uint32_t id,
                                   std::string* payload);
  absl::StatusOr<bool> EncodeKey(RowSource& rows, const SampleInfo& info, uint32_t id, bool keep,
                                 std::string* payload);

  DeltaState s_;
  std::vector<MessageStore::Slot> plan_;
};

class DeltaDecoder : public Decoder {
 public:
  explicit DeltaDecoder(DeltaState state) : s_(std::move(state)) {}
  absl::Status Decode(absl::string_view payload, uint64_t version, const FrameContext& context,
                      const MutableTensorView& out) override;
  uint64_t version() const override { return s_.version; }
  absl::StatusOr<uint64_t> StateHash() const override { return s_.StateHash(); }
  CodecStats stats() const override { return s_.Stats(); }
  absl::Status SaveState(StateWriter* to) override { return s_.Save(to); }
  absl::Status LoadState(StateReader* from) override { return s_.Load(from); }
  void Prefetch(absl::Span<const uint32_t> sample_ids) override { s_.store->Prefetch(sample_ids); }
  absl::Span<const uint32_t> token_ids() const override { return tokens_; }

 private:
  struct Part {
    uint8_t kind;
    absl::string_view body;
  };
  // Checks the payload against the plan and cuts it into parts_; changes no state.
  absl::Status Parse(absl::string_view payload, absl::Span<const uint32_t> ids);
  absl::Status Apply(int64_t sample, uint32_t id, const MutableTensorView& out);

  DeltaState s_;
  std::vector<MessageStore::Slot> plan_;
  std::vector<Part> parts_;
  std::vector<uint32_t> tokens_;
};

}  // namespace isthmus::compress

#endif  // ISTHMUS_COMPRESS_CODECS_DELTA_H_
