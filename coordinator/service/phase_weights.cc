#include "coordinator/service/phase_weights.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/file/durable_file.h"
#include "base/file/random_access_file.h"
#include "base/log.h"
#include "base/number_text.h"
#include "base/process.h"
#include "base/status.h"
#include "coordinator/core/format.h"
#include "proto/job/phases.h"
#include "proto/model/gpt2_config.h"
#include "proto/model/model_cost.h"

namespace isthmus::coordinator {
namespace {

constexpr char kProgram[] = "isthmus-multilevel";
constexpr absl::Duration kLookAgain = absl::Milliseconds(50);
constexpr absl::Duration kEndGrace = absl::Seconds(1);
constexpr absl::Duration kPatience = absl::Minutes(2);
constexpr double kSlowBytesPerSecond = 2e6;
constexpr int64_t kMostWords = 1000;  // bytes of its output that are told
constexpr size_t kPieceBytes = 1 << 20;

std::string ShapeWords(const ModelSpec& m) {
  return absl::StrCat(m.layers(), " x ", m.hidden(), " / ", m.heads());
}

// All that the result depends on beside the checkpoints.
std::string HowMade(const JobSpec& spec, int phase) {
  const PhaseTransition t = TransitionInto(spec, phase);
  const PhaseSpec& p = spec.phases(phase);
  const bool smaller = t.kind == PhaseTransition::kCoalesce;
  std::string words = absl::StrCat(
      smaller ? "coalesce " : "decoalesce ", ShapeWords(PhaseJob(spec, phase - 1).model()), " to ",
      ShapeWords(PhaseJob(spec, phase).model()), ", ", p.width_groups(), ", ", p.depth_groups());
  if (t.mixed >= 0)
    absl::StrAppend(&words, ", alpha ", NumberText(t.alpha), " with checkpoint ",
                    PhaseEnd(spec, t.mixed));
  return words;
}

// The last bytes of what a program printed.
std::string LastWords(const std::string& path) {
  const absl::StatusOr<RandomAccessFile> file = RandomAccessFile::Open(path);
  if (!file.ok()) return "";
  const int64_t count = std::min(file->bytes(), kMostWords);
  std::string text(static_cast<size_t>(count), '\0');
  if (!file->ReadAt(file->bytes() - count, text.size(), text.data()).ok()) return "";
  return std::string(absl::StripAsciiWhitespace(text));
}

}  // namespace

absl::Duration MultilevelPatience(int64_t bytes) {
  return kPatience + absl::Seconds(static_cast<double>(bytes) / kSlowBytesPerSecond);
}

absl::Status RunMultilevelProgram(const MultilevelCall& call, const Cancelled& cancelled) {
  ASSIGN_OR_RETURN(const std::string program, FindProgram(kProgram));
  return RunOperator(program, call, MultilevelPatience(call.bytes), cancelled);
}

absl::Status RunOperator(const std::string& program, const MultilevelCall& call,
                         absl::Duration patience, const Cancelled& cancelled) {
  ProcessOptions options;
  options.argv.push_back(program);
  options.argv.insert(options.argv.end(), call.words.begin(), call.words.end());
  options.output_file = call.output_file;
  const absl::Time give_up = SteadyNow() + patience;
  ASSIGN_OR_RETURN(Process process, Process::Start(options));
  std::optional<int> code;
  while (!(code = process.Wait(kLookAgain)).has_value()) {
    const bool wanted = !cancelled();
    if (wanted && SteadyNow() < give_up) continue;
    process.Stop(kEndGrace);
    if (!wanted) return absl::CancelledError("they are no longer wanted");
    return absl::DeadlineExceededError(
        absl::StrCat(kProgram, " ", call.words[0], " did not end within ", DurationWords(patience),
                     ", its deadline for ", FormatBytes(static_cast<double>(call.bytes)),
                     " of models: look at the load and the disk of the coordinator's host"));
  }
  if (*code == 0) return absl::OkStatus();
  const std::string said = LastWords(call.output_file);
  return absl::InternalError(
      said.empty() ? absl::StrCat(kProgram, " ended with code ", *code,
                                  " and no word could be kept: is the coordinator's disk full?")
                   : said);
}

void PhaseWeights::Start() {
  thread_ = std::thread([this] { Loop(); });
}

void PhaseWeights::Stop() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
}

