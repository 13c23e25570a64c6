#include "worker/link/codec_options.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/rng.h"
#include "compress/cuda/device_codec.h"
#include "proto/codec/codec_text.h"
#include "proto/plan/card_memory.h"
#include "proto/plan/groups.h"

namespace isthmus::worker {
namespace {

compress::CodecOptions Options(const SessionPlan& plan, const TensorDims& dims) {
  compress::CodecOptions options;
  options.positions = dims.positions;
  options.hidden = dims.hidden;
  options.max_samples = dims.samples;
  options.buffer_memory_bytes = plan.job().compression().buffer_memory_bytes();
  options.buffer_disk_bytes = plan.job().compression().buffer_disk_bytes();
  options.distinct_samples = plan.distinct_samples();
  return options;
}

}  // namespace

compress::CodecOptions BoundaryCodecOptions(const SessionPlan& plan, const LinkPlan& link,
                                            const CodecSpec& spec, bool up,
                                            const std::string& spill_directory) {
  compress::CodecOptions options =
      Options(plan, plan.boundary_dims(link, plan.job().recipe().micro_batch()));
  options.seed = RandomBits(plan.job().seed(), Hash64(link.id()), up ? 1 : 2);
  if (IsStateful(spec)) options.spill_directory = spill_directory;
  return options;
}

int64_t DeviceBufferBytes(const SessionPlan& plan, int64_t free_bytes) {
  return std::max<int64_t>(1, CardBufferBytes(free_bytes, PlannedOnHost(plan.plan(), plan.rank())));
}

int64_t DeviceBufferBytes(const SessionPlan& plan, compress::Device device) {
  if (device != compress::Device::kCuda) return 0;
  const absl::StatusOr<int64_t> free_bytes = compress::cuda::FreeDeviceBytes();
  return free_bytes.ok() ? DeviceBufferBytes(plan, *free_bytes) : 0;
}

compress::CodecOptions GroupCodecOptions(const SessionPlan& plan, int group, FrameHeader::Kind kind,
                                         int from, int to) {
  const GroupPlan& g = plan.plan().groups(group);
  if (kind == FrameHeader::SLICE) {  // frames differ in length
    compress::CodecOptions options = Options(plan, {g.rows(), 1, g.width()});
    options.seed = RandomBits(plan.job().seed(), Hash64(g.id()), PositionIn(g, from) + 1);
    return options;
  }
  const Rows rows = FrameRows(g, kind, from, to);
  compress::CodecOptions options = Options(plan, {1, rows.count(), g.width()});
  options.shapes = ShapesIn(g, rows);
  // The first and the last stages reduce the tied embedding's differences to the same bits.
  const bool twin = g.tensors() == GroupPlan::TIED && g.value() == GroupPlan::DIFFERENCE;
  std::string what = twin ? kTiedGroup : g.id();
  if (g.rule() == GroupPlan::SHARDED && kind == FrameHeader::CONTRIBUTION)
    absl::StrAppend(&what, " part ", PositionIn(g, to));
  if (kind == FrameHeader::SUM) absl::StrAppend(&what, " sum");
  options.seed = RandomBits(plan.job().seed(), Hash64(what), PositionIn(g, from) + 1);
  return options;
}

}  // namespace isthmus::worker
