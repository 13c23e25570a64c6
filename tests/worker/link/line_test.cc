// Inlet and outlet against each other over one link in memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "compress/cuda/device_codec.h"
#include "tests/temp_directory.h"
#include "tests/worker/fake_lane.h"
#include "tests/worker/world.h"
#include "worker/data/corpus.h"
#include "worker/executor.h"
#include "worker/link/inlet.h"
#include "worker/link/memory_link.h"
#include "worker/link/outlet.h"
#include "worker/step_recorder.h"

namespace isthmus::worker {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kLong = absl::Seconds(60);

// Two stages, one step of 2 micro-batches of one sample; the test plays both compute threads.
// Its receiver waited for every frame, and 1000 bytes of it came within 2 ms.
class TrainLink : public Link {
 public:
  explicit TrainLink(std::unique_ptr<Link> link) : link_(std::move(link)) {}
  absl::Status Send(Frame frame, absl::Duration timeout) override {
    return link_->Send(std::move(frame), timeout);
  }
  absl::StatusOr<Frame> Receive(int64_t max_payload_bytes, absl::Duration timeout) override {
    absl::StatusOr<Frame> frame = link_->Receive(max_payload_bytes, timeout);
    if (!frame.ok()) return frame;
    frame->train_bytes = 1000;
    frame->train_time = std::chrono::milliseconds(2);
    return frame;
  }
  void Cancel(absl::Status why) override { link_->Cancel(std::move(why)); }
  absl::Status Finish(absl::Duration timeout) override { return link_->Finish(timeout); }
  bool peer_exchanges_codec_state() const override { return link_->peer_exchanges_codec_state(); }
  int64_t wire_bytes_sent() const override { return link_->wire_bytes_sent(); }

 private:
  const std::unique_ptr<Link> link_;
};

class LineTest : public ::testing::Test {
 protected:
  static WorldShape Shape(const std::string& forward) {
    WorldShape shape;
    shape.steps = 3;
    shape.global_batch = 2;
    shape.micro_batch = 1;
    shape.eval_samples = 0;
    shape.forward = forward;
    return shape;
  }
  // Deltas of `samples` samples, half of which memory holds.
  static Plan SpillingPlan(int64_t samples, int64_t steps) {
    WorldShape shape = Shape("delta(quant(4))");
    shape.steps = static_cast<int>(steps);
    const int64_t entry = 2 * shape.context * shape.hidden;
    shape.buffer_memory_bytes = samples / 2 * entry;
    shape.buffer_disk_bytes = samples * entry;
    Plan plan = MakePlan(shape);
    plan.set_train_samples(samples);
    return plan;
  }
  void Open(const std::string& forward, bool check_buffers = false) {
    WorldShape shape = Shape(forward);
    shape.check_buffers = check_buffers;
    Open(MakePlan(shape), "");
  }
  void Open(const Plan& plan, const std::string& spill_directory,
            std::unique_ptr<DeviceLane> out_lane = nullptr,
            std::unique_ptr<DeviceLane> in_lane = nullptr, IndicesBoard* board = nullptr) {
    lower_ = SessionPlan::Make(plan, 0).value();
    upper_ = SessionPlan::Make(plan, 1).value();
    std::thread dial(
        [this] { low_ = hub_.Open(lower_->plan(), *lower_->above(), 0, kLong).value(); });
    up_ = hub_.Open(upper_->plan(), *upper_->below(), 1, kLong).value();
    dial.join();
    if (trains_) up_ = std::make_unique<TrainLink>(std::move(up_));
    out_ = Outlet::Make(*lower_, *lower_->above(), spill_directory, nullptr, board,
                        std::move(out_lane))
               .value();
    in_ = Inlet::Make(*upper_, *upper_->below(), spill_directory, nullptr, nullptr,
                      std::move(in_lane))
              .value();
    out_->Start(low_.get(), [this](absl::Status s) { Failed(s); });
    in_->Start(up_.get(), [this](absl::Status s) { Failed(s); });
  }

  void TearDown() override {
    Failed(absl::CancelledError("end of test"));
    out_->Join();
    in_->Join();
  }

  // What a session does with its first error.
  void Failed(absl::Status status) {
    MutexLock lock(&mutex_);
    if (!failure_.ok()) return;
    failure_ = status;
    low_->Cancel(status);
    in_->Abort(status);
    out_->Abort(status);
  }
  absl::Status failure() {
    MutexLock lock(&mutex_);
    return failure_;
  }

  // As a session does at its end.
  void Flush(StepRecorder* recorder) {
    out_->Close();
    out_->Join();
    recorder->Flush();
  }

