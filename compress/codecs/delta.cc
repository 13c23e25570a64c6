#include "compress/codecs/delta.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/rng.h"
#include "base/status.h"
#include "compress/frame.h"

namespace isthmus::compress {
namespace {

enum Kind : uint8_t {
  kKey = 0,  // by the cold codec; the buffer is (re)placed
  kDelta = 1,
  kForgotten = 2,  // fp32, not finite; the buffer is dropped
};
constexpr size_t kHeaderBytes = 5;
constexpr uint32_t kBf16Inf = 0x7f80;

uint32_t LargestBf16(const uint16_t* m, size_t n) {
  uint32_t largest = 0;
  for (size_t i = 0; i < n; ++i) largest = std::max<uint32_t>(largest, m[i] & 0x7fffu);
  return largest;
}

// a - m.
class DifferenceRows : public RowSource {
 public:
  DifferenceRows(RowSource& a, BufferRows& m, size_t hidden)
      : a_(a), m_(m), hidden_(hidden), row_(hidden) {}
  const float* Row(int64_t p) override {
    const float* a = a_.Row(p);
    const uint16_t* m = m_.Row(p);
    for (size_t i = 0; i < hidden_; ++i) row_[i] = a[i] - Bf16ToFloat(m[i]);
    return row_.data();
  }

 private:
  RowSource& a_;
  BufferRows& m_;
  const size_t hidden_;
  std::vector<float> row_;
};

// Takes differences: sum := m + difference goes to `out` (if any), m := bf16(sum).
class UpdateSink : public RowSink {
 public:
  UpdateSink(BufferRows& m, size_t hidden, RowSink* out)
      : m_(m), hidden_(hidden), out_(out), row_(hidden) {}
  float* Begin(int64_t) override { return row_.data(); }
  void End(int64_t p) override {
    uint16_t* m = m_.Row(p);
    for (size_t i = 0; i < hidden_; ++i) row_[i] = Bf16ToFloat(m[i]) + row_[i];
    FloatsToBf16(row_.data(), hidden_, m);
    m_.Changed(p);
    largest_ = std::max(largest_, LargestBf16(m, hidden_));
    if (out_ == nullptr) return;
    std::copy(row_.begin(), row_.end(), out_->Begin(p));
    out_->End(p);
  }
  bool finite() const { return largest_ < kBf16Inf; }

 private:
  BufferRows& m_;
  const size_t hidden_;
  RowSink* out_;
  std::vector<float> row_;
  uint32_t largest_ = 0;
};

// Takes whole activations: m := bf16(row), where there is a buffer; passes them on to `out` (if
// any).
class ReplaceSink : public RowSink {
 public:
  ReplaceSink(BufferRows* m, size_t hidden, RowSink* out)
      : m_(m), hidden_(hidden), out_(out), row_(hidden), no_buffer_(m == nullptr ? hidden : 0) {}
  float* Begin(int64_t p) override {
    to_ = out_ != nullptr ? out_->Begin(p) : row_.data();
    return to_;
  }
  void End(int64_t p) override {
    uint16_t* m = m_ != nullptr ? m_->Row(p) : no_buffer_.data();
    FloatsToBf16(to_, hidden_, m);
    if (m_ != nullptr) m_->Changed(p);
    largest_ = std::max(largest_, LargestBf16(m, hidden_));
    if (out_ != nullptr) out_->End(p);
  }
  bool finite() const { return largest_ < kBf16Inf; }

