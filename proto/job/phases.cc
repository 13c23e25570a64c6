#include "proto/job/phases.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "base/number_text.h"
#include "proto/job/field_error.h"
#include "proto/job/job_defaults.h"
#include "proto/job/job_limits.h"

namespace isthmus {
namespace {

constexpr char kStrided[] = "strided", kAdjacent[] = "adjacent";

bool SameShape(const PhaseSpec& a, const PhaseSpec& b) {
  return a.layers() == b.layers() && a.heads() == b.heads();
}

// Not smaller anywhere, and larger somewhere.
bool Grows(const PhaseSpec& before, const PhaseSpec& phase) {
  return phase.layers() >= before.layers() && phase.heads() >= before.heads() &&
         !SameShape(before, phase);
}
bool Shrinks(const PhaseSpec& before, const PhaseSpec& phase) { return Grows(phase, before); }

// The last phase before `phase` of its shape; -1: none.
int EarlierOfShape(const JobSpec& job, int phase) {
  for (int p = phase - 1; p >= 0; --p) {
    if (SameShape(job.phases(p), job.phases(phase))) return p;
  }
  return -1;
}

// For a sum: what is out of range is refused of the phase itself.
int64_t CountedSteps(const PhaseSpec& phase) {
  return std::clamp<int64_t>(phase.steps(), 0, kMaxSteps + 1);
}

// Of a phase; a job that was not checked yet may have any numbers.
int64_t WidthOf(const ModelSpec& model, const PhaseSpec& phase) {
  return int64_t{model.hidden()} / std::max(1, model.heads()) * phase.heads();
}

int Stages(const StrategySpec& s) {
  return s.stages() != 0 ? s.stages() : s.nodes_size() / std::max(1, s.replicas());
}

// Of a phase of `most` layers: `smaller` than the job's largest one has as many stages as pay, or
// those of the named daemons that it has layers for.
void CutStages(int most, bool smaller, StrategySpec* s) {
  if (smaller && s->nodes().empty()) s->set_stages(0);
  const int stages = Stages(*s);
  if (stages <= most) return;
  if (s->stages() != 0) s->set_stages(most);
  if (s->nodes().empty() || s->nodes_size() % stages != 0) return;
  const std::vector<std::string> nodes(s->nodes().begin(), s->nodes().end());
  s->clear_nodes();
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (static_cast<int>(i) % stages < most) s->add_nodes(nodes[i]);
  }
}

std::string FieldOf(int phase, absl::string_view field) {
  return absl::StrCat("phases[", phase, "]", field.empty() ? "" : ".", field);
}

absl::Status Wrong(int phase, absl::string_view field, absl::string_view what) {
  return FieldError(FieldOf(phase, field), what);
}

class Checker {
 public:
  explicit Checker(const JobSpec& job) : job_(job) {}

  std::vector<absl::Status> All() {
    if (job_.phases_size() > kMaxPhases) {
      errors_.push_back(FieldError("phases", absl::StrCat(job_.phases_size(), " of them; at most ",
                                                          kMaxPhases, " are allowed")));
      return std::move(errors_);
    }
    CheckJob();
    for (p_ = 0; p_ < job_.phases_size(); ++p_) CheckFields();
    if (!errors_.empty() || of_job_) return std::move(errors_);
    for (p_ = 1; p_ < job_.phases_size(); ++p_) CheckTransition();
    CheckLayersPerStage();
    if (!errors_.empty()) return std::move(errors_);
    for (p_ = 0; p_ < job_.phases_size(); ++p_) CheckPhaseJob();
    return std::move(errors_);
  }

 private:
  const PhaseSpec& phase() const { return job_.phases(p_); }
  void Add(absl::string_view field, absl::string_view what) {
    errors_.push_back(Wrong(p_, field, what));
  }
  template <typename T>
  void Refuse(absl::string_view field, const T& value, absl::string_view allowed) {
    errors_.push_back(NotAllowed(FieldOf(p_, field), value, allowed));
  }
  void AddJob(absl::string_view field, absl::string_view what) {
    errors_.push_back(FieldError(field, what));
  }