  Outbound Activation(int64_t step, int micro, uint32_t id, float value = 1) {
    Outbound item;
    item.header.set_kind(FrameHeader::ACTIVATION);
    item.header.set_step(step);
    item.header.set_micro(micro);
    item.header.add_sample_ids(id);
    item.tensor = Tensor::Zeros(lower_->boundary_dims(*lower_->above(), 1));
    for (float& x : item.tensor.data) x = value;
    item.timeout = kLong;
    return item;
  }
  Outbound Decision(int64_t step, bool stop = false) {
    Outbound item;
    item.header.set_kind(FrameHeader::DECISION);
    item.header.set_step(step);
    item.header.mutable_vote()->set_stop(stop);
    item.timeout = kLong;
    return item;
  }

  bool trains_ = false;  // what comes up is one after the other
  MemoryLinkHub hub_;
  std::unique_ptr<const SessionPlan> lower_, upper_;
  std::unique_ptr<Link> low_, up_;
  std::unique_ptr<Outlet> out_;
  std::unique_ptr<Inlet> in_;
  Mutex mutex_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
};

TEST_F(LineTest, TensorsAndVotesArriveInOrder) {
  Open("none");
  ASSERT_TRUE(out_->Push(Activation(0, 0, 5, 1.25f)).ok());
  ASSERT_TRUE(out_->Push(Activation(0, 1, 6, 2.5f)).ok());
  ASSERT_TRUE(out_->Push(Decision(0)).ok());
  const Inbound a = in_->Pop(kLong).value();
  EXPECT_EQ(a.header.sample_ids(0), 5u);
  EXPECT_EQ(a.tensor.dims.positions, 3);
  EXPECT_EQ(a.tensor.data, std::vector<float>(12, 1.25f));
  EXPECT_EQ(in_->Pop(kLong)->tensor.data, std::vector<float>(12, 2.5f));
  EXPECT_EQ(in_->Pop(kLong)->header.kind(), FrameHeader::DECISION);
  EXPECT_EQ(out_->meter().raw_bytes, 2 * 12 * 4);
  EXPECT_GT(out_->meter().wire_bytes, 2 * 12 * 4);
  EXPECT_GT(in_->meter().codec_ns, 0);
}

TEST_F(LineTest, CodecsOnALaneWorkInItsMemory) {
  LaneCalls out_calls, in_calls;
  Open(MakePlan(Shape("delta(quant(4))")), "", std::make_unique<FakeLane>(&out_calls),
       std::make_unique<FakeLane>(&in_calls));
  for (int micro : {0, 1}) {
    Outbound item = Activation(0, micro, 5 + micro, 1.25f);
    item.tensor.device = std::make_shared<FakeMemory>(std::move(item.tensor.data));
    item.tensor.data.clear();
    ASSERT_TRUE(out_->Push(std::move(item)).ok());
    const Inbound in = in_->Pop(kLong).value();
    EXPECT_TRUE(in.tensor.data.empty());
    ASSERT_NE(in.tensor.device, nullptr);
    EXPECT_EQ(in.tensor.device->ToHost().value(), std::vector<float>(12, 1.25f));
  }
  EXPECT_EQ(out_calls.read, 2);
  EXPECT_EQ(in_calls.made, 2);
  EXPECT_EQ(in_calls.written, 2);
  EXPECT_TRUE(failure().ok());
}

// With `kept` on the way back too: its indices are handed over in memory of the host.
TEST_F(LineTest, ACodecWhoseIndicesAreKeptWorksOnTheLane) {
  LaneCalls out_calls, in_calls;
  IndicesBoard board(2);
  WorldShape shape = Shape("topk(0.5, values=none)");
  shape.backward = "kept";
  Open(MakePlan(shape), "", std::make_unique<FakeLane>(&out_calls),
       std::make_unique<FakeLane>(&in_calls), &board);
  Outbound item = Activation(0, 0, 5, 1.25f);
  item.tensor.device = std::make_shared<FakeMemory>(std::move(item.tensor.data));
  item.tensor.data.clear();
  ASSERT_TRUE(out_->Push(std::move(item)).ok());
  const Inbound in = in_->Pop(kLong).value();
  EXPECT_NE(in.tensor.device, nullptr);
  EXPECT_EQ(in.indices.size(), 6u);
  EXPECT_EQ(in.indices, board.Take(0, 0).value());
  EXPECT_EQ(out_calls.read, 1);
  EXPECT_EQ(in_calls.written, 1);
  EXPECT_TRUE(failure().ok());
}

// A build without CUDA has no codec for a device: those of the host take their place.
TEST_F(LineTest, ACodecThatADeviceLacksWorksOnTheHost) {
  LaneCalls out_calls, in_calls;
  Open(MakePlan(Shape("none")), "", std::make_unique<FakeLane>(&out_calls, compress::Device::kCuda),
       std::make_unique<FakeLane>(&in_calls, compress::Device::kCuda));
  if (compress::cuda::BuiltWithCuda()) GTEST_SKIP() << "the device has all of them";
  Outbound item = Activation(0, 0, 5, 1.25f);
  item.tensor.device = std::make_shared<FakeMemory>(std::move(item.tensor.data));
  item.tensor.data.clear();
  ASSERT_TRUE(out_->Push(std::move(item)).ok());
  const Inbound in = in_->Pop(kLong).value();
  EXPECT_EQ(in.tensor.device, nullptr);
  EXPECT_EQ(in.tensor.data, std::vector<float>(12, 1.25f));
  EXPECT_EQ(out_calls.read + in_calls.made + in_calls.written, 0);
}

TEST_F(LineTest, AStopEndsTheSequenceAndBothThreads) {
  Open("none");
  for (int micro : {0, 1}) ASSERT_TRUE(out_->Push(Activation(0, micro, micro)).ok());
  ASSERT_TRUE(out_->Push(Decision(0, true)).ok());
  out_->Close();
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(in_->Pop(kLong).ok());
  EXPECT_TRUE(in_->WaitDone(kLong));
  EXPECT_THAT(in_->Pop(kLong).status().message(), HasSubstr("nothing more is due"));
  EXPECT_TRUE(failure().ok());
}

TEST_F(LineTest, AnEarlyEndIsAnErrorOfWhoeverStillWaits) {
  Open("none");
  ASSERT_TRUE(out_->Push(Activation(0, 0, 1)).ok());
  out_->Close();
  EXPECT_TRUE(in_->Pop(kLong).ok());
  EXPECT_THAT(in_->Pop(kLong).status().message(),
              HasSubstr("link b0 with stage 0 (node-0, 10.0.0.1:7071): the peer ended early"));
}

TEST_F(LineTest, ASampleTwiceInAStepIsRefused) {
  Open("none");
  ASSERT_TRUE(out_->Push(Activation(0, 0, 5)).ok());
  EXPECT_TRUE(in_->Pop(kLong).ok());
  ASSERT_TRUE(out_->Push(Activation(0, 1, 5)).ok());
  EXPECT_THAT(in_->Pop(kLong).status().message(), HasSubstr("sample 5 came twice"));
}

TEST_F(LineTest, DifferentBuffersAreNoticed) {
  Open("delta(quant(4))", true);
  for (int micro : {0, 1}) ASSERT_TRUE(out_->Push(Activation(0, micro, micro)).ok());
  Frame forged;  // beside the outlet, which is idle by then: both tensors have arrived
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(in_->Pop(kLong).ok());
  forged.header.set_kind(FrameHeader::BUFFER_HASH);
  forged.header.set_buffer_hash(12345);
  SealFrame(lower_->plan(), &forged);
  ASSERT_TRUE(low_->Send(forged, kLong).ok());
  EXPECT_THAT(in_->Pop(kLong).status().message(),
              HasSubstr("delta buffers of the two ends differ after step 0"));
}

TEST_F(LineTest, ADeadlineNamesThePeer) {
  Open("none");
  const absl::Status status = in_->Pop(absl::Milliseconds(1)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(status.message(),
              HasSubstr("link b0 with stage 0 (node-0, 10.0.0.1:7071): nothing came for 1ms"));
}

TEST_F(LineTest, RecordsAreDifferences) {
  Open("delta(quant(4))");
  RecordingObserver observer;
  StepRecorder recorder(*lower_, &observer);
  recorder.Add(*in_, out_.get());
  StepResult result;
  result.groups.resize(lower_->plan().groups_size());
  result.decision.set_norm_sq(9);
  result.decision.set_commit(true);
  for (int step = 0; step < 2; ++step) {
    recorder.Begin();
    for (int micro : {0, 1}) ASSERT_TRUE(out_->Push(Activation(step, micro, micro)).ok());
    ASSERT_TRUE(out_->Push(Decision(step)).ok());
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(in_->Pop(kLong).ok());
    recorder.Finish(recorder.End(step, result));
  }
  Flush(&recorder);
  ASSERT_EQ(observer.records().size(), 2u);
  for (const StepRecord& record : observer.records()) {
    EXPECT_EQ(record.gradient_norm(), 3);
    EXPECT_EQ(record.key_frames(), record.step() == 0 ? 2 : 0);
    EXPECT_EQ(record.directions(0).raw_bytes(), 2 * 12 * 4);
    EXPECT_TRUE(record.directions(0).forward());
    EXPECT_EQ(record.buffer_memory_bytes() > 0, true);
  }
}

// Both ends read ahead what the order of samples says comes next: from the second epoch on no codec
// waits for the file, though memory holds half of the samples.
TEST_F(LineTest, BuffersInTheFileAreReadAhead) {
  constexpr int64_t kSamples = 16, kEpochs = 4, kSteps = kEpochs * kSamples / 2;
  TempDirectory directory;
  const Plan plan = SpillingPlan(kSamples, kSteps);
  const int64_t entry = plan.job().compression().buffer_disk_bytes() / kSamples;
  Open(plan, directory.path());
  SampleOrder order(plan.job().seed(), kSamples, 2);
  for (int64_t step = 0; step < kSteps; ++step) {
    const std::vector<uint32_t> ids = order.Step(step);
    for (int micro = 0; micro < 2; ++micro) {
      ASSERT_TRUE(out_->Push(Activation(step, micro, ids[static_cast<size_t>(micro)])).ok());
      ASSERT_TRUE(in_->Pop(kLong).ok());
    }
    ASSERT_TRUE(out_->Push(Decision(step)).ok());
    ASSERT_TRUE(in_->Pop(kLong).ok());
  }
  for (const Meter* meter : {&out_->meter(), &in_->meter()}) {
    EXPECT_EQ(meter->buffer_disk_bytes, kSamples / 2 * entry);
    EXPECT_EQ(meter->late_buffer_reads, 0);
  }
  EXPECT_EQ(out_->meter().key_frames, kSamples);
}

// Samples in another order than the one that both ends read ahead by: the records say how often
// either codec waited for the file.
TEST_F(LineTest, BuffersThatCameLateAreInTheRecords) {
  constexpr int64_t kSamples = 16, kSteps = 4 * kSamples / 2;
  TempDirectory directory;
  Open(SpillingPlan(kSamples, kSteps), directory.path());
  RecordingObserver observer;
  StepRecorder recorder(*lower_, &observer);
  recorder.Add(*in_, out_.get());
  int64_t out = 0, in = 0;
  for (int64_t step = 0; step < kSteps; ++step) {
    recorder.Begin();
    for (int micro = 0; micro < 2; ++micro) {
      ASSERT_TRUE(out_->Push(Activation(step, micro, (2 * step + micro) % kSamples)).ok());
      ASSERT_TRUE(in_->Pop(kLong).ok());
    }
    ASSERT_TRUE(out_->Push(Decision(step)).ok());
    ASSERT_TRUE(in_->Pop(kLong).ok());
    StepResult result;
    result.groups.resize(lower_->plan().groups_size());
    recorder.Finish(recorder.End(step, result));
  }
  Flush(&recorder);
  for (const StepRecord& record : observer.records()) {
    out += record.directions(0).late_buffer_reads();
    in += record.directions(0).late_buffer_reads_in();
  }
  EXPECT_GT(out, 0);
  EXPECT_EQ(out, out_->meter().late_buffer_reads);
  EXPECT_GT(in, 0);
  EXPECT_EQ(in, in_->meter().late_buffer_reads);
}

// What the frames of a step showed of the link's rate is in the receiver's record.
TEST_F(LineTest, TrainsAreInTheRecords) {
  trains_ = true;
  Open("none");
  RecordingObserver observer;
  StepRecorder recorder(*lower_, &observer);
  recorder.Add(*in_, out_.get());
  for (int step = 0; step < 3; ++step) {
    recorder.Begin();
    for (int micro = 0; micro < 2; ++micro) {
      ASSERT_TRUE(out_->Push(Activation(step, micro, static_cast<uint32_t>(micro))).ok());
      ASSERT_TRUE(in_->Pop(kLong).ok());
    }
    ASSERT_TRUE(out_->Push(Decision(step)).ok());
    ASSERT_TRUE(in_->Pop(kLong).ok());
    StepResult result;
    result.groups.resize(lower_->plan().groups_size());
    result.decision.set_busy(step == 1);  // a checkpoint is on its way, over the same line
    recorder.Finish(recorder.End(step, result));
  }
  Flush(&recorder);
  const std::vector<StepRecord> records = observer.records();
  ASSERT_EQ(records.size(), 3u);
  for (int step = 0; step < 3; ++step) {
    const DirectionBytes& bytes = records[static_cast<size_t>(step)].directions(0);
    const int frames = step == 0 ? 3 : 0;  // with the decision; it may have ended in step 2
    EXPECT_EQ(bytes.train_frames_in(), frames);
    EXPECT_EQ(bytes.train_bytes_in(), 1000 * frames);
    EXPECT_DOUBLE_EQ(bytes.train_s_in(), 0.002 * frames);
  }
}

}  // namespace
}  // namespace isthmus::worker
