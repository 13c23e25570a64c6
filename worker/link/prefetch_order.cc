#include "worker/link/prefetch_order.h"

#include <algorithm>

#include "proto/codec/codec_size.h"
#include "proto/plan/actions.h"
#include "proto/plan/overlap.h"

namespace isthmus::worker {
namespace {

// Does the codec's store have a file to read ahead from?
bool Spills(const CodecSpec& spec, const compress::CodecOptions& o) {
  if (!HasBuffers(spec) || o.spill_directory.empty()) return false;
  return LayOutBuffers(BufferBytes(spec, 1, o.positions, o.hidden), o.buffer_memory_bytes,
                       o.buffer_disk_bytes, o.distinct_samples)
             .file_entries > 0;
}

}  // namespace

std::unique_ptr<PrefetchOrder> PrefetchOrder::Make(const SessionPlan& plan, FrameHeader::Kind kind,
                                                   const CodecSpec& spec,
                                                   const compress::CodecOptions& options) {
  if (!Spills(spec, options) || plan.plan().train_samples() < plan.job().recipe().global_batch())
    return nullptr;
  return std::unique_ptr<PrefetchOrder>(new PrefetchOrder(plan, kind));
}

PrefetchOrder::PrefetchOrder(const SessionPlan& plan, FrameHeader::Kind kind)
    : plan_(plan), order_(plan.MakeOrder(plan.plan().train_samples())) {
  for (const Action& a : Unroll(TrainOf(plan.plan(), plan.rank()), 1)) {
    const bool moved = a.op() == Action::SEND || a.op() == Action::RECV;
    // A stage in the middle receives and sends each micro-batch, in the same order.
    if (moved && a.what() == kind &&
        std::find(micros_.begin(), micros_.end(), a.micro()) == micros_.end())
      micros_.push_back(a.micro());
  }
}

absl::Span<const uint32_t> PrefetchOrder::First() {
  ids_.clear();
  Append(plan_.plan().start_step(), 0);
  return ids_;
}

absl::Span<const uint32_t> PrefetchOrder::After(int64_t step, int32_t micro) {
  ids_.clear();
  const auto at = std::find(micros_.begin(), micros_.end(), micro);
  if (at == micros_.end()) return ids_;
  Append(step, static_cast<size_t>(at - micros_.begin()) + 1);
  return ids_;
}

void PrefetchOrder::Append(int64_t step, size_t from) {
  for (; step < plan_.end_step(); ++step, from = 0) {
    const std::vector<uint32_t>& ids = Step(step);
    for (size_t i = from; i < micros_.size(); ++i) {
      const auto begin = ids.begin() + micros_[i] * plan_.job().recipe().micro_batch();
      ids_.insert(ids_.end(), begin, begin + plan_.samples(micros_[i]));
      if (ids_.size() < kMostSamples) continue;
      ids_.resize(kMostSamples);
      return;
    }
    if (from == 0) return;  // no further than the next step: its ids are kept, and epochs in order
  }
}

const std::vector<uint32_t>& PrefetchOrder::Step(int64_t step) {
  auto& known = known_[step % 2];
  if (known.step != step) {
    known.ids = order_.Step(step);
    known.step = step;
  }
  return known.ids;
}

}  // namespace isthmus::worker
