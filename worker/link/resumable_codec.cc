#include "worker/link/resumable_codec.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/status.h"
#include "proto/codec/codec_text.h"
#include "proto/plan/groups.h"

namespace isthmus::worker {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kShareOfTimeout = 4;

absl::Status TooSlow(absl::Duration budget) {
  return absl::DeadlineExceededError(
      absl::StrCat("the disk took more than ", absl::FormatDuration(budget)));
}

class TimedSink : public compress::StateSink {
 public:
  TimedSink(compress::StateSink* sink, absl::Duration budget)
      : sink_(sink), budget_(budget), deadline_(SteadyAfter(budget)) {}
  absl::Status Append(absl::string_view bytes) override {
    if (Clock::now() > deadline_) return TooSlow(budget_);
    return sink_->Append(bytes);
  }

 private:
  compress::StateSink* const sink_;
  const absl::Duration budget_;
  const Clock::time_point deadline_;
};

class TimedSource : public compress::StateSource {
 public:
  TimedSource(compress::StateSource* source, absl::Duration budget)
      : source_(source), budget_(budget), deadline_(SteadyAfter(budget)) {}
  absl::StatusOr<size_t> Read(char* to, size_t bytes) override {
    if (Clock::now() > deadline_) return TooSlow(budget_);
    return source_->Read(to, bytes);
  }

 private:
  compress::StateSource* const source_;
  const absl::Duration budget_;
  const Clock::time_point deadline_;
};

absl::StatusOr<std::unique_ptr<compress::Encoder>> New(const CodecSpec& spec,
                                                       const compress::CodecOptions& options,
                                                       compress::Encoder*) {
  return compress::MakeEncoder(spec, options);
}
absl::StatusOr<std::unique_ptr<compress::Decoder>> New(const CodecSpec& spec,
                                                       const compress::CodecOptions& options,
                                                       compress::Decoder*) {
  return compress::MakeDecoder(spec, options);
}

absl::StatusOr<compress::LoadedCodec<compress::Encoder>> LoadFrom(
    const CodecSpec& spec, const compress::CodecOptions& options, uint64_t place, int64_t step,
    compress::StateSource* source, compress::Encoder*) {
  return compress::LoadEncoder(spec, options, place, step, source);
}
absl::StatusOr<compress::LoadedCodec<compress::Decoder>> LoadFrom(
    const CodecSpec& spec, const compress::CodecOptions& options, uint64_t place, int64_t step,
    compress::StateSource* source, compress::Decoder*) {
  return compress::LoadDecoder(spec, options, place, step, source);
}

}  // namespace

CodecPlace CodecPlace::Boundary(const SessionPlan& plan, const LinkPlan& link, bool up) {
  CodecPlace place;
  place.file = absl::StrCat(link.id(), link.lower() == plan.rank() ? "-lower" : "-upper",
                            up ? "-up" : "-down");
  place.place = Hash64(absl::StrCat(plan.plan().job_id(), "\n", link.id(), "\n", up ? "up" : "down",
                                    "\n", plan.plan().ranks(link.lower()).end_layer()));
  place.words = absl::StrCat(plan.DescribeLink(link), up ? ", upwards" : ", downwards");
  return place;
}

CodecPlace CodecPlace::Group(const SessionPlan& plan, int group, FrameHeader::Kind kind, int part) {
  const GroupPlan& g = plan.plan().groups(group);
  CodecPlace place;
  place.file = absl::StrCat("group-", g.id(), "-", PositionIn(g, plan.rank()),
                            kind == FrameHeader::SUM ? "-sum" : "");
  if (part >= 0) absl::StrAppend(&place.file, "-to-", PositionIn(g, part));
  std::replace(place.file.begin(), place.file.end(), ' ', '-');  // of "stage 0"
  place.place =
      Hash64(absl::StrCat(plan.plan().job_id(), "\n", place.file, "\n", g.ranks_size(), "\n",
                          plan.mine().first_layer(), "\n", plan.mine().end_layer()));
  place.words = absl::StrCat("group ", g.id());
  return place;
}

