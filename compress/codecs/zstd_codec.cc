#include "compress/codecs/zstd_codec.h"

#include <zstd.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "compress/state/state_io.h"

namespace isthmus::compress {
namespace {

constexpr size_t kHeaderBytes = 5;
constexpr int kLevel = 1;
constexpr int kGiveUpAfter = 4;
constexpr uint64_t kTryEvery = 16;

struct FreeContext {
  void operator()(ZSTD_CCtx* c) const { ZSTD_freeCCtx(c); }
  void operator()(ZSTD_DCtx* c) const { ZSTD_freeDCtx(c); }
};

class ZstdEncoder : public Encoder {
 public:
  explicit ZstdEncoder(std::unique_ptr<Encoder> inner)
      : inner_(std::move(inner)), context_(ZSTD_createCCtx()) {}

  absl::Status Encode(const TensorView& in, const FrameContext& context,
                      std::string* payload) override {
    RETURN_IF_ERROR(inner_->Encode(in, context, &raw_));
    if (raw_.size() > std::numeric_limits<uint32_t>::max()) {
      return absl::InvalidArgumentError(
          absl::StrCat("zstd: a frame of ", raw_.size(), " bytes; the limit is 4 GiB"));
    }
    const bool worthwhile = in_vain_ < kGiveUpAfter || frames_ % kTryEvery == 0;
    ++frames_;
    const size_t packed = worthwhile ? Compress(payload) : 0;
    if (packed == 0) {
      payload->resize(kHeaderBytes + raw_.size());
      if (!raw_.empty()) std::memcpy(payload->data() + kHeaderBytes, raw_.data(), raw_.size());
    } else {
      payload->resize(kHeaderBytes + packed);
    }
    (*payload)[0] = packed > 0 ? 1 : 0;
    const uint32_t raw_size = static_cast<uint32_t>(raw_.size());
    std::memcpy(payload->data() + 1, &raw_size, 4);
    payload_bytes_ += static_cast<int64_t>(payload->size());
    return absl::OkStatus();
  }

  uint64_t version() const override { return inner_->version(); }
  absl::StatusOr<uint64_t> StateHash() const override { return inner_->StateHash(); }
  void Prefetch(absl::Span<const uint32_t> ids) override { inner_->Prefetch(ids); }
  absl::Span<const uint32_t> indices() const override { return inner_->indices(); }
  absl::Span<const float> residual(int64_t sample) const override {
    return inner_->residual(sample);
  }
  CodecStats stats() const override {
    CodecStats stats = inner_->stats();
    stats.payload_bytes = payload_bytes_;
    return stats;
  }
  absl::Status SaveState(StateWriter* to) override {
    to->Put<int32_t>(in_vain_);
    to->Put(frames_);
    return inner_->SaveState(to);
  }
  absl::Status LoadState(StateReader* from) override {
    in_vain_ = from->Get<int32_t>("tries of zstd");
    frames_ = from->Get<uint64_t>("tries of zstd");
    if (in_vain_ < 0 || in_vain_ > kGiveUpAfter)
      from->Fail(absl::InvalidArgumentError(
          absl::StrCat("the state has ", in_vain_, " tries of zstd in vain")));
    return inner_->LoadState(from);
  }

 private:
  // Size of the compressed bytes after the header; 0 if they are not fewer.
  size_t Compress(std::string* payload) {
    payload->resize(kHeaderBytes + raw_.size());
    const size_t n = raw_.empty()
                         ? 0
                         : ZSTD_compressCCtx(context_.get(), payload->data() + kHeaderBytes,
                                             raw_.size() - 1, raw_.data(), raw_.size(), kLevel);
    if (n == 0 || ZSTD_isError(n)) {  // an error here: it does not fit in fewer bytes
      in_vain_ = std::min(in_vain_ + 1, kGiveUpAfter);
      return 0;
    }
    in_vain_ = 0;
    return n;
  }

  const std::unique_ptr<Encoder> inner_;
  const std::unique_ptr<ZSTD_CCtx, FreeContext> context_;
  std::string raw_;
  int in_vain_ = 0;  // tries in a row that did not pay, up to kGiveUpAfter
  uint64_t frames_ = 0;
  int64_t payload_bytes_ = 0;
};

class ZstdDecoder : public Decoder {
 public:
  ZstdDecoder(std::unique_ptr<Decoder> inner, const CodecSpec& spec)
      : inner_(std::move(inner)), spec_(spec), context_(ZSTD_createDCtx()) {}

  absl::Status Decode(absl::string_view payload, uint64_t version, const FrameContext& context,
                      const MutableTensorView& out) override {
    if (payload.size() < kHeaderBytes)
      return absl::InvalidArgumentError("zstd: the frame ends in its header");
    const uint8_t flag = static_cast<uint8_t>(payload[0]);
    uint32_t raw_size;
    std::memcpy(&raw_size, payload.data() + 1, 4);
    absl::string_view body = payload.substr(kHeaderBytes);
    if (flag > 1) return absl::InvalidArgumentError(absl::StrCat("zstd: unknown flag ", flag));
    if (int64_t{raw_size} > MaxEncodedBytes(spec_, out.dims)) {
      return absl::InvalidArgumentError(
          absl::StrCat("zstd: raw size ", raw_size, " is more than this frame can have"));
    }
    if (flag == 1) {
      raw_.resize(raw_size);
      const size_t n =
          ZSTD_decompressDCtx(context_.get(), raw_.data(), raw_.size(), body.data(), body.size());
      if (ZSTD_isError(n))
        return absl::InvalidArgumentError(absl::StrCat("zstd: ", ZSTD_getErrorName(n)));
      if (n != raw_size)
        return absl::InvalidArgumentError(
            absl::StrCat("zstd: ", n, " bytes, ", raw_size, " declared"));
      body = raw_;
    } else if (body.size() != raw_size) {
      return absl::InvalidArgumentError(
          absl::StrCat("zstd: ", body.size(), " bytes, ", raw_size, " declared"));
    }
    RETURN_IF_ERROR(inner_->Decode(body, version, context, out));
    payload_bytes_ += static_cast<int64_t>(payload.size());
    return absl::OkStatus();
  }

  uint64_t version() const override { return inner_->version(); }
  absl::StatusOr<uint64_t> StateHash() const override { return inner_->StateHash(); }
  void Prefetch(absl::Span<const uint32_t> ids) override { inner_->Prefetch(ids); }
  absl::Span<const uint32_t> indices() const override { return inner_->indices(); }
  absl::Span<const uint32_t> token_ids() const override { return inner_->token_ids(); }
  CodecStats stats() const override {
    CodecStats stats = inner_->stats();
    stats.payload_bytes = payload_bytes_;
    return stats;
  }
  absl::Status SaveState(StateWriter* to) override { return inner_->SaveState(to); }
  absl::Status LoadState(StateReader* from) override { return inner_->LoadState(from); }

 private:
  const std::unique_ptr<Decoder> inner_;
  const CodecSpec spec_;
  const std::unique_ptr<ZSTD_DCtx, FreeContext> context_;
  std::string raw_;
  int64_t payload_bytes_ = 0;
};

}  // namespace

std::unique_ptr<Encoder> MakeZstdEncoder(std::unique_ptr<Encoder> inner) {
  return std::make_unique<ZstdEncoder>(std::move(inner));
}

std::unique_ptr<Decoder> MakeZstdDecoder(std::unique_ptr<Decoder> inner, const CodecSpec& spec) {
  return std::make_unique<ZstdDecoder>(std::move(inner), spec);
}

}  // namespace isthmus::compress
