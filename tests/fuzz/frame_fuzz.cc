// Frames as a link hands them to an inlet: the header that says what the payload is, and the
// payload. Input: one byte that picks the frame that is due, one whose first bit gives the frame a
// right checksum (as a peer that means harm would), two bytes of length, the header as a message,
// the payload. What CheckFrame lets through is within the bounds of the plan, and its payload goes
// to the plan's decoder. Any result is right but a crash, a read or write out of bounds, or a frame
// of another job, shape or codec that passed.
#include <google/protobuf/stubs/logging.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "compress/codec.h"
#include "proto/codec/codec_text.h"
#include "tests/worker/world.h"
#include "worker/link/frames.h"

namespace isthmus::worker {
namespace {

// What a stage waits for on one of its links.
struct Due {
  const SessionPlan* plan;
  const LinkPlan* link;
  ExpectedFrame frame;
};

std::unique_ptr<const SessionPlan> StageOf(int stage) {
  WorldShape shape;
  shape.stages = 3;
  shape.steps = 2;
  shape.global_batch = 3;
  shape.eval_every = 1;
  shape.forward = "delta(quant(3), cold=predict(quant(4)))";
  shape.backward = "lep(topk(0.3)) | zstd";
  shape.tied = "bf16 | zstd";
  shape.check_buffers = true;
  return SessionPlan::Make(MakePlan(shape), stage).value();
}

// All that the middle stage and the first one wait for in a step.
const std::vector<Due>& AllDue() {
  static const std::vector<Due>* const all = [] {
    auto* due = new std::vector<Due>;
    for (int stage : {1, 0}) {
      const SessionPlan* plan = StageOf(stage).release();
      for (const LinkPlan* link : plan->links()) {
        FrameSequence sequence(*plan, *link);
        for (auto next = sequence.Next(); next && next->step == 0; next = sequence.Next())
          due->push_back({plan, link, *next});
        if (link->kind() == LinkPlan::BOUNDARY)
          due->push_back({plan, link, {FrameHeader::CODEC_STATE, 0, 0}});
      }
    }
    return due;
  }();
  return *all;
}

compress::CodecOptions OptionsOf(const TensorDims& dims) {
  compress::CodecOptions options;
  options.positions = dims.positions;
  options.hidden = dims.hidden;
  options.max_samples = dims.samples;
  return options;
}

void Check(const Due& due, const Frame& frame) {
  const absl::Status status = CheckFrame(*due.plan, *due.link, due.frame, frame);
  if (!status.ok()) return;
  const FrameHeader& h = frame.header;
  if (h.kind() != due.frame.kind || h.job_id() != due.plan->plan().job_id()) abort();
  if (!HasTensor(h.kind())) {
    if (!frame.payload.empty()) abort();
    return;
  }
  const TensorDims most = FrameDims(*due.plan, *due.link, due.frame);
  const TensorDims dims{h.shape(0), h.shape(1), h.shape(2)};
  if (dims.samples > most.samples || dims.positions != most.positions || dims.hidden != most.hidden)
    abort();
  if (dims.samples == 0) return;
  std::vector<float> y(static_cast<size_t>(dims.elements()));
  compress::FrameContext context;
  context.sample_ids = {h.sample_ids().data(), static_cast<size_t>(h.sample_ids_size())};
  context.step = h.step();
  context.micro = h.micro();
  std::unique_ptr<compress::Decoder> decoder =
      compress::MakeDecoder(FrameCodec(*due.plan, *due.link, h.kind(), due.frame.step,
                                       due.frame.micro, due.frame.group),
                            OptionsOf(most))
          .value();
  decoder
      ->Decode(frame.payload, h.state_version(), context,
               {y.data(), compress::DType::kF32, compress::Device::kCpu, dims})
      .IgnoreError();
}

void Fuzz(const uint8_t* data, size_t size) {
  if (size < 4) return;
  const Due& due = AllDue()[data[0] % AllDue().size()];
  const size_t header = std::min<size_t>(data[2] + 256u * data[3], size - 4);
  Frame frame;
  if (!frame.header.ParseFromArray(data + 4, static_cast<int>(header))) return;
  frame.payload.assign(reinterpret_cast<const char*>(data) + 4 + header, size - 4 - header);
  if (data[1] & 1) {
    frame.header.set_payload_bytes(frame.payload.size());
    frame.header.set_checksum(FrameChecksum(frame.header, frame.payload));
  }
  Check(due, frame);
}

// The frame that is due, as an honest peer sends it.
Frame Good(const Due& due) {
  Frame frame;
  FrameHeader& h = frame.header;
  h.set_kind(due.frame.kind);
  h.set_step(due.frame.step);
  h.set_micro(due.frame.micro);
  h.set_group(due.frame.group);
  if (h.kind() == FrameHeader::VOTE || h.kind() == FrameHeader::DECISION)
    h.mutable_vote()->set_norm_sq(2);
  if (h.kind() == FrameHeader::CODEC_STATE) h.mutable_codec_state()->set_up(3);
  if (HasTensor(h.kind())) {
    const TensorDims dims = FrameDims(*due.plan, *due.link, due.frame);
    for (int64_t n : {dims.samples, dims.positions, dims.hidden}) h.add_shape(n);
    const bool of_group = OfGroup(h.kind());
    for (int64_t i = 0; i < dims.samples && !of_group; ++i)
      h.add_sample_ids(static_cast<uint32_t>(10 * due.frame.micro + i));
    const CodecSpec& spec = FrameCodec(*due.plan, *due.link, h.kind(), due.frame.step,
                                       due.frame.micro, due.frame.group);
    h.set_codec(CodecId(spec));
    std::vector<float> x(static_cast<size_t>(dims.elements()));
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 7) * 0.25f - 0.5f;
    const std::vector<uint32_t> tokens(static_cast<size_t>(dims.samples * dims.positions), 5);
    compress::FrameContext context;
    context.sample_ids = {h.sample_ids().data(), static_cast<size_t>(h.sample_ids_size())};
    context.token_ids = tokens;
    std::unique_ptr<compress::Encoder> encoder =
        compress::MakeEncoder(spec, OptionsOf(dims)).value();
    if (!encoder
             ->Encode({x.data(), compress::DType::kF32, compress::Device::kCpu, dims}, context,
                      &frame.payload)
             .ok())
      abort();
    h.set_state_version(encoder->version());
  }
  SealFrame(due.plan->plan(), &frame);
  if (!CheckFrame(*due.plan, *due.link, due.frame, frame).ok()) abort();
  return frame;
}

}  // namespace
}  // namespace isthmus::worker

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // Else it writes a line for each job id that is no UTF-8.
  static google::protobuf::LogHandler* const usual = google::protobuf::SetLogHandler(nullptr);
  (void)usual;
  isthmus::worker::Fuzz(data, size);
  return 0;
}

extern "C" void WriteSeeds(const char* directory) {
  const std::vector<isthmus::worker::Due>& all = isthmus::worker::AllDue();
  for (size_t i = 0; i < all.size(); ++i) {
    const isthmus::worker::Frame frame = isthmus::worker::Good(all[i]);
    const std::string header = frame.header.SerializeAsString();
    std::ofstream file(std::string(directory) + "/" + std::to_string(i), std::ios::binary);
    file << static_cast<char>(i) << '\1' << static_cast<char>(header.size() % 256)
         << static_cast<char>(header.size() / 256) << header << frame.payload;
  }
}
