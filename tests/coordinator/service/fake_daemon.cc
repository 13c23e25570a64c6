#include "tests/coordinator/service/fake_daemon.h"

#include <chrono>

#include "base/clock.h"
#include "base/rpc/channel.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "proto/control_service.grpc.pb.h"

namespace isthmus::coordinator {

struct FakeDaemon::Stream {
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<Control::Stub> stub;
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReaderWriter<DaemonMessage, CoordinatorMessage>> calls;
  Mutex write_mutex;
};

FakeDaemon::FakeDaemon(Options options)
    : options_(std::move(options)),
      stream_(std::make_unique<Stream>()),
      registered_(absl::UnknownError("not yet")) {
  generation_ = options_.running_generation;
  stream_->channel = rpc::MakeChannel(options_.address, options_.to);
  stream_->stub = Control::NewStub(stream_->channel);
  stream_->context.set_wait_for_ready(true);
  stream_->calls = stream_->stub->Session(&stream_->context);
  DaemonMessage hello;
  *hello.mutable_register_()->mutable_node() = options_.node;
  hello.mutable_register_()->set_instance(options_.instance);
  hello.mutable_register_()->set_running_generation(options_.running_generation);
  hello.mutable_register_()->set_running_job_id(options_.running_job_id);
  hello.mutable_register_()->set_newest_generation(options_.newest_generation);
  *hello.mutable_register_()->mutable_kept() = options_.kept;
  stream_->calls->Write(hello);
  CoordinatorMessage answer;
  if (!stream_->calls->Read(&answer)) {
    registered_ = rpc::FromGrpc(stream_->calls->Finish());
    gone_ = true;
  } else if (answer.has_refuse()) {
    registered_ = absl::FailedPreconditionError(answer.refuse());
    stream_->context.TryCancel();
    stream_->calls->Finish();
    gone_ = true;
  } else {
    registered_ = answer.registered();
    reader_ = std::thread([this] { ReadLoop(); });
    if (options_.heartbeats) beater_ = std::thread([this] { BeatLoop(); });
  }
}

FakeDaemon::~FakeDaemon() { Vanish(); }

absl::StatusOr<Registered> FakeDaemon::registered() const { return registered_; }

void FakeDaemon::Vanish() {
  {
    MutexLock lock(&mutex_);
    gone_ = true;
    ended_.SignalAll();
  }
  if (beater_.joinable()) beater_.join();
  if (!reader_.joinable()) return;
  stream_->context.TryCancel();
  reader_.join();
  stream_->calls->Finish();
}

void FakeDaemon::Send(const DaemonMessage& message) {
  MutexLock lock(&stream_->write_mutex);
  stream_->calls->Write(message);
}

int FakeDaemon::StageOf(const Plan& plan) const {
  for (const RankPlan& s : plan.ranks()) {
    if (s.node_id() == options_.node.id()) return s.stage();
  }
  return -1;
}

void FakeDaemon::Event(const Plan& plan, SessionEvent::State state, int64_t step,
                       const std::string& text) {
  DaemonMessage m;
  SessionEvent* e = m.mutable_session();
  e->set_job_id(plan.job_id());
  e->set_generation(plan.generation());
  e->set_rank(StageOf(plan));
  e->set_state(state);
  e->set_step(step);
  e->set_message(text);
  Send(m);
}

void FakeDaemon::Step(const Plan& plan, int64_t step, double loss, double compute_s,
                      std::optional<double> validation_loss) {
  DaemonMessage m;
  StepRecord* r = m.mutable_step();
  r->set_job_id(plan.job_id());
  r->set_generation(plan.generation());
  r->set_rank(StageOf(plan));
  r->set_step(step);
  r->set_has_loss(StageOf(plan) + 1 == plan.ranks_size());
  r->set_loss(loss);
  r->set_tokens(100);
  r->set_step_s(0.1);
  r->set_compute_s(compute_s);
  r->set_committed(true);
  r->set_has_validation_loss(validation_loss.has_value());
  r->set_validation_loss(validation_loss.value_or(0));
  Send(m);
}

void FakeDaemon::Trace(const CoordinatorMessage& message) {
  DaemonMessage answer;
  const auto now = [this] {
    return static_cast<uint64_t>(absl::ToUnixNanos(SteadyNow()) + options_.clock_ahead_ns);
  };
  if (message.has_clock()) {
    *answer.mutable_clock() = message.clock();
    answer.mutable_clock()->set_daemon_ns(now());
    Send(answer);
  }
  for (int i = 0; i < message.trace().steps(); ++i) {
    StepTrace* trace = answer.mutable_trace();
    trace->set_job_id(message.trace().job_id());
    trace->set_generation(message.trace().generation());
    trace->set_rank(rank_);
    trace->set_step(options_.first_step + i);
    trace->clear_spans();
    trace->add_spans()->set_begin_ns(now());
    Send(answer);
  }
}

void FakeDaemon::ReadLoop() {
  CoordinatorMessage message;
  while (stream_->calls->Read(&message)) {
    if (message.has_clock()) ++clocks_;
    if (options_.traces) Trace(message);
    if (message.has_start()) rank_ = StageOf(message.start());
    if (message.has_start()) starts_.Push(message.start(), absl::ZeroDuration()).IgnoreError();
    if (message.has_stop()) stops_.Push(message.stop(), absl::ZeroDuration()).IgnoreError();
    if (message.has_put_kept())
      put_kept_.Push(message.put_kept(), absl::ZeroDuration()).IgnoreError();
    if (!message.removed_job().empty())
      removed_.Push(message.removed_job(), absl::ZeroDuration()).IgnoreError();
    if (message.has_measure_compute()) {
      ++measures_;
      DaemonMessage answer;
      ComputeTimes* times = answer.mutable_compute();
      times->set_block_flops(options_.node.block_flops());
      times->set_block_forward_s(options_.node.block_forward_s() / options_.faster_when_idle);
      times->set_block_backward_s(options_.node.block_backward_s() / options_.faster_when_idle);
      Send(answer);
    }
    if (!message.has_probe()) continue;
    ++probes_;
    if (!options_.answer_probes) continue;
    DaemonMessage answer;
    for (const NodeInfo& peer : message.probe().peers()) {
      LinkMeasurement* link = answer.mutable_probe_result()->add_links();
      link->set_from_id(options_.node.id());
      link->set_to_id(peer.id());
      link->set_rate_bits_per_s(1e9);
      link->set_round_trip_s(0.001);
    }
    Send(answer);
  }
  starts_.Close(absl::CancelledError("the stream ended"));
  stops_.Close(absl::CancelledError("the stream ended"));
  put_kept_.Close(absl::CancelledError("the stream ended"));
  removed_.Close(absl::CancelledError("the stream ended"));
}

void FakeDaemon::BeatLoop() {
  MutexLock lock(&mutex_);
  for (int64_t progress = 0; !gone_; ++progress) {
    DaemonMessage m;
    m.mutable_heartbeat()->set_generation(generation_);
    m.mutable_heartbeat()->set_progress(progress);
    Send(m);
    const auto until =
        std::chrono::steady_clock::now() + std::chrono::milliseconds(registered_->heartbeat_ms());
    while (!gone_ && ended_.WaitUntil(&mutex_, until)) {
    }
  }
}

absl::StatusOr<Plan> FakeDaemon::NextStart(absl::Duration timeout) { return starts_.Pop(timeout); }
absl::StatusOr<KeptPart> FakeDaemon::NextPutKept(absl::Duration timeout) {
  return put_kept_.Pop(timeout);
}
absl::StatusOr<std::string> FakeDaemon::NextRemoved(absl::Duration timeout) {
  return removed_.Pop(timeout);
}
absl::StatusOr<StopSession> FakeDaemon::NextStop(absl::Duration timeout) {
  return stops_.Pop(timeout);
}

}  // namespace isthmus::coordinator