bool PhaseWeights::IsWanted(const std::string& job_id, const Wanted& wanted) {
  MutexLock lock(&mutex_);
  const auto it = wanted_.find(job_id);
  return !stopping_ && it != wanted_.end() && it->second.Is(wanted);
}

void PhaseWeights::ForgetAllBut(const std::vector<std::string>& pending) {
  MutexLock lock(&mutex_);
  for (auto it = wanted_.begin(); it != wanted_.end();) {
    const bool waits = std::find(pending.begin(), pending.end(), it->first) != pending.end();
    it = waits ? std::next(it) : wanted_.erase(it);
  }
}

bool PhaseWeights::Ready(const StartRequest& start) {
  Wanted asked;
  asked.spec = start.spec;
  asked.step = start.start_step;
  asked.phase = PhaseAfter(start.spec, start.start_step);
  asked.generation = store_->GenerationOf(start.job_id, asked.step);
  asked.made = HowMade(asked.spec, asked.phase);
  MutexLock lock(&mutex_);
  const auto known = wanted_.find(start.job_id);
  if (known != wanted_.end() && known->second.Is(asked)) {
    // Since they were seen last they may have been damaged, or put right: a user's own submit has
    // them looked at again.
    if (!known->second.ready || start.kind == StartRequest::kPending) return known->second.ready;
  }
  wanted_[start.job_id] = std::move(asked);
  queue_.push_back(start.job_id);
  changed_.SignalAll();
  return false;
}

bool PhaseWeights::TakeNews() {
  MutexLock lock(&mutex_);
  return std::exchange(news_, false);
}

void PhaseWeights::Loop() {
  for (;;) {
    std::string job_id;
    Wanted wanted;
    {
      MutexLock lock(&mutex_);
      while (!stopping_ && queue_.empty()) changed_.Wait(&mutex_);
      if (stopping_) return;
      job_id = std::move(queue_.front());
      queue_.pop_front();
      const auto it = wanted_.find(job_id);
      if (it == wanted_.end() || it->second.ready) continue;  // asked for twice
      wanted = it->second;
    }
    const absl::Status made = Make(job_id, wanted);
    MutexLock lock(&cores_->mutex);
    {
      MutexLock own(&mutex_);
      if (stopping_) return;
      const auto it = wanted_.find(job_id);
      // Else something else is wanted now, and in the queue, or nothing any more.
      if (it == wanted_.end() || !it->second.Is(wanted)) continue;
      if (absl::IsCancelled(made)) {  // it was not wanted for a while
        queue_.push_back(job_id);
        continue;
      }
      it->second.ready = news_ = true;
      if (!made.ok()) wanted_.erase(it);
    }
    if (!made.ok()) cores_->jobs.PhaseFailed(job_id, std::string(made.message()), SteadyNow());
    cores_->changed.SignalAll();
  }
}

absl::Status PhaseWeights::Make(const std::string& job_id, const Wanted& wanted) {
  const absl::Status there = store_->HasStart(job_id, wanted.step, wanted.made);
  if (there.ok()) return there;
  if (!absl::IsNotFound(there))
    LogWarning("job ", job_id, ": what was made of checkpoint ", wanted.step,
               " is made anew: ", there.message());
  const absl::Time begin = SteadyNow();
  ASSIGN_OR_RETURN(const std::string dir, store_->BeginStart(job_id));
  const absl::Status made = MakeIn(dir, job_id, wanted);
  store_->DropStart(job_id);
  RETURN_IF_ERROR(made);
  LogInfo("job ", job_id, ": ", PhaseWords(wanted.phase, wanted.spec.phases_size()),
          " starts with weights made of checkpoint ", wanted.step, " (", wanted.made, "; ",
          DurationWords(SteadyNow() - begin), ")");
  return absl::OkStatus();
}