// NOLINTBEGIN(performance-unnecessary-value-param): both are moved, which a template hides
template <typename Codec>
absl::StatusOr<ResumableCodec<Codec>> ResumableCodec<Codec>::Make(const SessionPlan& plan,
                                                                  CodecPlace place,
                                                                  const CodecSpec& spec,
                                                                  compress::CodecOptions options,
                                                                  CodecStateStore* store) {
  ResumableCodec kept;
  kept.plan_ = &plan;
  kept.place_ = std::move(place);
  kept.spec_ = spec;
  kept.options_ = std::move(options);
  kept.store_ = store;
  RETURN_IF_ERROR(kept.Forget());
  return kept;
}
// NOLINTEND(performance-unnecessary-value-param)

template <typename Codec>
absl::Status ResumableCodec<Codec>::Forget() {
  codec_.reset();  // before the next one takes room for its buffers
  ASSIGN_OR_RETURN(codec_, New(spec_, options_, static_cast<Codec*>(nullptr)));
  return absl::OkStatus();
}

template <typename Codec>
CodecStateKey ResumableCodec<Codec>::Key(int64_t step) const {
  return {plan_->plan().job_id(), place_.file, step};
}

template <typename Codec>
std::string ResumableCodec<Codec>::Name() const {
  return absl::StrCat(place_.words, ", ", FormatCodec(spec_));
}

template <typename Codec>
absl::Status ResumableCodec<Codec>::TrySave(int64_t step) {
  ASSIGN_OR_RETURN(const std::unique_ptr<CodecStateStore::Writer> writer,
                   store_->Create(Key(step)));
  TimedSink sink(writer.get(), plan_->timeout(step) / kShareOfTimeout);
  compress::StateStamp stamp;
  stamp.place = place_.place;
  stamp.step = step;
  stamp.generation = plan_->plan().generation();
  RETURN_IF_ERROR(compress::SaveState(codec_.get(), spec_, options_, stamp, &sink));
  return writer->Commit();
}

template <typename Codec>
void ResumableCodec<Codec>::Save(int64_t step) {
  if (!keeps() || on_device_) return;
  const absl::Status saved = TrySave(step);
  if (saved.ok()) return;
  LogWarning(Name(), ": the codec's state was not saved with checkpoint ", step,
             ", a resume from it begins with a new codec: ", saved.message());
  on_device_ = absl::IsUnimplemented(saved);  // told once
}

template <typename Codec>
absl::StatusOr<compress::LoadedCodec<Codec>> ResumableCodec<Codec>::TryLoad() {
  const int64_t step = plan_->plan().start_step();
  ASSIGN_OR_RETURN(const std::unique_ptr<compress::StateSource> file, store_->Open(Key(step)));
  TimedSource source(file.get(), plan_->timeout(step) / kShareOfTimeout);
  return LoadFrom(spec_, options_, place_.place, step, &source, static_cast<Codec*>(nullptr));
}

template <typename Codec>
absl::StatusOr<uint64_t> ResumableCodec<Codec>::Load() {
  if (!keeps()) return 0;
  codec_.reset();
  absl::StatusOr<compress::LoadedCodec<Codec>> loaded = TryLoad();
  const absl::StatusOr<uint64_t> agreement =
      loaded.ok() ? compress::AgreementHash(*loaded) : loaded.status();
  if (agreement.ok()) {
    codec_ = std::move(loaded->codec);
    return agreement;
  }
  if (!absl::IsNotFound(agreement.status())) {
    LogWarning(Name(), ": the codec's state of checkpoint ", plan_->plan().start_step(),
               " is of no use: ", agreement.status().message());
  }
  RETURN_IF_ERROR(Forget());
  return 0;
}

template class ResumableCodec<compress::Encoder>;
template class ResumableCodec<compress::Decoder>;

}  // namespace isthmus::worker