  // A whole number is named as it was written, also where no double holds it.
  template <typename T>
  static std::string Text(T value) {
    if constexpr (std::is_integral_v<T>) return absl::StrCat(value);
    return ShortNumberText(static_cast<double>(value));
  }

  template <typename T>
  bool Range(absl::string_view field, T value, double low, double high) {
    const auto number = static_cast<double>(value);
    if (std::isfinite(number) && number >= low && number <= high) return true;
    Refuse(field, Text(value),
           absl::StrCat("from ", ShortNumberText(low), " to ", ShortNumberText(high)));
    return false;
  }
  // What is wrong of a value that a phase has of the job's is said there, once.
  template <typename T>
  bool OwnRange(absl::string_view field, T value, T of_job, double low, double high) {
    if (value != of_job) return Range(field, value, low, high);
    const auto number = static_cast<double>(value);
    const bool good = std::isfinite(number) && number >= low && number <= high;
    of_job_ = of_job_ || !good;
    return good;
  }
  void OneOf(absl::string_view field, const std::string& value,
             std::initializer_list<const char*> allowed) {
    std::string list;
    for (const char* a : allowed) {
      if (value == a) return;
      absl::StrAppend(&list, list.empty() ? "" : ", ", "'", a, "'");
    }
    Refuse(field, value, list);
  }

  void CheckJob() {
    int64_t sum = 0;
    for (const PhaseSpec& phase : job_.phases()) sum += CountedSteps(phase);
    const RecipeSpec& r = job_.recipe();
    const auto& all = job_.phases();
    const bool each = std::all_of(all.begin(), all.end(), [](const PhaseSpec& phase) {
      return phase.steps() >= 1 && phase.steps() <= kMaxSteps;
    });
    if (each && sum > kMaxSteps)
      AddJob("phases",
             absl::StrCat("their steps sum to ", sum, "; at most ", kMaxSteps, " are allowed"));
    if (r.steps() != sum)
      AddJob("recipe.steps", absl::StrCat(r.steps(), ", and the steps of the phases sum to ", sum,
                                          ": leave it out"));
    for (const auto& [given, field] :
         {std::make_pair(r.has_warmup_steps(), "warmup_steps"),
          std::make_pair(r.has_min_learning_rate(), "min_learning_rate")}) {
      if (given)
        AddJob(absl::StrCat("recipe.", field),
               absl::StrCat("with phases each has its own schedule: give ", field, " in phases"));
    }
    if (r.optimizer() != kAdamW)
      errors_.push_back(ValueError(
          "recipe.optimizer",
          absl::StrCat("'", r.optimizer(),
                       "' does not go with phases, each of which begins with new moments; "),
          absl::StrCat("'", kAdamW, "'")));
    if (!IsTied(job_.model()))
      AddJob("model.tied",
             "false does not go with phases: only a model whose head shares the token "
             "embedding's weights is made smaller and larger");
  }

  void CheckFields() {
    const PhaseSpec& s = phase();
    const ModelSpec& m = job_.model();
    const RecipeSpec& r = job_.recipe();
    const bool steps_ok = Range("steps", s.steps(), 1, kMaxSteps);
    OwnRange("layers", s.layers(), m.layers(), 1, 1000);
    OwnRange("heads", s.heads(), m.heads(), 1, kMaxHeads);
    if (s.has_alpha()) Range("alpha", s.alpha(), 0, 1);
    if (OwnRange("learning_rate", s.learning_rate(), r.learning_rate(), 1e-12, 10))
      Range("min_learning_rate", s.min_learning_rate(), 0, s.learning_rate());
    if (steps_ok) Range("warmup_steps", s.warmup_steps(), 0, static_cast<double>(s.steps()));
    if (s.schedule() != r.schedule())
      OneOf("schedule", s.schedule(), {"cosine", "linear", "constant"});
    const bool first = p_ == 0;
    for (const auto& [given, field] : {std::make_pair(s.has_alpha(), "alpha"),
                                       std::make_pair(s.has_width_groups(), "width_groups"),
                                       std::make_pair(s.has_depth_groups(), "depth_groups")}) {
      if (first && given)
        Add(field, "no phase goes before the first one, so nothing is made of it; leave it out");
    }
    if (first) return;
    OneOf("width_groups", s.width_groups(), {kStrided, kAdjacent});
    OneOf("depth_groups", s.depth_groups(), {kStrided, kAdjacent});
  }

