#include "worker/step_recorder.h"

#include <cmath>

namespace isthmus::worker {

StepRecorder::Reading StepRecorder::Read(const Meter& meter) {
  return {meter.codec_ns, meter.raw_bytes, meter.wire_bytes, meter.key_frames,
          meter.late_buffer_reads};
}

void StepRecorder::Begin() { begin_ = std::chrono::steady_clock::now(); }

StepRecord StepRecorder::End(int64_t step, const StepResult& result) {
  StepRecord record;
  record.set_job_id(plan_.plan().job_id());
  record.set_generation(plan_.plan().generation());
  record.set_step(step);
  record.set_stage(plan_.stage());
  record.set_has_loss(plan_.last());
  record.set_loss(result.loss);
  record.set_tokens(plan_.tokens_per_step());
  record.set_step_s(
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count());
  record.set_compute_s(1e-9 * result.times.compute_ns);
  record.set_send_wait_s(1e-9 * result.times.send_wait_ns);
  record.set_recv_wait_s(1e-9 * result.times.recv_wait_ns);
  record.set_sync_s(1e-9 * result.times.sync_ns);
  record.set_gradient_norm(std::sqrt(result.decision.norm_sq()));
  record.set_learning_rate(result.learning_rate);
  record.set_committed(result.decision.commit());
  return record;
}

void StepRecorder::AddLinks(StepRecord* to) {
  StepRecord& record = *to;
  for (Line& line : lines_) {
    const Reading in = Read(line.in->meter());
    const Reading out = Read(line.out->meter());
    record.set_decode_s(record.decode_s() + 1e-9 * (in.codec_ns - line.last_in.codec_ns));
    record.set_encode_s(record.encode_s() + 1e-9 * (out.codec_ns - line.last_out.codec_ns));
    record.set_key_frames(record.key_frames() + out.key_frames - line.last_out.key_frames);
    for (const Meter* meter : {&line.in->meter(), &line.out->meter()}) {
      record.set_buffer_memory_bytes(record.buffer_memory_bytes() + meter->buffer_memory_bytes);
      record.set_buffer_disk_bytes(record.buffer_disk_bytes() + meter->buffer_disk_bytes);
    }
    DirectionBytes* bytes = record.add_directions();
    bytes->set_link_id(line.out->link_plan().id());
    bytes->set_forward(line.out->up());
    bytes->set_raw_bytes(out.raw_bytes - line.last_out.raw_bytes);
    bytes->set_wire_bytes(out.wire_bytes - line.last_out.wire_bytes);
    bytes->set_late_buffer_reads(out.late_buffer_reads - line.last_out.late_buffer_reads);
    bytes->set_late_buffer_reads_in(in.late_buffer_reads - line.last_in.late_buffer_reads);
    line.last_in = in;
    line.last_out = out;
  }
}

}  // namespace isthmus::worker
