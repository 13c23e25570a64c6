#include "daemon/part_sender.h"

#include <algorithm>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"

namespace isthmus::daemon {
namespace {

constexpr absl::Duration kGiveUpAfter = absl::Minutes(1);  // the coordinator asks again

bool Same(const KeptPart& a, const KeptPart& b) {
  return a.job_id() == b.job_id() && a.step() == b.step() && a.generation() == b.generation() &&
         a.stage() == b.stage() && a.replica() == b.replica();
}

}  // namespace

PartSender::PartSender(PartDir* parts, CheckpointClientOptions options, Health* health)
    : parts_(parts), options_(std::move(options)) {
  options_.give_up_after = std::min(options_.give_up_after, kGiveUpAfter);
  thread_ = health->Spawn("parts", [this] { Loop(); });
}

PartSender::~PartSender() { Stop(); }

void PartSender::Stop() {
  {
    MutexLock lock(&mutex_);
    stop_ = true;
    changed_.SignalAll();
  }
  BreakOff("the daemon is ending");
  if (thread_.joinable()) thread_.join();
}

void PartSender::Ask(const KeptPart& part) {
  MutexLock lock(&mutex_);
  const bool there = std::any_of(asked_.begin(), asked_.end(),
                                 [&](const KeptPart& asked) { return Same(asked, part); });
  if (stop_ || there || asked_.size() >= kMaxAsked) return;
  asked_.push_back(part);
  changed_.SignalAll();
}

void PartSender::BreakOff(const std::string& why) {
  MutexLock lock(&mutex_);
  if (client_ == nullptr) {
    asked_.clear();
    return;
  }
  asked_.erase(asked_.begin() + 1, asked_.end());
  client_->Cancel(absl::CancelledError(why));
}

void PartSender::Loop() {
  for (;;) {
    KeptPart part;
    CheckpointClient* client = nullptr;
    {
      MutexLock lock(&mutex_);
      while (!stop_ && asked_.empty()) changed_.Wait(&mutex_);
      if (stop_) return;
      part = asked_.front();
      client_ = std::make_unique<CheckpointClient>(options_);
      client = client_.get();
    }
    const absl::Status status = Send(part, client);
    const std::string what =
        absl::StrCat("checkpoint ", part.step(), " of job ", part.job_id(),
                     ", which the coordinator has not got whole: this host's part ");
    if (status.ok()) {
      LogInfo(what, "is put there");
    } else {
      LogWarning(what, "is not put there: ", status.message());
    }
    MutexLock lock(&mutex_);
    client_.reset();
    asked_.pop_front();
  }
}

absl::Status PartSender::Send(const KeptPart& part, CheckpointClient* client) {
  int sent = 0, all = CheckpointFiles(0);
  for (const LocalPart& file : parts_->Parts(part.job_id(), part.step())) {
    if (file.generation() != part.generation() || file.stage() != part.stage() ||
        file.replica() != part.replica() || !IsCheckpointFile(file.file()))
      continue;
    const absl::StatusOr<std::unique_ptr<ByteSource>> bytes =
        parts_->Open(part.job_id(), part.step(), file);
    if (!bytes.ok()) return Disown(part, bytes.status());
    PutCheckpointHeader header;
    header.set_job_id(part.job_id());
    header.set_generation(part.generation());
    header.set_step(part.step());
    header.set_stage(file.stage());
    header.set_stages(file.stages());
    header.set_replica(file.replica());
    header.set_file(file.file());
    header.set_file_bytes(file.bytes());
    header.set_checksum(file.checksum());
    RETURN_IF_ERROR(client->Put(header, **bytes));
    all = CheckpointFiles(file.replica());
    ++sent;
  }
  return sent == all ? absl::OkStatus()
                     : Disown(part, absl::NotFoundError(absl::StrCat(sent, " of its ", all,
                                                                     " files are on this disk")));
}

absl::Status PartSender::Disown(const KeptPart& part, const absl::Status& why) {
  parts_->Disown(part);
  return absl::Status(why.code(), absl::StrCat(why.message(), "; it is offered no longer"));
}

}  // namespace isthmus::daemon