 private:
  BufferRows* m_;
  const size_t hidden_;
  RowSink* out_;
  std::vector<float> row_;
  std::vector<uint16_t> no_buffer_;
  float* to_ = nullptr;
  uint32_t largest_ = 0;
};

void WriteHeader(uint8_t kind, uint32_t version, size_t at, std::string* payload) {
  (*payload)[at] = static_cast<char>(kind);
  std::memcpy(payload->data() + at + 1, &version, 4);
}

}  // namespace

absl::StatusOr<DeltaState> DeltaState::Make(const CodecSpec& spec, const CodecOptions& options) {
  DeltaState s;
  s.options = options;
  const SampleShape shape{options.positions, options.hidden};
  ASSIGN_OR_RETURN(s.inner, MakeSampleCodec(spec.inner(), shape, options));
  ASSIGN_OR_RETURN(s.cold, MakeSampleCodec(spec.cold(), shape, options));
  s.full = std::make_unique<PlainCodec>(DType::kF32, shape);
  if (spec.inner().kind() == CodecSpec::QUANT) {
    QuantCodec* quant = static_cast<QuantCodec*>(s.inner.get());
    if (quant->CanFuseDelta()) s.fused = quant;
  }
  s.format = std::make_unique<BufferFormat>(spec.buffer_bits(), shape);
  MessageStore::Options store;
  store.entry_elements = s.format->words();
  store.memory_bytes = options.buffer_memory_bytes;
  store.disk_bytes = options.buffer_disk_bytes;
  store.distinct_samples = options.distinct_samples;
  store.spill_directory = options.spill_directory;
  ASSIGN_OR_RETURN(s.store, MessageStore::Make(store));
  return s;
}

absl::StatusOr<BufferRows*> DeltaState::Open(uint32_t id, bool whole) {
  ASSIGN_OR_RETURN(uint16_t * stored, store->Buffer(id));
  format->Open(stored, whole);
  return format.get();
}

void DeltaState::Keep(uint32_t id) {
  format->Close();
  store->Bump(id);
}

absl::StatusOr<uint64_t> DeltaState::StateHash() const {
  ASSIGN_OR_RETURN(const uint64_t hash, store->Hash());
  return Mix64(hash ^ version) ^ cold->StateHash();
}

CodecStats DeltaState::Stats() const {
  CodecStats out = stats;
  out.evicted_samples = store->evicted();
  out.buffer_device_bytes = store->device_bytes();
  out.buffer_memory_bytes = store->memory_bytes();
  out.buffer_disk_bytes = store->disk_bytes();
  out.late_buffer_reads = store->late_reads();
  return out;
}

absl::Status DeltaState::Save(StateWriter* to) {
  RETURN_IF_ERROR(failed);
  to->Put(version);
  inner->SaveState(to);
  cold->SaveState(to);
  return store->Save(to);
}

absl::Status DeltaState::Load(StateReader* from) {
  version = from->Get<uint64_t>("number of frames");
  inner->LoadState(from);
  cold->LoadState(from);
  return store->Load(from);
}

absl::Status DeltaEncoder::Encode(const TensorView& in, const FrameContext& context,
                                  std::string* payload) {
  RETURN_IF_ERROR(s_.failed);
  RETURN_IF_ERROR(CheckTensor(in.data, in.device, in.dims, s_.options));
  RETURN_IF_ERROR(CheckIds(context.sample_ids, in.dims.samples));
  if (s_.cold->NeedsTokens()) RETURN_IF_ERROR(CheckTokens(context.token_ids, in.dims));
  payload->clear();
  s_.store->Plan(context.sample_ids, &plan_);
  s_.failed = s_.store->Begin(context.sample_ids, plan_);
  for (int64_t i = 0; s_.failed.ok() && i < in.dims.samples; ++i) {
    const size_t at = static_cast<size_t>(i);
    s_.failed = EncodeSample(in, InfoOf(s_.version, i, in.dims, context), context.sample_ids[at],
                             plan_[at], payload);
  }
  RETURN_IF_ERROR(s_.failed);
  s_.cold->EndFrame();
  ++s_.version;
  CountFrame(in.dims, payload->size(), &s_.stats);
  return absl::OkStatus();
}

absl::Status DeltaEncoder::EncodeSample(const TensorView& in, const SampleInfo& info, uint32_t id,
                                        const MessageStore::Slot& slot, std::string* payload) {
  const size_t start = payload->size();
  Extend(payload, kHeaderBytes);
  TensorRows rows(in, info.index);
  bool finite = false;
  if (slot.known) {
    ASSIGN_OR_RETURN(finite, EncodeDelta(rows, info, id, payload));
  } else {
    ASSIGN_OR_RETURN(finite, EncodeKey(rows, info, id, slot.keep, payload));
    s_.cold->Settle(finite);
  }
  uint8_t kind = slot.known ? kDelta : kKey;
  if (!finite) {
    kind = kForgotten;
    payload->resize(start + kHeaderBytes);
    s_.full->Encode(rows, info, payload, nullptr);
    s_.store->Forget(id);
  } else if (slot.keep) {
    s_.Keep(id);
  }
  WriteHeader(kind, slot.version + 1, start, payload);
  ++(kind == kDelta ? s_.stats.delta_samples : s_.stats.key_frame_samples);
  return absl::OkStatus();
}

absl::StatusOr<bool> DeltaEncoder::EncodeDelta(RowSource& rows, const SampleInfo& info, uint32_t id,
                                               std::string* payload) {
  ASSIGN_OR_RETURN(BufferRows * m, s_.Open(id, false));
  if (s_.fused != nullptr) return s_.fused->EncodeDelta(rows, *m, payload);
  const size_t hidden = static_cast<size_t>(s_.options.hidden);
  DifferenceRows difference(rows, *m, hidden);
  UpdateSink update(*m, hidden, nullptr);
  s_.inner->Encode(difference, info, payload, &update);
  return update.finite();
}

absl::StatusOr<bool> DeltaEncoder::EncodeKey(RowSource& rows, const SampleInfo& info, uint32_t id,
                                             bool keep, std::string* payload) {
  BufferRows* m = nullptr;
  if (keep) {
    ASSIGN_OR_RETURN(m, s_.Open(id, true));
  }
  ReplaceSink replace(m, static_cast<size_t>(s_.options.hidden), nullptr);
  s_.cold->Encode(rows, info, payload, &replace);
  return replace.finite();
}

absl::Status DeltaDecoder::Parse(absl::string_view payload, absl::Span<const uint32_t> ids) {
  parts_.clear();
  for (size_t i = 0; i < ids.size(); ++i) {
    const MessageStore::Slot& slot = plan_[i];
    if (payload.size() < kHeaderBytes)
      return absl::InvalidArgumentError(
          absl::StrCat("sample ", ids[i], ": the frame ends in its header"));
    const uint8_t kind = static_cast<uint8_t>(payload[0]);
    uint32_t version;
    std::memcpy(&version, payload.data() + 1, 4);
    payload.remove_prefix(kHeaderBytes);
    if (kind > kForgotten)
      return absl::InvalidArgumentError(absl::StrCat("sample ", ids[i], ": unknown kind ", kind));
    if (kind == kDelta && !slot.known) {
      return absl::DataLossError(absl::StrCat(
          "sample ", ids[i], ": a difference came, but this end has no buffer to add it to"));
    }
    if (version != slot.version + 1 || (kind == kKey && slot.known)) {
      return absl::DataLossError(absl::StrCat("sample ", ids[i], ": buffer version ", version,
                                              " came, this end is at ", slot.version));
    }
    const SampleCodec& codec = kind == kDelta ? *s_.inner
                               : kind == kKey ? *s_.cold
                                              : static_cast<const SampleCodec&>(*s_.full);
    absl::StatusOr<size_t> bytes = codec.Check(payload);
    if (!bytes.ok()) return Annotate(bytes.status(), absl::StrCat("sample ", ids[i]));
    parts_.push_back({kind, payload.substr(0, *bytes)});
    payload.remove_prefix(*bytes);
  }
  if (!payload.empty())
    return absl::InvalidArgumentError(absl::StrCat(payload.size(), " bytes after the last sample"));
  return absl::OkStatus();
}

absl::Status DeltaDecoder::Decode(absl::string_view payload, uint64_t version,
                                  const FrameContext& context, const MutableTensorView& out) {
  RETURN_IF_ERROR(s_.failed);
  RETURN_IF_ERROR(CheckTensor(out.data, out.device, out.dims, s_.options));
  RETURN_IF_ERROR(CheckIds(context.sample_ids, out.dims.samples));
  RETURN_IF_ERROR(CheckVersion(version, s_.version));
  s_.store->Plan(context.sample_ids, &plan_);
  RETURN_IF_ERROR(Parse(payload, context.sample_ids));
  // Nothing below fails on any bytes that an encoder makes, unless the disk does.
  s_.failed = s_.store->Begin(context.sample_ids, plan_);
  tokens_.clear();
  if (s_.cold->NeedsTokens())
    tokens_.assign(static_cast<size_t>(out.dims.samples * out.dims.positions),
                   kNoToken);  // warm samples bring none
  for (int64_t i = 0; s_.failed.ok() && i < out.dims.samples; ++i) {
    s_.failed = Apply(i, context.sample_ids[static_cast<size_t>(i)], out);
  }
  RETURN_IF_ERROR(s_.failed);
  s_.cold->EndFrame();
  ++s_.version;
  CountFrame(out.dims, payload.size(), &s_.stats);
  return absl::OkStatus();
}

absl::Status DeltaDecoder::Apply(int64_t sample, uint32_t id, const MutableTensorView& out) {
  const Part& part = parts_[static_cast<size_t>(sample)];
  const bool keep = plan_[static_cast<size_t>(sample)].keep;
  const size_t hidden = static_cast<size_t>(s_.options.hidden);
  TensorSink sink(out, sample);
  ++(part.kind == kDelta ? s_.stats.delta_samples : s_.stats.key_frame_samples);
  if (part.kind == kForgotten) {
    s_.full->Decode(part.body, sink);
    s_.store->Forget(id);
    return absl::OkStatus();
  }
  BufferRows* m = nullptr;
  if (keep) {
    ASSIGN_OR_RETURN(m, s_.Open(id, part.kind == kKey));
  }
  bool finite = false;
  if (part.kind == kKey) {
    ReplaceSink replace(m, hidden, &sink);
    s_.cold->Decode(part.body, replace);
    finite = replace.finite();
    s_.cold->Settle(finite);
    const absl::Span<const uint32_t> tokens = s_.cold->tokens();
    std::copy(
        tokens.begin(), tokens.end(),
        tokens_.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(sample) * tokens.size()));
  } else if (s_.fused != nullptr) {
    finite = s_.fused->DecodeDelta(part.body, *m, sink);
  } else {
    UpdateSink update(*m, hidden, &sink);
    s_.inner->Decode(part.body, update);
    finite = update.finite();
  }
  if (!finite)
    return absl::InvalidArgumentError(
        absl::StrCat("sample ", id, ": not finite, which an encoder sends as such"));
  if (keep) s_.Keep(id);
  return absl::OkStatus();
}

}  // namespace isthmus::compress