  void CheckDivides(absl::string_view field, int before, int now) {
    const bool smaller = now < before;
    if (smaller ? before % now == 0 : now % before == 0) return;
    Refuse(field, now,
           absl::StrCat(smaller ? "a divisor of " : "a multiple of ", before,
                        ", as the phase before has"));
  }

  void CheckTransition() {
    const PhaseSpec &before = job_.phases(p_ - 1), &now = phase();
    CheckDivides("layers", before.layers(), now.layers());
    CheckDivides("heads", before.heads(), now.heads());
    if (SameShape(before, now)) {
      Add("", absl::StrCat("it has the shape of the phase before (", PhaseShapeWords(job_, p_),
                           "): make one phase of both"));
    } else if (!Grows(before, now) && !Shrinks(before, now)) {
      Add("",
          absl::StrCat("it is deeper and narrower, or wider and flatter, than the phase before ",
                       "(", PhaseShapeWords(job_, p_), " after ", PhaseShapeWords(job_, p_ - 1),
                       "): a phase is smaller or larger in both"));
    }
    if (!now.has_alpha()) return;
    if (Shrinks(before, now)) {
      Add("alpha", "the phase before is no smaller one, so nothing is mixed; leave it out");
    } else if (now.alpha() < 1 && EarlierOfShape(job_, p_) < 0) {
      Refuse("alpha", ShortNumberText(now.alpha()),
             "1: no phase before has this shape, so there is nothing to mix with");
    }
  }

  void CheckLayersPerStage() {
    const StrategySpec& s = job_.strategy();
    if (s.layers_per_stage().empty()) return;
    for (int p = 0; p < job_.phases_size(); ++p) {
      if (job_.phases(p).layers() == job_.model().layers()) continue;
      AddJob("strategy.layers_per_stage",
             absl::StrCat("is a cut of ", CountText(job_.model().layers(), "layer"),
                          ", and phases[", p, "] has ", job_.phases(p).layers(),
                          ": leave it out, or give strategy.stages"));
      return;
    }
  }

  // Whatever else the phase's shape or recipe does not go with.
  void CheckPhaseJob() {
    JobSpec whole = job_;
    whole.clear_phases();
    if (!JobErrors(whole).empty()) return;  // said of the job
    const JobSpec one = PhaseJob(job_, p_);
    for (const absl::Status& error : JobErrors(one)) Add("", error.message());
  }

  const JobSpec& job_;
  int p_ = 0;
  bool of_job_ = false;  // something is wrong that is said of model.* or recipe.*
  std::vector<absl::Status> errors_;
};

}  // namespace

int64_t PhaseStart(const JobSpec& job, int phase) {
  int64_t steps = 0;
  for (int p = 0; p < phase && p < job.phases_size(); ++p) steps += CountedSteps(job.phases(p));
  return steps;
}

int64_t PhaseEnd(const JobSpec& job, int phase) {
  return job.phases().empty() ? job.recipe().steps() : PhaseStart(job, phase + 1);
}

int PhaseAfter(const JobSpec& job, int64_t step) {
  int phase = 0;
  while (phase + 1 < job.phases_size() && step >= PhaseEnd(job, phase)) ++phase;
  return phase;
}

int PhaseOfCheckpoint(const JobSpec& job, int64_t step) {
  return PhaseAfter(job, std::max<int64_t>(0, step - 1));
}

bool BeginsPhase(const JobSpec& job, int64_t step) {
  const int phase = PhaseAfter(job, step);
  return phase > 0 && step == PhaseStart(job, phase);
}

