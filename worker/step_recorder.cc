#include "worker/step_recorder.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "proto/plan/parts.h"

namespace isthmus::worker {

void StepRecorder::Begin() { begin_ = std::chrono::steady_clock::now(); }

StepRecord StepRecorder::End(int64_t step, const StepResult& result) {
  StepRecord record;
  record.set_job_id(plan_.plan().job_id());
  record.set_generation(plan_.plan().generation());
  record.set_step(step);
  record.set_rank(plan_.rank());
  record.set_has_loss(plan_.has_head());
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
  stored_before_ = std::exchange(stores_, result.decision.busy());
  for (const int g : plan_.groups()) {
    GroupRecord* group = GroupOf(g, &record);
    group->set_reduce_s(group->reduce_s() + 1e-9 * result.groups[g].reduce_ns);
    group->set_wait_s(group->wait_s() + 1e-9 * result.groups[g].wait_ns);
  }
  return record;
}

void StepRecorder::Finish(StepRecord record) {
  Pending pending;
  for (Line& line : lines_) {
    Reading in;
    const Reading now(line.in->meter());
    in.Add(now, line.last_in);
    line.last_in = now;
    record.set_decode_s(record.decode_s() + 1e-9 * in.codec_ns);
    for (const Meter* meter : {&line.in->meter(), &line.out->meter()}) {
      record.set_buffer_memory_bytes(record.buffer_memory_bytes() + meter->buffer_memory_bytes);
      record.set_buffer_disk_bytes(record.buffer_disk_bytes() + meter->buffer_disk_bytes);
    }
    DirectionBytes* bytes = record.add_directions();
    bytes->set_link_id(line.out->link_plan().id());
    bytes->set_forward(line.out->up());
    bytes->set_late_buffer_reads_in(in.late_buffer_reads);
    if (!stores_ && !stored_before_) {
      bytes->set_train_frames_in(in.trains);
      bytes->set_train_bytes_in(in.train_bytes);
      bytes->set_train_s_in(1e-9 * static_cast<double>(in.train_ns));
    }
    pending.frames.push_back(line.out->frames_pushed());
  }
  pending.record = std::move(record);
  {
    MutexLock lock(&mutex_);
    pending_.push_back(std::move(pending));
  }
  Tell(false);
}

// The figures of all parts of its set are one.
GroupRecord* StepRecorder::GroupOf(int group, StepRecord* record) const {
  const std::string name = SetName(plan_.plan().groups(group));
  for (GroupRecord& known : *record->mutable_groups()) {
    if (known.group_id() == name) return &known;
  }
  record->add_groups()->set_group_id(name);
  return record->mutable_groups(record->groups_size() - 1);
}

bool StepRecorder::AllSent(const Pending& pending) const {
  for (size_t i = 0; i < lines_.size(); ++i) {
    if (lines_[i].out->frames_sent() < pending.frames[i]) return false;
  }
  return true;
}

void StepRecorder::AddSent(StepRecord* record) const {
  for (size_t i = 0; i < lines_.size(); ++i) {
    const Reading sent = lines_[i].out->TakeSent(record->step());
    record->set_encode_s(record->encode_s() + 1e-9 * sent.codec_ns);
    record->set_key_frames(record->key_frames() + sent.key_frames);
    if (std::optional<LazyError> error = lines_[i].out->TakeLazyError(record->step()))
      *record->add_lazy_errors() = *std::move(error);
    DirectionBytes* bytes = record->mutable_directions(static_cast<int>(i));
    bytes->set_raw_bytes(sent.raw_bytes);
    bytes->set_wire_bytes(sent.wire_bytes);
    bytes->set_late_buffer_reads(sent.late_buffer_reads);
    for (const auto& [index, of_group] : lines_[i].out->TakeGroups(record->step())) {
      GroupRecord* group = GroupOf(index, record);
      group->set_raw_bytes(group->raw_bytes() + of_group.raw);
      group->set_wire_bytes(group->wire_bytes() + of_group.wire);
    }
  }
}

// One thread tells at a time; another one that comes meanwhile leaves its news to it: the first
// looks again, under the lock, before it ends.
void StepRecorder::Tell(bool all) {
  mutex_.Lock();
  if (telling_) {
    mutex_.Unlock();
    return;
  }
  telling_ = true;
  while (!pending_.empty() && (all || AllSent(pending_.front()))) {
    StepRecord record = std::move(pending_.front().record);
    pending_.pop_front();
    mutex_.Unlock();
    AddSent(&record);
    observer_->OnStep(record);
    if (tracer_ != nullptr) {
      if (const std::optional<StepTrace> trace = tracer_->Take(record.step())) {
        observer_->OnTrace(*trace);
      }
    }
    mutex_.Lock();
  }
  telling_ = false;
  mutex_.Unlock();
}

}  // namespace isthmus::worker