absl::Status PhaseWeights::MakeIn(const std::string& dir, const std::string& job_id,
                                  const Wanted& wanted) {
  const PhaseTransition t = TransitionInto(wanted.spec, wanted.phase);
  const PhaseSpec& phase = wanted.spec.phases(wanted.phase);
  const ModelSpec model = PhaseJob(wanted.spec, wanted.phase).model();
  const std::string before = dir + "/before", changed = dir + "/changed", mixed = dir + "/mixed",
                    earlier = dir + "/earlier";
  const Cancelled cancelled = [&] { return !IsWanted(job_id, wanted); };
  RETURN_IF_ERROR(WriteModel(job_id, wanted.step, PhaseJob(wanted.spec, wanted.phase - 1).model(),
                             before, cancelled));
  const int64_t after = 4 * ParameterCount(model);
  MultilevelCall call;
  call.output_file = dir + "/output";
  call.bytes = after + 4 * ParameterCount(PhaseJob(wanted.spec, wanted.phase - 1).model());
  call.words = {t.kind == PhaseTransition::kCoalesce ? "coalesce" : "decoalesce",
                before,
                changed,
                "--layers",
                absl::StrCat(model.layers()),
                "--hidden",
                absl::StrCat(model.hidden()),
                "--heads",
                absl::StrCat(model.heads()),
                "--width-groups",
                phase.width_groups(),
                "--depth-groups",
                phase.depth_groups()};
  RETURN_IF_ERROR(run_(call, cancelled));
  std::error_code error;
  std::filesystem::remove_all(before, error);  // the disk may be small
  if (t.mixed >= 0) {
    const int64_t end = PhaseEnd(wanted.spec, t.mixed);
    const absl::Status read = WriteModel(job_id, end, model, earlier, cancelled);
    const std::string damage = store_->DamageOf(job_id, end);
    if (!read.ok() && !damage.empty()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "it is mixed with the checkpoint of step ", end, ", which phase ", t.mixed + 1,
          " ended with, and that can't be used: ", damage,
          ". Put a copy of the file back, or do without: `isthmus submit JOB.yaml --resume "
          "--accept-changes` with phases[",
          wanted.phase, "].alpha: 1"));
    }
    RETURN_IF_ERROR(read);
    call.output_file += "-mixed";
    call.bytes = 3 * after;
    call.words = {"interpolate", earlier, changed, mixed, "--alpha", NumberText(t.alpha)};
    RETURN_IF_ERROR(run_(call, cancelled));
  }
  CheckpointManifest start;
  start.job_id = job_id;
  start.step = wanted.step;
  start.generation = wanted.generation;
  start.made = wanted.made;
  return store_->FinishStart(start,
                             absl::StrCat(t.mixed >= 0 ? mixed : changed, "/model.safetensors"));
}

// As an export: config.json and model.safetensors.
absl::Status PhaseWeights::WriteModel(const std::string& job_id, int64_t step,
                                      const ModelSpec& model, const std::string& dir,
                                      const Cancelled& cancelled) {
  FetchCheckpointRequest request;
  request.set_job_id(job_id);
  request.set_step(step);
  request.set_what("weights");
  int64_t at = 0;
  ASSIGN_OR_RETURN(const auto reader, store_->Read(request, cancelled, &at));
  std::error_code error;
  std::filesystem::create_directory(dir, error);
  if (reader->total_bytes() > FreeBytes(dir)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "a copy of checkpoint ", step, " has ",
        FormatBytes(static_cast<double>(reader->total_bytes())),
        ", and the coordinator's --state-dir has less room than that: free some disk"));
  }
  RETURN_IF_ERROR(WriteFileDurably(dir + "/config.json", Gpt2ConfigJson(model)));
  ASSIGN_OR_RETURN(const auto file, DurableFile::Create(dir + "/model.safetensors"));
  std::string piece;
  do {
    if (cancelled()) return absl::CancelledError("they are no longer wanted");
    RETURN_IF_ERROR(reader->Read(kPieceBytes, &piece));
    RETURN_IF_ERROR(file->Append(piece));
  } while (!piece.empty());
  return file->Commit();
}

}  // namespace isthmus::coordinator