JobSpec PhaseJob(const JobSpec& job, int phase) {
  if (job.phases().empty()) return job;
  const PhaseSpec& spec = job.phases(phase);
  JobSpec one = job;
  one.clear_phases();
  ModelSpec* m = one.mutable_model();
  m->set_hidden(static_cast<int>(std::clamp<int64_t>(WidthOf(*m, spec), 0, kMaxHidden + 1)));
  m->set_heads(spec.heads());
  m->set_layers(spec.layers());
  RecipeSpec* r = one.mutable_recipe();
  r->set_steps(PhaseEnd(job, phase));
  r->set_learning_rate(spec.learning_rate());
  r->set_min_learning_rate(spec.min_learning_rate());
  r->set_warmup_steps(spec.warmup_steps());
  r->set_schedule(spec.schedule());
  const auto& all = job.phases();
  const bool smaller = std::any_of(all.begin(), all.end(),
                                   [&](const PhaseSpec& other) { return Shrinks(other, spec); });
  CutStages(spec.layers(), smaller, one.mutable_strategy());
  return one;
}

PhaseTransition TransitionInto(const JobSpec& job, int phase) {
  PhaseTransition t;
  if (Shrinks(job.phases(phase - 1), job.phases(phase))) return t;
  t.kind = PhaseTransition::kDecoalesce;
  t.alpha = job.phases(phase).alpha();
  if (t.alpha < 1) t.mixed = EarlierOfShape(job, phase);
  return t;
}

std::vector<int64_t> PhaseEndsNeeded(const JobSpec& job, int64_t oldest, int64_t newest) {
  std::vector<int64_t> ends;
  for (int p = 1; p < job.phases_size(); ++p) {
    if (PhaseStart(job, p) < oldest) continue;
    const PhaseTransition t = TransitionInto(job, p);
    for (int from : {p - 1, t.mixed}) {
      if (from >= 0 && PhaseEnd(job, from) <= newest) ends.push_back(PhaseEnd(job, from));
    }
  }
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  return ends;
}

std::string PhaseShapeWords(const JobSpec& job, int phase) {
  const PhaseSpec& spec = job.phases(phase);
  return absl::StrCat(CountText(spec.layers(), "layer"), " x ", WidthOf(job.model(), spec));
}

void FillPhaseDefaults(JobSpec* job) {
  int64_t sum = 0;
  for (int p = 0; p < job->phases_size(); ++p) {
    PhaseSpec* s = job->mutable_phases(p);
    sum += CountedSteps(*s);
    if (!s->has_layers()) s->set_layers(job->model().layers());
    if (!s->has_heads()) s->set_heads(job->model().heads());
    if (!s->has_learning_rate()) s->set_learning_rate(job->recipe().learning_rate());
    if (!s->has_min_learning_rate()) s->set_min_learning_rate(0.1 * s->learning_rate());
    if (!s->has_warmup_steps()) s->set_warmup_steps(s->steps() / 20);
    if (!s->has_schedule()) s->set_schedule(job->recipe().schedule());
    if (p == 0) continue;
    const int earlier = EarlierOfShape(*job, p);
    if (!s->has_alpha() && Grows(job->phases(p - 1), *s))
      s->set_alpha(earlier < 0 ? 1 : kPhaseAlpha);
    // What grows back is undone as it was made.
    const PhaseSpec* made = earlier >= 0 ? &job->phases(earlier + 1) : nullptr;
    const bool undone = made != nullptr && made != s;
    if (!s->has_width_groups()) s->set_width_groups(undone ? made->width_groups() : kStrided);
    if (!s->has_depth_groups()) s->set_depth_groups(undone ? made->depth_groups() : kAdjacent);
  }
  if (job->recipe().steps() == 0) job->mutable_recipe()->set_steps(sum);
}

std::vector<absl::Status> PhaseErrors(const JobSpec& job) {
  return job.phases().empty() ? std::vector<absl::Status>() : Checker(job).All();
}

}  // namespace isthmus
