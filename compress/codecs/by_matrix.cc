#include "compress/codecs/by_matrix.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/rng.h"
#include "base/status.h"
#include "compress/frame.h"
#include "compress/state/state_io.h"

namespace isthmus::compress {
namespace {

bool IsVector(const TensorDims& d) { return d.positions == 1; }

absl::Status Check(const CodecSpec& spec, const CodecOptions& options) {
  int64_t elements = 0;
  for (const TensorDims& d : options.shapes) {
    if (d.samples != 1 || d.positions < 1 || d.hidden < 1)
      return absl::InvalidArgumentError("by matrix: a tensor of no size");
    elements += d.elements();
  }
  if (elements != options.positions * options.hidden) {
    return absl::InvalidArgumentError(absl::StrCat("by matrix: the tensors have ", elements,
                                                   " elements, the frame ",
                                                   options.positions * options.hidden));
  }
  if (spec.zstd()) return absl::InvalidArgumentError("by matrix: zstd is not for such frames");
  if (options.device != Device::kCpu)
    return absl::UnimplementedError("by matrix: only in memory of the host");
  return absl::OkStatus();
}

CodecOptions OptionsOf(const CodecOptions& all, size_t tensor) {
  CodecOptions options = all;
  options.shapes.clear();
  options.positions = all.shapes[tensor].positions;
  options.hidden = all.shapes[tensor].hidden;
  options.max_samples = 1;
  options.seed = RandomBits(all.seed, tensor, 0);
  return options;
}

template <typename Codec>
struct Piece {
  TensorDims dims;
  int64_t bytes = 0;  // of its payload
  std::unique_ptr<Codec> codec;
};

template <typename Codec, typename Make>
absl::StatusOr<std::vector<Piece<Codec>>> MakePieces(const CodecSpec& spec,
                                                     const CodecOptions& options, Make make) {
  RETURN_IF_ERROR(Check(spec, options));
  std::vector<Piece<Codec>> pieces;
  for (size_t t = 0; t < options.shapes.size(); ++t) {
    Piece<Codec> piece;
    piece.dims = options.shapes[t];
    const CodecSpec own = IsVector(piece.dims) ? CodecSpec() : spec;
    piece.bytes = EncodedBytes(own, piece.dims, true);
    ASSIGN_OR_RETURN(piece.codec, make(own, OptionsOf(options, t)));
    pieces.push_back(std::move(piece));
  }
  return pieces;
}

// What either end keeps.
template <typename Codec>
class ByMatrix : public Codec {
 public:
  ByMatrix(std::vector<Piece<Codec>> pieces, const CodecOptions& options)
      : pieces_(std::move(pieces)), options_(options) {}

  uint64_t version() const override { return version_; }
  CodecStats stats() const override { return stats_; }
  absl::Status SaveState(StateWriter* to) override {
    to->Put(version_);
    for (Piece<Codec>& piece : pieces_) RETURN_IF_ERROR(piece.codec->SaveState(to));
    return to->status();
  }
  absl::Status LoadState(StateReader* from) override {
    version_ = from->Get<uint64_t>("number of frames");
    for (Piece<Codec>& piece : pieces_) RETURN_IF_ERROR(piece.codec->LoadState(from));
    return from->status();
  }

 protected:
  // Of Encode's and Decode's tensor.
  template <typename View>
  absl::Status CheckView(const View& view) const {
    RETURN_IF_ERROR(CheckTensor(view.data, view.device, view.dims, options_));
    if (view.dtype != DType::kF32) return absl::InvalidArgumentError("by matrix: fp32 alone");
    return absl::OkStatus();
  }

  std::vector<Piece<Codec>> pieces_;
  uint64_t version_ = 0;
  CodecStats stats_;

 private:
  const CodecOptions options_;
};

class ByMatrixEncoder : public ByMatrix<Encoder> {
 public:
  using ByMatrix<Encoder>::ByMatrix;

  absl::Status Encode(const TensorView& in, const FrameContext& context,
                      std::string* payload) override {
    RETURN_IF_ERROR(CheckView(in));
    payload->clear();
    const auto* data = static_cast<const float*>(in.data);
    std::string body;
    for (Piece<Encoder>& piece : pieces_) {
      RETURN_IF_ERROR(
          piece.codec->Encode({data, DType::kF32, Device::kCpu, piece.dims}, context, &body));
      payload->append(body);
      data += piece.dims.elements();
    }
    ++version_;
    CountFrame(in.dims, payload->size(), &stats_);
    return absl::OkStatus();
  }
};

class ByMatrixDecoder : public ByMatrix<Decoder> {
 public:
  using ByMatrix<Decoder>::ByMatrix;

  absl::Status Decode(absl::string_view payload, uint64_t version, const FrameContext& context,
                      const MutableTensorView& out) override {
    RETURN_IF_ERROR(CheckView(out));
    int64_t bytes = 0;
    for (const Piece<Decoder>& piece : pieces_) bytes += piece.bytes;
    if (static_cast<int64_t>(payload.size()) != bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("by matrix: ", payload.size(), " bytes where the tensors take ", bytes));
    }
    auto* data = static_cast<float*>(out.data);
    for (Piece<Decoder>& piece : pieces_) {
      RETURN_IF_ERROR(piece.codec->Decode(payload.substr(0, piece.bytes), version, context,
                                          {data, DType::kF32, Device::kCpu, piece.dims}));
      payload.remove_prefix(piece.bytes);
      data += piece.dims.elements();
    }
    version_ = version;
    CountFrame(out.dims, bytes, &stats_);
    return absl::OkStatus();
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<Encoder>> MakeByMatrixEncoder(const CodecSpec& spec,
                                                             const CodecOptions& options) {
  ASSIGN_OR_RETURN(auto pieces, MakePieces<Encoder>(spec, options, &MakeEncoder));
  return std::make_unique<ByMatrixEncoder>(std::move(pieces), options);
}

absl::StatusOr<std::unique_ptr<Decoder>> MakeByMatrixDecoder(const CodecSpec& spec,
                                                             const CodecOptions& options) {
  ASSIGN_OR_RETURN(auto pieces, MakePieces<Decoder>(spec, options, &MakeDecoder));
  return std::make_unique<ByMatrixDecoder>(std::move(pieces), options);
}

}  // namespace isthmus::compress
