// predict as a codec on device memory, around any inner one: compress/codecs/predict.h. The means,
// 4 bytes an element, lie in device memory and stay bit-identical to the other end's; which token
// has which row is kept on the host, where the token ids are. Thread: one owner.
#ifndef ISTHMUS_COMPRESS_CUDA_DEVICE_PREDICT_H_
#define ISTHMUS_COMPRESS_CUDA_DEVICE_PREDICT_H_

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "compress/codecs/predict.h"
#include "compress/cuda/device_means.h"
#include "compress/cuda/device_wrap.h"

namespace isthmus::compress::cuda {

class DevicePredictor {
 public:
  // `bytes`: cap of the means.
  DevicePredictor(const CodecSpec& spec, const SampleShape& shape, int64_t bytes);

  // A frame of so many samples begins. Makes room for what is kept of each until EndFrame.
  absl::Status Begin(size_t samples, Queue* queue);
  // Queues the prediction of sample i.
  absl::Status Predict(size_t i, absl::Span<const uint32_t> tokens, float* prediction,
                       Queue* queue);
  // Of sample i, for Predict's caller to fill: what the receiver has, and which positions are too
  // large to be learned from.
  float* y(size_t i) const;
  uint8_t* too_large(size_t i) const;
  // Queues the move of the means towards the frame's, of the samples that are used. Waits.
  absl::Status EndFrame(absl::Span<const uint8_t> used, Queue* queue);
  absl::StatusOr<uint64_t> Hash(Queue* queue) const;
  // In Predictor's bytes; Load into a new one.
  absl::Status Save(StateWriter* to, Queue* queue) const;
  absl::Status Load(StateReader* from, Queue* queue);

 private:
  absl::Status Start(Queue* queue);
  absl::StatusOr<std::vector<float>> PositionMeans(Queue* queue) const;
  const float* OrZero(const float* row) const { return row != nullptr ? row : zero(); }
  const float* zero() const { return reinterpret_cast<const float*>(fixed_.data()); }
  float* position_mean(int64_t p) const {
    return reinterpret_cast<float*>(fixed_.data()) + (1 + p) * shape_.hidden;
  }
  MeanRows RowsOf(absl::Span<const uint32_t> tokens, int64_t position) const;
  // Fills the frame's keys from the samples that are used.
  void CollectKeys(absl::Span<const uint8_t> used, const std::vector<uint8_t>& too_large);
  // Queues the sums of all keys, tokens first; appends what they make move.
  absl::Status Sum(std::vector<MeanMove>* moves, Queue* queue);
  absl::Status AppendMoves(std::vector<MeanMove>* moves, Queue* queue);

  const SampleShape shape_;
  const float rate_;
  const PredictorRows size_;
  const TokenContexts contexts_;
  DeviceMeans all_, tokens_;
  std::vector<DeviceMeans> levels_;
  DeviceMemory fixed_;  // a row of zeros, then the means of positions
  bool started_ = false;

  // The frame's.
  std::vector<uint32_t> token_ids_;  // samples x positions
  DeviceMemory rows_, y_, too_large_, sums_, scratch_;
  FrameKeys token_keys_, position_keys_;
  std::vector<FrameKeys> level_keys_;
};

class DevicePredict : public DeviceWrapper {
 public:
  DevicePredict(const CodecSpec& spec, const SampleShape& shape, int64_t bytes,
                std::unique_ptr<DeviceSampleCodec> inner)
      : DeviceWrapper(shape, std::move(inner), shape.positions),
        matrix_{shape.positions, shape.hidden},
        predictor_(spec, shape, bytes) {}

  absl::Status Encode(DType dtype, absl::Span<const EncodeJob> jobs,
                      absl::Span<const SampleInfo> infos, Queue* queue) override;
  absl::Status Decode(DType dtype, absl::Span<const DecodeJob> jobs,
                      absl::Span<const SampleInfo> infos, uint32_t* not_finite,
                      Queue* queue) override;
  bool NeedsTokens() const override { return true; }
  int64_t MaxPrefixBytes() const override { return 1 + 4 * matrix_.positions; }
  void AppendPrefix(const SampleInfo& info, std::string* out) const override;
  int64_t ReadPrefix(absl::string_view body, std::vector<uint32_t>* tokens) const override {
    return static_cast<int64_t>(ReadTokenIds(body, matrix_.positions, tokens));
  }
  bool KeepsState() const override { return true; }
  absl::Status EndFrame(absl::Span<const uint8_t> used, Queue* queue) override {
    return predictor_.EndFrame(used, queue);
  }
  absl::StatusOr<uint64_t> StateHash(Queue* queue) override { return predictor_.Hash(queue); }
  absl::Status SaveState(StateWriter* to, Queue* queue) override {
    RETURN_IF_ERROR(predictor_.Save(to, queue));
    return inner_->SaveState(to, queue);
  }
  absl::Status LoadState(StateReader* from, Queue* queue) override {
    RETURN_IF_ERROR(predictor_.Load(from, queue));
    return inner_->LoadState(from, queue);
  }

 private:
  float* prediction(size_t i) const {
    return reinterpret_cast<float*>(predictions_.data()) + static_cast<int64_t>(i) * elements_;
  }

  const Matrix matrix_;
  DevicePredictor predictor_;
  DeviceMemory predictions_;  // of the samples at once
};

}  // namespace isthmus::compress::cuda

#endif  // ISTHMUS_COMPRESS_CUDA_DEVICE_PREDICT_H_
