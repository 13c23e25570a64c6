#include "coordinator/service/coordinator.h"

#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"

namespace isthmus::coordinator {

Coordinator::Coordinator(CoordinatorOptions options, std::unique_ptr<StateLock> lock,
                         std::unique_ptr<Store> store, std::unique_ptr<CheckpointStore> files)
    : options_(std::move(options)),
      lock_(std::move(lock)),
      store_(std::move(store)),
      files_(std::move(files)),
      cores_(options_.membership, options_.jobs, options_.links, options_.compute),
      daemons_(
          {options_.membership, options_.links.probe_budget, options_.first_message, options_.tls},
          &cores_, store_.get()),
      checkpoints_(&cores_, files_.get(), options_.parts_patience),
      recorder_(&cores_, store_.get(), options_.flush_every,
                [this](const StoreBatch& stored) { checkpoints_.Sweep(stored); }),
      fetches_(&cores_, files_.get()),
      phases_(&cores_, files_.get(), options_.run_multilevel),
      submission_(
          {&cores_, &daemons_, store_.get(), &recorder_, files_.get(), &checkpoints_, &phases_},
          options_.patience, options_.try_pending),
      watches_(&cores_, store_.get(), &recorder_),
      queries_(&cores_, &daemons_),
      gauges_(&cores_, options_.insecure),
      traces_(&cores_, &daemons_, options_.traces),
      audit_(options_.state_dir) {}

absl::StatusOr<std::unique_ptr<Coordinator>> Coordinator::Open(CoordinatorOptions options) {
  ASSIGN_OR_RETURN(auto lock, StateLock::Take(options.state_dir));
  ASSIGN_OR_RETURN(auto store, Store::Open(options.state_dir));
  ASSIGN_OR_RETURN(auto files, CheckpointStore::Open(options.state_dir + "/checkpoints"));
  // The database may be new while the checkpoints are not: no id and no generation comes twice.
  const CheckpointStore::Highest highest = files->highest();
  RETURN_IF_ERROR(store->StartAfter(highest.generation, highest.job_number));
  std::unique_ptr<Coordinator> c(
      new Coordinator(std::move(options), std::move(lock), std::move(store), std::move(files)));
  RETURN_IF_ERROR(c->recorder_.Load(c->files_.get()));
  c->checkpoints_.LogOrphans();
  c->audit_.Check();
  c->recorder_.Start();
  c->time_thread_ = std::thread([raw = c.get()] { raw->TimeLoop(); });
  c->phases_.Start();
  c->submission_.Start();
  return c;
}

Coordinator::~Coordinator() { Stop(); }

void Coordinator::Stop() {
  {
    MutexLock lock(&cores_.mutex);
    cores_.stopping = true;
    cores_.changed.SignalAll();
  }
  daemons_.EndAll();
  fetches_.Stop();
  if (time_thread_.joinable()) time_thread_.join();
  recorder_.Stop();
  phases_.Stop();
  submission_.Join();
}

void Coordinator::TimeLoop() {
  for (bool stop = false; !stop;) {
    {
      MutexLock lock(&cores_.mutex);
      const auto wake = SteadyAfter(options_.tick);
      while (!cores_.stopping && cores_.changed.WaitUntil(&cores_.mutex, wake)) {
      }
      stop = cores_.stopping;
    }
    daemons_.Tick(SteadyNow(), BootNow());
    fetches_.Tick(SteadyNow());
    if (options_.tls != nullptr) LookForRevoked(SteadyNow());
  }
}

void Coordinator::LookForRevoked(absl::Time now) {
  if (now < reread_at_) return;
  reread_at_ = now + options_.reread_revoked;
  const absl::StatusOr<bool> other = options_.tls->RereadRevoked();
  if (!other.ok() && !unreadable_)
    LogError("the list of revoked certificates can't be read, the one before holds: ",
             other.status().message());
  unreadable_ = !other.ok();
  if (!other.ok() || !*other) return;
  LogInfo("another list of revoked certificates holds from now on");
  daemons_.OnRevoked();
}

}  // namespace isthmus::coordinator
