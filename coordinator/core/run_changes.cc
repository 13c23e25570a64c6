#include "coordinator/core/run_changes.h"

#include <google/protobuf/descriptor.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/number_text.h"
#include "base/status.h"
#include "proto/data/data_position.h"
#include "proto/job/field_text.h"
#include "proto/job/job_defaults.h"
#include "proto/job/phases.h"
#include "proto/job/subnetworks.h"
#include "proto/model/recipe.h"

namespace isthmus::coordinator {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

constexpr double kTooLarge = 1.5;  // of a step, to what it should be

// Fields that other rows or the planner speak of.
bool IsSkipped(absl::string_view path) {
  // The planner lowers the memory of buffers by itself. Of the model only init_from may differ, and
  // a resume does not read it.
  return path == "name" || path == "compression.buffer_memory_bytes" || path == "phases" ||
         absl::StartsWith(path, "model.");
}

bool IsOfTheRate(absl::string_view path) {
  for (const char* field :
       {"steps", "learning_rate", "min_learning_rate", "warmup_steps", "schedule"}) {
    if (path == absl::StrCat("recipe.", field)) return true;
  }
  return false;
}

// Fields of the strategy that say who computes and sends what, and when, while the steps stay what
// they are. `runs`: the job before and after. What neither of them makes use of alters nothing.
bool IsOfTheLayout(absl::string_view field, const std::array<const JobSpec*, 2>& runs) {
  for (const char* free : {"stages", "layers_per_stage", "queue_limit", "in_flight", "nodes"}) {
    if (field == free) return true;
  }
  const auto any = [&](const auto& is) { return std::any_of(runs.begin(), runs.end(), is); };
  // Weights are one step late with overlap alone.
  if (field == "schedule" || field == "look_ahead")
    return !any([](const JobSpec* job) { return job->strategy().schedule() == "overlap"; });
  // Replicas that agree at every step make the steps of one.
  for (const char* outer : {"replicas", "outer_learning_rate", "outer_momentum"}) {
    if (field == outer)
      return !any([](const JobSpec* job) { return job->strategy().local_steps() > 1; });
  }
  return false;
}

// How the run is checked, cut, sent and kept, but not what is trained.
bool IsOfTheManner(absl::string_view path, const std::array<const JobSpec*, 2>& runs) {
  if (absl::ConsumePrefix(&path, "strategy.")) return IsOfTheLayout(path, runs);
  for (const char* section : {"compression.", "checkpoint.", "recovery."}) {
    if (absl::StartsWith(path, section)) return true;
  }
  return path == "recipe.micro_batch" || path == "recipe.recompute" ||
         path == "recipe.eval_every" || path == "recipe.eval_samples" ||
         path == "data.path";  // the text has a row of its own
}

// Every field whose text differs, by its path, in the order of job.proto.
void Differences(const Message& before, const Message& after, const std::string& prefix,
                 std::vector<FieldChange>* out) {
  const auto* type = before.GetDescriptor();
  for (int i = 0; i < type->field_count(); ++i) {
    const FieldDescriptor* field = type->field(i);
    const std::string path = absl::StrCat(prefix, field->name());
    if (field->message_type() != nullptr && !field->is_repeated()) {
      Differences(before.GetReflection()->GetMessage(before, field),
                  after.GetReflection()->GetMessage(after, field), path + ".", out);
      continue;
    }
    FieldChange change;
    change.set_field(path);
    change.set_before(FieldText(before, field));
    change.set_after(FieldText(after, field));
    // The planner chose what the plan has.
    const bool chosen =
        (path == "compression.tied" || path == "compression.gradients") && change.after() == "auto";
    if (change.before() != change.after() && !IsSkipped(path) && !chosen)
      out->push_back(std::move(change));
  }
}

bool SameRate(double a, double b) {
  return std::abs(a - b) <= 1e-12 * std::max(std::abs(a), std::abs(b));
}

// Where a run, or a phase of one, goes on: `step` of one that began after `start`.
struct GoesOn {
  int64_t start = 0;
  int64_t step = 0;
};

// Whether any step from `at` on has another rate. Schedules are a line or a cosine between their
// corners: those, and places between them, tell.
bool RatesDiffer(const RecipeSpec& before, const RecipeSpec& after, const GoesOn& at) {
  constexpr int kPlaces = 64;
  const int64_t step = at.step;
  std::vector<int64_t> steps;
  for (const RecipeSpec* r : {&before, &after}) {
    for (int64_t corner : {at.start + r->warmup_steps(), r->steps()}) {
      for (int64_t near : {corner - 1, corner, corner + 1}) steps.push_back(near);
    }
  }
  for (int i = 0; i <= kPlaces; ++i)
    steps.push_back(step + (after.steps() - 1 - step) / kPlaces * i);
  return std::any_of(steps.begin(), steps.end(), [&](int64_t s) {
    s = std::clamp(s, step, std::max(step, after.steps() - 1));
    return !SameRate(LearningRate(before, at.start, s), LearningRate(after, at.start, s));
  });
}

// Of AdamW's steps where moments begin at zero while the count of steps goes on: how many times too
// large the largest of them is.
double LargestFirstStep(const RecipeSpec& r) {
  constexpr int kSteps = 1000;
  double most = 1, first = 1, second = 1;  // what is left of the zeros
  for (int k = 0; k < kSteps; ++k) {
    first *= r.beta1();
    second *= r.beta2();
    if (second < 1) most = std::max(most, (1 - first) / std::sqrt(1 - second));
  }
  return most;
}

void Explain(const JobSpec& before, const JobSpec& after, FieldChange* change) {
  const RecipeSpec &was = before.recipe(), &is = after.recipe();
  if (change->field() == "recipe.warmup_steps" && was.warmup_steps() == was.steps() / 20 &&
      is.warmup_steps() == is.steps() / 20) {
    change->set_consequence(absl::StrCat(
        "the default, steps / 20, moves with recipe.steps; warmup_steps: ", was.warmup_steps(),
        " keeps it"));
  } else if (change->field() == "recipe.min_learning_rate" &&
             SameRate(was.min_learning_rate(), 0.1 * was.learning_rate()) &&
             SameRate(is.min_learning_rate(), 0.1 * is.learning_rate())) {
    change->set_consequence("the default, a tenth of learning_rate, moves with it");
  } else if (change->field() == "recipe.global_batch") {
    change->set_consequence(absl::StrCat("each step is the mean over ", is.global_batch(),
                                         " samples; the data go on where they were"));
  } else if (change->field() == "strategy.subnetworks" && TrainsSubnetworks(before) &&
             !TrainsSubnetworks(after) && LargestFirstStep(is) > kTooLarge) {
    change->set_consequence(absl::StrFormat(
        "what was dealt begins without moments, and AdamW's count of steps goes on: with "
        "recipe.beta2 %s the first steps are up to %.2g times too large; 0.95 keeps them small",
        ShortNumberText(is.beta2()), LargestFirstStep(is)));
  } else if (change->field() == "strategy.replicas" && change->alters_run()) {
    change->set_consequence(
        "with strategy.local_steps each replica learns from other samples between two agreements");
  }
}

void AddRate(const RecipeSpec& before, const RecipeSpec& after, const GoesOn& at,
             std::vector<FieldChange>* out) {
  const int64_t step = at.step;
  const double was = LearningRate(before, at.start, step), is = LearningRate(after, at.start, step);
  if (SameRate(was, is)) return;
  FieldChange change;
  change.set_field(absl::StrCat("learning rate at step ", step + 1));
  change.set_before(absl::StrFormat("%.4g", was));
  change.set_after(absl::StrFormat("%.4g", is));
  change.set_alters_run(true);
  if (was > 0)
    change.set_consequence(absl::StrFormat("%.3g times what the run had come to%s", is / was,
                                           step >= before.steps() ? " at its end" : ""));
  out->push_back(std::move(change));
}

// The text of `data`, for a row. `contents` 0: not known.
std::string TextWords(const DataSpec& data, uint64_t contents) {
  return absl::StrCat(
      data.path(),
      contents == 0 ? "" : absl::StrCat(" (fingerprint ", FingerprintText(contents), ")"));
}

// Adds the row of the text. The result: it is another one, or may be.
bool AddText(const JobSpec& before, uint64_t was, const JobSpec& after, uint64_t is,
             std::vector<FieldChange>* out) {
  const bool known = was != 0 && is != 0;
  const bool other = known ? was != is : before.data().path() != after.data().path();
  if (!other) return false;
  FieldChange change;
  change.set_field("data");
  change.set_before(TextWords(before.data(), was));
  change.set_after(TextWords(after.data(), is));
  change.set_alters_run(true);
  change.set_consequence(known ? "another text: a new pass begins"
                               : "whether it is the same text is not known: a new pass begins");
  out->push_back(std::move(change));
  return true;
}

// ---- phases ----

std::string PhaseText(const JobSpec& job, int phase) {
  return absl::StrCat(CountText(job.phases(phase).steps(), "step"), " of ",
                      PhaseShapeWords(job, phase));
}

// `made`: the steps that checkpoint `step` has made of that phase, where fewer are asked for.
absl::Status IsDone(int phase, absl::string_view field, absl::string_view is, absl::string_view was,
                    int64_t step, std::optional<int64_t> made) {
  return absl::FailedPreconditionError(absl::StrCat(
      "resume: phases[", phase, "].", field, " is ", is, " and was ", was,
      " in the run that wrote checkpoint ", step,
      made.has_value()
          ? absl::StrCat(", which has made ", CountText(*made, "step"), " of that phase: make it ",
                         *made, " or more, go on from an older checkpoint with --step, ",
                         "or submit a new job")
          : ", which was trained so: put it back, or submit a new job"));
}

// What checkpoint `step` is made of has to be what it was.
absl::Status CheckDone(const JobSpec& before, const JobSpec& job, int64_t step) {
  if (before.phases().empty() != job.phases().empty())
    return absl::FailedPreconditionError(absl::StrCat(
        "resume: the run that wrote checkpoint ", step,
        before.phases().empty() ? " had no phases" : " had phases, and the job has none now",
        ": submit a new job"));
  if (before.phases().empty()) return absl::OkStatus();
  const int last = PhaseOfCheckpoint(before, step);
  if (last >= job.phases_size())
    return absl::FailedPreconditionError(
        absl::StrCat("resume: phases: the job has ", CountText(job.phases_size(), "phase"),
                     " now, and checkpoint ", step, " is of phase ", last + 1, " of ",
                     before.phases_size(), " of the run that wrote it (", PhaseText(before, last),
                     "): put that phase back, go on from an older checkpoint with --step, or ",
                     "submit a new job"));
  for (int p = 0; p <= last; ++p) {
    const PhaseSpec &was = before.phases(p), &is = job.phases(p);
    for (const char* name : {"steps", "layers", "heads", "alpha", "width_groups", "depth_groups"}) {
      const FieldDescriptor* field = PhaseSpec::descriptor()->FindFieldByName(name);
      const std::string then = FieldText(was, field), now = FieldText(is, field);
      const bool length = p == last && field->number() == PhaseSpec::kStepsFieldNumber;
      const int64_t made = step - PhaseStart(before, p);
      if (then == now || (length && is.steps() >= made)) continue;
      return IsDone(p, name, now, then, step, length ? std::optional<int64_t>(made) : std::nullopt);
    }
  }
  return absl::OkStatus();
}

// Of the phase of the checkpoint and those after it. `rates`: its learning rates differ.
void AddPhases(const JobSpec& before, const JobSpec& job, const GoesOn& at, bool rates,
               std::vector<FieldChange>* out) {
  const int from = PhaseOfCheckpoint(before, at.step);
  for (int p = from; p < std::max(before.phases_size(), job.phases_size()); ++p) {
    const std::string path = absl::StrCat("phases[", p, "]");
    if (p >= before.phases_size() || p >= job.phases_size()) {
      FieldChange& change = out->emplace_back();
      change.set_field(path);
      change.set_before(p < before.phases_size() ? PhaseText(before, p) : "none");
      change.set_after(p < job.phases_size() ? PhaseText(job, p) : "none");
      change.set_alters_run(true);
      continue;
    }
    const size_t first = out->size();
    Differences(before.phases(p), job.phases(p), path + ".", out);
    for (size_t i = first; i < out->size(); ++i) {
      // The next phase is made of what this one has learnt by its end.
      const bool ends_elsewhere =
          p + 1 < job.phases_size() && (*out)[i].field() == absl::StrCat(path, ".steps");
      (*out)[i].set_alters_run(p > from || rates || ends_elsewhere);
      if (ends_elsewhere && p == from)
        (*out)[i].set_consequence(absl::StrCat("phase ", p + 2, " begins after step ",
                                               PhaseEnd(job, p), ", not ", PhaseEnd(before, p)));
    }
  }
}

}  // namespace

