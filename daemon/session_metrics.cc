#include "daemon/session_metrics.h"

#include <algorithm>

#include "base/metrics.h"
#include "daemon/net/resuming_stream.h"

namespace isthmus::daemon {

namespace {

constexpr const char* kGroupGauges[] = {"isthmus_group_reduce_seconds",
                                        "isthmus_group_wait_seconds", "isthmus_group_raw_bytes",
                                        "isthmus_group_wire_bytes"};

void CountTimes(const StepRecord& record) {
  const auto time = [](const char* part, double seconds) {
    CounterAdd("isthmus_stage_time_seconds_total",
               "Time of this stage by what it was spent on; encode and decode run beside compute.",
               {{"part", part}}, std::max(seconds, 0.0));
  };
  time("compute", record.compute_s());
  time("encode", record.encode_s());
  time("decode", record.decode_s());
  time("send_wait", record.send_wait_s());
  time("recv_wait", record.recv_wait_s());
  time("sync", record.sync_s());
  CounterAdd("isthmus_step_seconds_total", "Time of whole steps, from start to commit.", {},
             std::max(record.step_s(), 0.0));
}

void CountBytes(const StepRecord& record) {
  for (const DirectionBytes& each : record.directions()) {
    const auto way = [&](bool forward) -> MetricLabels {
      return {{"link", each.link_id()}, {"direction", forward ? "forward" : "backward"}};
    };
    const MetricLabels labels = way(each.forward());
    CounterAdd("isthmus_boundary_raw_bytes_total",
               "Bytes of the tensors sent, before compression (fp32).", labels,
               static_cast<double>(each.raw_bytes()));
    CounterAdd("isthmus_boundary_wire_bytes_total", "Bytes sent, headers included.", labels,
               static_cast<double>(each.wire_bytes()));
    for (const bool out : {true, false}) {
      const int64_t late = out ? each.late_buffer_reads() : each.late_buffer_reads_in();
      CounterAdd("isthmus_late_buffer_reads_total",
                 "Delta buffers that a codec waited for: in the spill file, not read ahead.",
                 way(out == each.forward()), static_cast<double>(std::max<int64_t>(late, 0)));
    }
  }
}

constexpr char kLazyCosine[] = "isthmus_lazy_error_cosine";
constexpr char kLazyRelative[] = "isthmus_lazy_error_ratio";

void CountSteps(const char* outcome, double steps) {
  CounterAdd("isthmus_steps_total", "Steps by outcome.", {{"outcome", outcome}}, steps);
}

bool Reduces(const GroupRecord& group) {
  return group.reduce_s() > 0 || group.wait_s() > 0 || group.raw_bytes() > 0 ||
         group.wire_bytes() > 0;
}

void CountKeyFrames(double frames) {
  CounterAdd("isthmus_key_frames_total", "Samples that delta codecs sent in full.", {}, frames);
}

}  // namespace

SessionMetrics::SessionMetrics() {
  for (const char* outcome : {"committed", "skipped"}) CountSteps(outcome, 0);
  CountKeyFrames(0);
  CounterAdd(kReconnects, kReconnectsHelp, {}, 0);
}

// A job whose session has ended has no loss and no learning rate any longer.
void SessionMetrics::ShowJob(const std::string& job_id) {
  if (job_id == job_) return;
  if (!job_.empty()) {
    for (const char* name :
         {"isthmus_bubble_ratio", "isthmus_loss", "isthmus_validation_loss",
          "isthmus_validation_accuracy", "isthmus_gradient_norm", "isthmus_learning_rate"}) {
      GaugeRemove(name, {{"job", job_}});
    }
    for (const char* tier : {"memory", "disk"})
      GaugeRemove("isthmus_buffer_bytes", {{"job", job_}, {"tier", tier}});
    for (const std::string& group : groups_) {
      for (const char* name : kGroupGauges) GaugeRemove(name, {{"job", job_}, {"group", group}});
    }
    groups_.clear();
  }
  for (const std::string& link : lazy_links_) {
    for (const char* name : {kLazyCosine, kLazyRelative})
      GaugeRemove(name, {{"job", job_}, {"link", link}});
  }
  lazy_links_.clear();
  job_ = job_id;
}

void SessionMetrics::ShowGroups(const StepRecord& record) {
  for (const GroupRecord& group : record.groups()) {
    const auto count = [&](const char* name, const char* help, int64_t bytes) {
      CounterAdd(name, help, {{"group", group.group_id()}},
                 static_cast<double>(std::max<int64_t>(bytes, 0)));
    };
    count("isthmus_group_raw_bytes_total",
          "Bytes of what this rank sent to a group, before compression (fp32).", group.raw_bytes());
    count("isthmus_group_wire_bytes_total",
          "Bytes that this rank sent to a group, headers included.", group.wire_bytes());
    // With local steps most steps reduce nothing: the gauges stay those of the last one that did.
    if (!Reduces(group)) continue;
    groups_.insert(group.group_id());
    const MetricLabels labels = {{"job", record.job_id()}, {"group", group.group_id()}};
    GaugeSet("isthmus_group_reduce_seconds",
             "Time of the compute thread for the last reduction of a group, waits among it.",
             labels, group.reduce_s());
    GaugeSet("isthmus_group_wait_seconds", "Of that, waits for other ranks' frames.", labels,
             group.wait_s());
    GaugeSet("isthmus_group_raw_bytes",
             "Bytes of what this rank sent to a group in its last reduction, before compression "
             "(fp32).",
             labels, static_cast<double>(group.raw_bytes()));
    GaugeSet("isthmus_group_wire_bytes",
             "Bytes that this rank sent to a group in its last reduction, headers included.",
             labels, static_cast<double>(group.wire_bytes()));
  }
}

void SessionMetrics::ShowLazyErrors(const StepRecord& record) {
  for (const LazyError& e : record.lazy_errors()) {
    if (lazy_links_.count(e.link_id()) == 0 && lazy_links_.size() >= kMostLazyLinks) continue;
    lazy_links_.insert(e.link_id());
    const MetricLabels labels = {{"job", record.job_id()}, {"link", e.link_id()}};
    GaugeSet(kLazyCosine,
             "Of gradients sent by lep: mean cosine between the error that one leaves and the "
             "difference of its activation to the next one's.",
             labels, e.cosine());
    GaugeSet(kLazyRelative, "Of gradients sent by lep: size of the error to what was to be sent.",
             labels, e.relative_error());
  }
}

void SessionMetrics::ReportStep(const StepRecord& record) {
  MutexLock lock(&mutex_);
  ShowJob(record.job_id());
  CountTimes(record);
  CountSteps(record.committed() ? "committed" : "skipped", 1);
  CountBytes(record);
  ShowGroups(record);
  CountKeyFrames(static_cast<double>(std::max<int64_t>(record.key_frames(), 0)));
  CounterAdd("isthmus_tokens_total", "Tokens of the whole pipeline's steps.", {},
             static_cast<double>(std::max<int64_t>(record.tokens(), 0)));
  const MetricLabels job = {{"job", record.job_id()}};
  if (record.step_s() > 0) {
    GaugeSet("isthmus_bubble_ratio", "Share of the last step in which this stage did not compute.",
             job, std::clamp(1 - record.compute_s() / record.step_s(), 0.0, 1.0));
  }
  ShowLazyErrors(record);
  if (record.has_loss())
    GaugeSet("isthmus_loss", "Mean loss of the last step, nats a token.", job, record.loss());
  if (record.has_validation_loss()) {
    GaugeSet("isthmus_validation_loss", "Loss of the last validation pass, nats a token.", job,
             record.validation_loss());
  }
  if (record.has_validation_accuracy()) {
    GaugeSet("isthmus_validation_accuracy",
             "Share of the samples of the last validation pass whose class a classifier said.", job,
             record.validation_accuracy());
  }
  GaugeSet("isthmus_gradient_norm", "Global gradient norm of the last step, before clipping.", job,
           record.gradient_norm());
  GaugeSet("isthmus_learning_rate", "Learning rate of the last step.", job, record.learning_rate());
  const char* const buffers = "Bytes of delta buffers.";
  GaugeSet("isthmus_buffer_bytes", buffers, {{"job", record.job_id()}, {"tier", "memory"}},
           static_cast<double>(record.buffer_memory_bytes()));
  GaugeSet("isthmus_buffer_bytes", buffers, {{"job", record.job_id()}, {"tier", "disk"}},
           static_cast<double>(record.buffer_disk_bytes()));
}

void ReportMeasurement(const std::string& peer, const LinkMeasurement& measurement) {
  const MetricLabels labels = {{"peer", peer}};
  if (!measurement.error().empty()) {
    GaugeRemove("isthmus_link_rate_bytes_per_second", labels);
    GaugeRemove("isthmus_link_round_trip_seconds", labels);
    return;
  }
  GaugeSet("isthmus_link_rate_bytes_per_second", "Measured rate from this daemon to the peer.",
           labels, measurement.rate_bits_per_s() / 8);
  GaugeSet("isthmus_link_round_trip_seconds", "Measured round trip to the peer.", labels,
           measurement.round_trip_s());
}

void SessionMetrics::ReportRunning(const SessionRunner::Running& running,
                                   absl::Duration heartbeat_age) {
  {
    MutexLock lock(&mutex_);
    if (running.job_id.empty()) ShowJob("");
  }
  const bool runs = !running.job_id.empty();
  GaugeSet("isthmus_session_running", "1 while a session runs.", {}, runs ? 1 : 0);
  GaugeSet("isthmus_generation", "Generation of the plan that runs, 0 if none.", {},
           static_cast<double>(running.generation));
  GaugeSet("isthmus_stage", "Stage this daemon holds, -1 if none.", {}, runs ? running.stage : -1);
  GaugeSet("isthmus_heartbeat_age_seconds", "Since the last heartbeat was sent to the coordinator.",
           {}, absl::ToDoubleSeconds(heartbeat_age));
}

void ReportBuild(const std::string& version, const std::string& device) {
  GaugeSet("isthmus_build_info", "Always 1.", {{"version", version}, {"device", device}}, 1);
}

}  // namespace isthmus::daemon
