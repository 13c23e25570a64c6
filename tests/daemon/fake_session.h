// A session that does as the test says: for what runs sessions. Thread: any.
#ifndef ISTHMUS_TESTS_DAEMON_FAKE_SESSION_H_
#define ISTHMUS_TESTS_DAEMON_FAKE_SESSION_H_

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "worker/session.h"

namespace isthmus::daemon {

// Runs until it is stopped or cancelled, after one step record.
class FakeSession : public worker::Session {
 public:
  explicit FakeSession(worker::SessionOptions options) : options_(std::move(options)) {}

  absl::Status Run() override {
    Emit(SessionEvent::RUNNING, absl::OkStatus());
    StepRecord record;
    record.set_job_id(options_.plan.job_id());
    record.set_generation(options_.plan.generation());
    record.set_step(0);
    record.set_rank(options_.rank);
    options_.observer->OnStep(record);
    absl::Status end;
    {
      MutexLock lock(&mutex_);
      while (!stop_ && cancelled_.ok()) changed_.Wait(&mutex_);
      end = cancelled_;
    }
    Emit(end.ok() ? SessionEvent::FINISHED : SessionEvent::FAILED, end);
    return end;
  }
  void RequestStop() override {
    MutexLock lock(&mutex_);
    stop_ = true;
    changed_.SignalAll();
  }
  void RequestCheckpoint() override {}
  void RequestTrace(int steps) override {  // of which it tells at once
    for (int i = 0; i < steps; ++i) {
      StepTrace trace;
      trace.set_job_id(options_.plan.job_id());
      trace.set_generation(options_.plan.generation());
      trace.set_rank(options_.rank);
      trace.set_step(i + 1);
      options_.observer->OnTrace(trace);
    }
  }
  void Cancel(absl::Status why) override {
    MutexLock lock(&mutex_);
    cancelled_ = std::move(why);
    changed_.SignalAll();
  }
  int64_t progress() const override { return 10; }
  int64_t step() const override { return 1; }

 private:
  void Emit(SessionEvent::State state, const absl::Status& status) {
    SessionEvent event;
    event.set_job_id(options_.plan.job_id());
    event.set_generation(options_.plan.generation());
    event.set_rank(options_.rank);
    event.set_state(state);
    event.set_message(std::string(status.message()));
    options_.observer->OnEvent(event);
  }

  const worker::SessionOptions options_;
  Mutex mutex_;
  CondVar changed_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status cancelled_ ABSL_GUARDED_BY(mutex_);
};

class FakeCorpus : public worker::Corpus {
 public:
  int64_t train_samples() const override { return 10; }
  int64_t validation_samples() const override { return 1; }
  int64_t context() const override { return 4; }
  absl::Status Read(uint32_t, uint32_t* tokens, uint32_t* targets) const override {
    std::fill_n(tokens, 4, uint32_t{0});
    std::fill_n(targets, 4, uint32_t{0});
    return absl::OkStatus();
  }
  uint64_t fingerprint() const override { return 1; }
};

inline absl::StatusOr<std::unique_ptr<worker::Session>> MakeFakeSession(
    worker::SessionOptions options) {
  return std::unique_ptr<worker::Session>(std::make_unique<FakeSession>(std::move(options)));
}

// NotFound for the data path "missing".
inline absl::StatusOr<std::unique_ptr<worker::Corpus>> OpenFakeCorpus(const std::string& data_dir,
                                                                      const JobSpec& job) {
  if (job.data().path() == "missing")
    return absl::NotFoundError(data_dir + "/missing: no such file");
  return std::unique_ptr<worker::Corpus>(std::make_unique<FakeCorpus>());
}

}  // namespace isthmus::daemon

#endif  // ISTHMUS_TESTS_DAEMON_FAKE_SESSION_H_