absl::Status SameModel(const ModelSpec& a, const ModelSpec& b) {
  const auto* type = ModelSpec::descriptor();
  for (int i = 0; i < type->field_count(); ++i) {
    const FieldDescriptor* field = type->field(i);
    std::string was = FieldText(a, field), is = FieldText(b, field);
    if (field->number() == ModelSpec::kNormEpsilonFieldNumber) {
      was = NumberText(NormEpsilon(a));
      is = NumberText(NormEpsilon(b));
    }
    if (field->number() == ModelSpec::kTiedFieldNumber && IsTied(a) == IsTied(b)) continue;
    if (was == is || field->number() == ModelSpec::kInitFromFieldNumber) continue;
    return absl::FailedPreconditionError(absl::StrCat("resume: model.", field->name(), " is ", is,
                                                      " and the checkpoint's is ", was,
                                                      ": a checkpoint goes on with its own model"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Resume> CompareRuns(const CheckpointState& state, const JobSpec& ran,
                                   const JobSpec& all, const DataNow& now) {
  JobSpec before = state.job.has_value() ? *state.job : ran;
  FillDefaults(&before);  // of fields that the version which ran it did not have
  RETURN_IF_ERROR(CheckDone(before, all, state.step));
  const int phase = PhaseOfCheckpoint(all, state.step);
  const bool phased = !all.phases().empty();
  const JobSpec job = PhaseJob(all, phase);
  const GoesOn at{PhaseStart(all, phase), state.step};
  const bool goes_on = !BeginsPhase(all, state.step);  // in the schedule of that phase
  Resume out;
  Differences(before, job, "", &out.changes);
  const auto of_phases = [&](const FieldChange& c) { return phased && IsOfTheRate(c.field()); };
  out.changes.erase(std::remove_if(out.changes.begin(), out.changes.end(), of_phases),
                    out.changes.end());
  const bool rates = goes_on && RatesDiffer(before.recipe(), job.recipe(), at);
  bool other_samples = false;
  for (FieldChange& change : out.changes) {
    if (change.field() == "seed" || change.field() == "data.format" ||
        change.field() == "data.validation_share") {
      other_samples = true;
      change.set_consequence("other samples, or in another order: a new pass begins");
    }
    change.set_alters_run(
        IsOfTheRate(change.field()) ? rates : !IsOfTheManner(change.field(), {&before, &job}));
    Explain(before, job, &change);
  }
  if (phased) AddPhases(before, all, at, rates, &out.changes);
  if (goes_on) AddRate(before.recipe(), job.recipe(), at, &out.changes);
  const bool other_text = AddText(before, state.corpus_contents, job, now.contents, &out.changes);
  const int64_t batch = before.recipe().global_batch();
  if (state.position.has_value()) {
    out.data = state.position;
  } else if (now.train_samples > 0 || other_samples || other_text) {  // of an older version
    const int64_t samples = other_samples || other_text ? 0 : now.train_samples;
    out.data = Advance(DataPosition(), samples, batch, state.step);
  } else if (batch != job.recipe().global_batch()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "resume: checkpoint ", state.step, " is of a version that kept no position in the data, ",
        "and no daemon lists them now, so where another batch would go on can't be told: go on ",
        "with recipe.global_batch ", batch, "; the next checkpoint will hold the position"));
  }
  if (out.data.has_value() && (other_samples || other_text)) out.data = NewPass(*out.data);
  return out;
}

absl::Status CheckAccepted(const std::vector<FieldChange>& changes, int64_t step) {
  std::vector<std::string> rows;
  for (const FieldChange& c : changes) {
    if (!c.alters_run()) continue;
    rows.push_back(
        absl::StrCat("  ", c.field(), ": ", c.before(), " -> ", c.after(),
                     c.consequence().empty() ? "" : absl::StrCat(" (", c.consequence(), ")")));
  }
  if (rows.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "resume: this would be another training than the one that wrote checkpoint ", step, ":\n",
      absl::StrJoin(rows, "\n"),
      "\nPut these fields back to go on as begun, or add --accept-changes to train on so"));
}

}  // namespace isthmus::coordinator
