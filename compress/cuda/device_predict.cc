#include "compress/cuda/device_predict.h"

#include <algorithm>
#include <utility>

#include "base/hash.h"
#include "base/rng.h"
#include "base/status.h"

namespace isthmus::compress::cuda {
namespace {

int64_t Aligned(int64_t bytes) { return (bytes + 15) / 16 * 16; }

template <typename T>
int64_t BytesOf(const std::vector<T>& x) {
  return static_cast<int64_t>(x.size() * sizeof(T));
}

}  // namespace

DevicePredictor::DevicePredictor(const CodecSpec& spec, const SampleShape& shape, int64_t bytes)
    : shape_(shape),
      rate_(PredictRate(spec)),
      size_(PredictorRowsOf(spec, bytes, shape.positions, shape.hidden)),
      contexts_{shape.positions, spec.next(), size_.slots},
      all_(shape.hidden, rate_, 0, 1),
      tokens_(shape.hidden, rate_, 0, size_.tokens - 1) {
  static_assert(kMaxContexts == kMaxPredictContext - 1);
  for (size_t level = 0; level < ContextLevels(spec, size_); ++level)
    levels_.emplace_back(shape.hidden, rate_, 1, size_.slots);
  level_keys_.resize(levels_.size());
}

absl::Status DevicePredictor::Start(Queue* queue) {
  if (started_) return absl::OkStatus();
  const int64_t bytes = 4 * shape_.hidden * (1 + size_.positions);
  RETURN_IF_ERROR(Annotate(fixed_.Reserve(bytes), "means of predict"));
  RETURN_IF_ERROR(queue->Zero(fixed_.data(), bytes));
  started_ = true;
  return absl::OkStatus();
}

absl::Status DevicePredictor::Begin(size_t samples, Queue* queue) {
  const int64_t positions = static_cast<int64_t>(samples) * shape_.positions;
  RETURN_IF_ERROR(Start(queue));
  RETURN_IF_ERROR(rows_.Reserve(positions * static_cast<int64_t>(sizeof(MeanRows))));
  RETURN_IF_ERROR(y_.Reserve(4 * positions * shape_.hidden));
  RETURN_IF_ERROR(too_large_.Reserve(positions));
  token_ids_.assign(static_cast<size_t>(positions), kNoToken);
  return absl::OkStatus();
}

float* DevicePredictor::y(size_t i) const {
  return reinterpret_cast<float*>(y_.data()) + static_cast<int64_t>(i) * shape_.elements();
}

uint8_t* DevicePredictor::too_large(size_t i) const {
  return too_large_.data() + static_cast<int64_t>(i) * shape_.positions;
}

MeanRows DevicePredictor::RowsOf(absl::Span<const uint32_t> tokens, int64_t position) const {
  MeanRows rows;
  rows.token = tokens_.Find(contexts_.Token(tokens, position, 0));
  if (rows.token == nullptr) rows.token = OrZero(all_.Find(0));
  rows.position = size_.positions > 0 ? position_mean(position) : zero();
  for (size_t level = 0; level < levels_.size(); ++level)
    rows.context[level] = levels_[level].Find(contexts_.Slot(tokens, position, level));
  return rows;
}

absl::Status DevicePredictor::Predict(size_t i, absl::Span<const uint32_t> tokens,
                                      float* prediction, Queue* queue) {
  const size_t positions = static_cast<size_t>(shape_.positions);
  std::copy_n(tokens.begin(), std::min(tokens.size(), positions),
              token_ids_.begin() + static_cast<std::ptrdiff_t>(i * positions));
  const absl::Span<const uint32_t> ids =
      absl::MakeConstSpan(token_ids_).subspan(i * positions, positions);
  std::vector<MeanRows> rows;
  for (int64_t p = 0; p < shape_.positions; ++p) rows.push_back(RowsOf(ids, p));
  MeanRows* on_device = reinterpret_cast<MeanRows*>(rows_.data()) + i * positions;
  RETURN_IF_ERROR(queue->ToDevice(on_device, rows.data(), BytesOf(rows)));
  return KernelStatus(
      PredictRows(on_device, {shape_.positions, shape_.hidden}, prediction, queue->stream()),
      "predict");
}

void DevicePredictor::CollectKeys(absl::Span<const uint8_t> used,
                                  const std::vector<uint8_t>& too_large) {
  token_keys_.Clear();
  position_keys_.Clear();
  for (FrameKeys& keys : level_keys_) keys.Clear();
  const size_t positions = static_cast<size_t>(shape_.positions);
  for (size_t i = 0; i < used.size(); ++i) {
    if (used[i] == 0) continue;
    const absl::Span<const uint32_t> ids =
        absl::MakeConstSpan(token_ids_).subspan(i * positions, positions);
    for (size_t p = 0; p < positions; ++p) {
      const size_t at = i * positions + p;
      if (too_large[at] != 0) continue;
      const int64_t position = static_cast<int64_t>(p);
      token_keys_.Add(contexts_.Token(ids, position, 0), static_cast<uint32_t>(at));
      if (size_.positions > 0)
        position_keys_.Add(static_cast<uint32_t>(p), static_cast<uint32_t>(at));
      for (size_t level = 0; level < levels_.size(); ++level)
        level_keys_[level].Add(contexts_.Slot(ids, position, level), static_cast<uint32_t>(at));
    }
  }
}

absl::Status DevicePredictor::Sum(std::vector<MeanMove>* moves, Queue* queue) {
  std::vector<MeanKey> keys;
  std::vector<uint32_t> list;
  const auto append = [&](const FrameKeys& table, MeanOf of, int32_t level) {
    for (size_t k = 0; k < table.keys().size(); ++k) {
      const std::vector<uint32_t>& positions = table.positions(k);
      const int32_t begin = static_cast<int32_t>(list.size());
      list.insert(list.end(), positions.begin(), positions.end());
      keys.push_back({of, level, begin, static_cast<int32_t>(list.size())});
    }
  };
  append(token_keys_, MeanOf::kToken, 0);
  append(position_keys_, MeanOf::kPosition, 0);
  for (size_t level = 0; level < levels_.size(); ++level)
    append(level_keys_[level], MeanOf::kContext, static_cast<int32_t>(level));
  const int64_t count = static_cast<int64_t>(keys.size());
  const int64_t key_bytes = Aligned(BytesOf(keys));
  RETURN_IF_ERROR(sums_.Reserve(4 * shape_.hidden * (count + 1)));
  RETURN_IF_ERROR(scratch_.Reserve(key_bytes + BytesOf(list)));
  RETURN_IF_ERROR(queue->ToDevice(scratch_.data(), keys.data(), BytesOf(keys)));
  RETURN_IF_ERROR(queue->ToDevice(scratch_.data() + key_bytes, list.data(), BytesOf(list)));
  float* sums = reinterpret_cast<float*>(sums_.data());
  RETURN_IF_ERROR(
      KernelStatus(SumKeys(reinterpret_cast<const MeanKey*>(scratch_.data()), count,
                           reinterpret_cast<const uint32_t*>(scratch_.data() + key_bytes),
                           reinterpret_cast<const MeanRows*>(rows_.data()), y(0), shape_.hidden,
                           sums, queue->stream()),
                   "predict"));
  const int64_t tokens = static_cast<int64_t>(token_keys_.keys().size());
  float* sum_of_all = sums + count * shape_.hidden;
  RETURN_IF_ERROR(
      KernelStatus(AddSums(sums, tokens, shape_.hidden, sum_of_all, queue->stream()), "predict"));
  uint32_t rows = 0;
  for (size_t k = 0; k < token_keys_.keys().size(); ++k)
    rows += static_cast<uint32_t>(token_keys_.positions(k).size());
  return all_.Move(0, sum_of_all, rows, moves, queue);
}

absl::Status DevicePredictor::AppendMoves(std::vector<MeanMove>* moves, Queue* queue) {
  const float* sum = reinterpret_cast<const float*>(sums_.data());
  const auto append = [&](const FrameKeys& keys, DeviceMeans* table) -> absl::Status {
    for (size_t k = 0; k < keys.keys().size(); ++k, sum += shape_.hidden) {
      const uint32_t count = static_cast<uint32_t>(keys.positions(k).size());
      RETURN_IF_ERROR(table->Move(keys.keys()[k], sum, count, moves, queue));
    }
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(append(token_keys_, &tokens_));
  for (size_t k = 0; k < position_keys_.keys().size(); ++k, sum += shape_.hidden) {
    MeanMove move;
    move.mean = position_mean(position_keys_.keys()[k]);
    move.sum = sum;
    move.rate = rate_;
    move.count = static_cast<float>(position_keys_.positions(k).size());
    move.drifts = true;
    moves->push_back(move);
  }
  for (size_t level = 0; level < levels_.size(); ++level)
    RETURN_IF_ERROR(append(level_keys_[level], &levels_[level]));
  return absl::OkStatus();
}

absl::Status DevicePredictor::EndFrame(absl::Span<const uint8_t> used, Queue* queue) {
  std::vector<uint8_t> too_large(used.size() * static_cast<size_t>(shape_.positions));
  RETURN_IF_ERROR(queue->ToHost(too_large.data(), too_large_.data(), BytesOf(too_large)));
  RETURN_IF_ERROR(queue->Wait());
  CollectKeys(used, too_large);
  if (token_keys_.keys().empty()) return absl::OkStatus();
  std::vector<MeanMove> moves;
  RETURN_IF_ERROR(Sum(&moves, queue));
  RETURN_IF_ERROR(AppendMoves(&moves, queue));
  RETURN_IF_ERROR(scratch_.Reserve(BytesOf(moves)));
  RETURN_IF_ERROR(queue->ToDevice(scratch_.data(), moves.data(), BytesOf(moves)));
  return KernelStatus(MoveMeans(reinterpret_cast<const MeanMove*>(scratch_.data()),
                                static_cast<int64_t>(moves.size()), shape_.hidden, queue->stream()),
                      "predict");
}

absl::StatusOr<std::vector<float>> DevicePredictor::PositionMeans(Queue* queue) const {
  std::vector<float> positions(static_cast<size_t>(size_.positions * shape_.hidden));
  if (started_ && !positions.empty())
    RETURN_IF_ERROR(queue->ToHost(positions.data(), position_mean(0), BytesOf(positions)));
  RETURN_IF_ERROR(queue->Wait());
  return positions;
}

absl::Status DevicePredictor::Save(StateWriter* to, Queue* queue) const {
  ASSIGN_OR_RETURN(const std::vector<float> positions, PositionMeans(queue));
  to->Array(positions);
  RETURN_IF_ERROR(all_.Save(to, queue));
  RETURN_IF_ERROR(tokens_.Save(to, queue));
  for (const DeviceMeans& level : levels_) RETURN_IF_ERROR(level.Save(to, queue));
  return to->status();
}

absl::Status DevicePredictor::Load(StateReader* from, Queue* queue) {
  std::vector<float> positions;
  from->Array(static_cast<size_t>(size_.positions * shape_.hidden), "means of positions",
              &positions);
  RETURN_IF_ERROR(from->status());
  RETURN_IF_ERROR(Start(queue));
  if (!positions.empty())
    RETURN_IF_ERROR(queue->ToDevice(position_mean(0), positions.data(), BytesOf(positions)));
  RETURN_IF_ERROR(queue->Wait());
  RETURN_IF_ERROR(all_.Load(from, queue));
  RETURN_IF_ERROR(tokens_.Load(from, queue));
  for (DeviceMeans& level : levels_) RETURN_IF_ERROR(level.Load(from, queue));
  return from->status();
}

absl::StatusOr<uint64_t> DevicePredictor::Hash(Queue* queue) const {
  ASSIGN_OR_RETURN(const std::vector<float> positions, PositionMeans(queue));
  uint64_t hash = Hash64(positions.data(), 4 * positions.size());
  ASSIGN_OR_RETURN(const uint64_t all, all_.Hash(queue));
  ASSIGN_OR_RETURN(const uint64_t tokens, tokens_.Hash(queue));
  hash = Mix64(hash ^ all) ^ tokens;
  for (const DeviceMeans& level : levels_) {
    ASSIGN_OR_RETURN(const uint64_t of_level, level.Hash(queue));
    hash = Mix64(hash) ^ of_level;
  }
  return hash;
}

void DevicePredict::AppendPrefix(const SampleInfo& info, std::string* out) const {
  std::vector<uint32_t> ids(info.tokens.begin(), info.tokens.end());
  ids.resize(static_cast<size_t>(matrix_.positions), kNoToken);
  WriteTokenIds(ids, out);
}

absl::Status DevicePredict::Encode(DType dtype, absl::Span<const EncodeJob> jobs,
                                   absl::Span<const SampleInfo> infos, Queue* queue) {
  RETURN_IF_ERROR(Reserve(jobs.size()));
  RETURN_IF_ERROR(predictions_.Reserve(4 * elements_ * static_cast<int64_t>(kAtOnce)));
  RETURN_IF_ERROR(predictor_.Begin(jobs.size(), queue));
  const Stream stream = queue->stream();
  return ForRuns(jobs.size(), [&](size_t first, size_t count) -> absl::Status {
    for (size_t i = 0; i < count; ++i) {
      const EncodeJob& job = jobs[first + i];
      RETURN_IF_ERROR(predictor_.Predict(first + i, infos[first + i].tokens, prediction(i), queue));
      RETURN_IF_ERROR(KernelStatus(
          FindGains(job.a, dtype, prediction(i), matrix_, kGainUnit, job.body, stream), "predict"));
      RETURN_IF_ERROR(KernelStatus(
          ApplyGains(job.body, kGainUnit, matrix_, prediction(i), job.a, dtype, tensor(i), stream),
          "predict"));
    }
    RETURN_IF_ERROR(Code(jobs.subspan(first, count), infos.subspan(first, count), queue));
    for (size_t i = 0; i < count; ++i) {
      const EncodeJob& job = jobs[first + i];
      const RebuildJob rebuild = {
          prediction(i), back(i),        predictor_.y(first + i),        nullptr,
          job.m,         job.not_finite, predictor_.too_large(first + i)};
      RETURN_IF_ERROR(
          KernelStatus(RebuildRows(rebuild, matrix_, dtype, kTooLargeToLearn, stream), "predict"));
    }
    return absl::OkStatus();
  });
}

absl::Status DevicePredict::Decode(DType dtype, absl::Span<const DecodeJob> jobs,
                                   absl::Span<const SampleInfo> infos, uint32_t* not_finite,
                                   Queue* queue) {
  RETURN_IF_ERROR(Reserve(jobs.size()));
  RETURN_IF_ERROR(predictions_.Reserve(4 * elements_ * static_cast<int64_t>(kAtOnce)));
  RETURN_IF_ERROR(predictor_.Begin(jobs.size(), queue));
  const Stream stream = queue->stream();
  return ForRuns(jobs.size(), [&](size_t first, size_t count) -> absl::Status {
    RETURN_IF_ERROR(DecodeBack(jobs.subspan(first, count), infos.subspan(first, count), queue));
    for (size_t i = 0; i < count; ++i) {
      const DecodeJob& job = jobs[first + i];
      RETURN_IF_ERROR(predictor_.Predict(first + i, infos[first + i].tokens, prediction(i), queue));
      RETURN_IF_ERROR(KernelStatus(
          ApplyGains(job.body, kGainUnit, matrix_, prediction(i), nullptr, dtype, nullptr, stream),
          "predict"));
      const RebuildJob rebuild = {
          prediction(i), back(i),    predictor_.y(first + i),        job.out,
          job.m,         not_finite, predictor_.too_large(first + i)};
      RETURN_IF_ERROR(
          KernelStatus(RebuildRows(rebuild, matrix_, dtype, kTooLargeToLearn, stream), "predict"));
    }
    return absl::OkStatus();
  });
}

}  // namespace isthmus::compress::cuda
