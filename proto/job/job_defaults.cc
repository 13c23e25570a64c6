#include "proto/job/job_defaults.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/number_text.h"
#include "base/status.h"
#include "base/suggest.h"
#include "proto/codec/codec_pair.h"
#include "proto/codec/codec_size.h"
#include "proto/codec/codec_text.h"
#include "proto/data/data_files.h"
#include "proto/job/field_error.h"
#include "proto/job/job_limits.h"
#include "proto/job/job_names.h"
#include "proto/job/mlp_job.h"
#include "proto/job/phases.h"
#include "proto/job/subnetworks.h"

namespace isthmus {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;
constexpr double kNormEpsilon = 1e-5;

class Errors {
 public:
  explicit Errors(std::vector<absl::Status>* list) : list_(list) {}
  // True if `status` is OK.
  bool Add(absl::Status status) {
    if (status.ok()) return true;
    list_->push_back(std::move(status));
    return false;
  }
  template <typename T>
  void Refuse(absl::string_view field, const T& value, absl::string_view allowed) {
    list_->push_back(NotAllowed(field, value, allowed));
  }

 private:
  std::vector<absl::Status>* const list_;
};

// A whole number is named as it was written, also where no double holds it.
template <typename T>
absl::Status CheckRange(absl::string_view field, T value, double low, double high) {
  const auto number = static_cast<double>(value);
  if (std::isfinite(number) && number >= low && number <= high) return absl::OkStatus();
  const std::string allowed =
      absl::StrCat("from ", ShortNumberText(low), " to ", ShortNumberText(high));
  if constexpr (std::is_integral_v<T>) return NotAllowed(field, value, allowed);
  return NotAllowed(field, ShortNumberText(number), allowed);
}

absl::Status CheckOneOf(absl::string_view field, const std::string& value,
                        std::initializer_list<const char*> allowed) {
  std::string list;
  for (const char* a : allowed) {
    if (value == a) return absl::OkStatus();
    absl::StrAppend(&list, list.empty() ? "" : ", ", "'", a, "'");
  }
  const std::string meant = DidYouMean(value, {allowed.begin(), allowed.end()});
  return NotAllowed(field, value, absl::StrCat(list, meant.empty() ? "" : "; ", meant));
}

absl::Status CheckCodec(absl::string_view field, const std::string& text, bool may_be_auto) {
  if (may_be_auto && text == "auto") return absl::OkStatus();
  absl::StatusOr<CodecSpec> spec = ParseCodec(text);
  if (spec.ok()) return absl::OkStatus();
  const bool is_word = text.find('(') == std::string::npos;  // it may have been meant for auto
  const std::string meant = DidYouMean(text, {"auto"});
  const std::string or_auto = absl::StrCat("; or auto", meant.empty() ? "" : "; ", meant);
  return FieldError(field,
                    absl::StrCat(spec.status().message(), may_be_auto && is_word ? or_auto : ""));
}

// `format_known`: of the data; the default vocabulary follows from it.
void ValidateModel(const ModelSpec& m, bool format_known, Errors* errors) {
  errors->Add(CheckOneOf("model.family", m.family(), {kGpt2, kMlp}));
  errors->Add(CheckRange("model.layers", m.layers(), 1, 1000));
  errors->Add(CheckRange("model.hidden", m.hidden(), 1, kMaxHidden));
  if (IsMlp(m)) return;  // FamilyErrors has the rest
  const bool heads_ok = errors->Add(CheckRange("model.heads", m.heads(), 1, kMaxHeads));
  errors->Add(CheckRange("model.context", m.context(), 1, 65536));
  if (format_known || m.has_vocabulary())
    errors->Add(CheckRange("model.vocabulary", m.vocabulary(), 2, kMaxVocabulary));
  errors->Add(CheckRange("model.norm_epsilon", NormEpsilon(m), kMinNormEpsilon, kMaxNormEpsilon));
  if (heads_ok && m.hidden() % m.heads() != 0) {
    errors->Refuse("model.hidden", m.hidden(),
                   absl::StrCat("a multiple of model.heads (", m.heads(), ")"));
  }
}

// `phased`: its steps are those of the phases, and are looked at there.
void ValidateRecipe(const RecipeSpec& r, bool phased, Errors* errors) {
  const bool steps_ok = phased || errors->Add(CheckRange("recipe.steps", r.steps(), 1, kMaxSteps));
  const bool batch_ok = errors->Add(CheckRange("recipe.global_batch", r.global_batch(), 1, 65536));
  if (batch_ok) {
    errors->Add(CheckRange("recipe.micro_batch", r.micro_batch(), 1, r.global_batch()));
  }
  if (errors->Add(CheckRange("recipe.learning_rate", r.learning_rate(), 1e-12, 10))) {
    errors->Add(
        CheckRange("recipe.min_learning_rate", r.min_learning_rate(), 0, r.learning_rate()));
  }
  if (steps_ok && !phased)
    errors->Add(CheckRange("recipe.warmup_steps", r.warmup_steps(), 0, r.steps()));
  errors->Add(CheckOneOf("recipe.schedule", r.schedule(), {"cosine", "linear", "constant"}));
  errors->Add(CheckRange("recipe.beta1", r.beta1(), 0, 0.999999));
  errors->Add(CheckRange("recipe.beta2", r.beta2(), 0, 0.9999999));
  errors->Add(CheckRange("recipe.epsilon", r.epsilon(), 1e-16, 1));
  errors->Add(CheckRange("recipe.weight_decay", r.weight_decay(), 0, 10));
  errors->Add(CheckRange("recipe.clip_norm", r.clip_norm(), 0, 1e9));
  errors->Add(CheckRange("recipe.eval_every", r.eval_every(), 0, 1e9));
  errors->Add(CheckRange("recipe.eval_samples", r.eval_samples(), 0, 1e6));
  errors->Add(CheckOneOf("recipe.precision", r.precision(), {"fp32", "tf32", "bf16"}));
}

void ValidateFragments(const StrategySpec& s, int layers, Errors* errors) {
  const int most = static_cast<int>(std::min<int64_t>(std::max(1, layers), s.local_steps()));
  if (!errors->Add(CheckRange("strategy.fragments", s.fragments(), 1, kMaxLocalSteps))) return;
  if (s.local_steps() < 1) return;  // said of itself
  if (s.fragments() > most) {
    errors->Refuse("strategy.fragments", s.fragments(),
                   absl::StrCat("at most ", most,
                                ": each has a layer (model.layers) and a step "
                                "of its own (strategy.local_steps)"));
    return;
  }
  const int64_t apart = s.local_steps() / s.fragments();
  if (s.fragment_delay() < 0 || s.fragment_delay() >= apart) {
    errors->Refuse("strategy.fragment_delay", s.fragment_delay(),
                   absl::StrCat(RangeText(0, apart - 1),
                                ", less than strategy.local_steps / "
                                "strategy.fragments: one fragment has arrived before the next "
                                "one is sent"));
  }
  if (s.fragment_delay() == 0 && s.fragment_mix() != 0) {
    errors->Refuse("strategy.fragment_mix", s.fragment_mix(),
                   "0 without strategy.fragment_delay: a replica has learnt nothing since what "
                   "has arrived was sent");
  }
  errors->Add(CheckRange("strategy.fragment_mix", s.fragment_mix(), 0, 0.99));
}

// Replicas reduce its momentum at every step.
void ValidateOptimizer(const RecipeSpec& r, const StrategySpec& s, Errors* errors) {
  if (!errors->Add(CheckOneOf("recipe.optimizer", r.optimizer(), {kAdamW, kQuantizedAdam}))) return;
  if (r.optimizer() == kAdamW) {
    if (r.optimizer_warmup() != 0)
      errors->Add(FieldError("recipe.optimizer_warmup",
                             "adamw has none; leave it out, or set recipe.optimizer: "
                             "quantized_adam"));
    return;
  }
  if (r.steps() >= 1)
    errors->Add(CheckRange("recipe.optimizer_warmup", r.optimizer_warmup(), 1, r.steps()));
  if (!(r.beta1() * r.beta1() < r.beta2())) {
    errors->Refuse("recipe.beta1", r.beta1(),
                   "of a square less than recipe.beta2 with recipe.optimizer quantized_adam: "
                   "otherwise the step of an element has no bound");
  }
  if (s.replicas() < 2) {
    errors->Refuse("strategy.replicas", s.replicas(),
                   "2 or more with recipe.optimizer quantized_adam: what it saves is in what "
                   "replicas exchange; one chain of stages gains nothing by it and takes adamw");
  }
  if (s.local_steps() > 1) {
    errors->Refuse("strategy.local_steps", s.local_steps(),
                   "1 with recipe.optimizer quantized_adam: it reduces the momentum at every step, "
                   "and replicas that seldom meet have nothing to exchange there");
  }
}

void ValidateStrategy(const StrategySpec& s, int layers, Errors* errors) {
  errors->Add(CheckRange("strategy.stages", s.stages(), 0, 256));
  errors->Add(CheckOneOf("strategy.schedule", s.schedule(), {"1f1b", "gpipe", "overlap"}));
  if (s.schedule() == "overlap" && s.local_steps() > 1) {
    errors->Refuse("strategy.local_steps", s.local_steps(),
                   "1 with strategy.schedule overlap: a replica that meets the others seldom has "
                   "nothing to wait for at the end of a step");
  }
  errors->Add(CheckRange("strategy.queue_limit", s.queue_limit(), 1, 1024));
  errors->Add(CheckRange("strategy.in_flight", s.in_flight(), 0, 65536));
  errors->Add(CheckRange("strategy.replicas", s.replicas(), 0, 256));
  errors->Add(CheckRange("strategy.local_steps", s.local_steps(), 1, kMaxLocalSteps));
  errors->Add(CheckRange("strategy.outer_learning_rate", s.outer_learning_rate(), 1e-6, 10));
  errors->Add(CheckRange("strategy.outer_momentum", s.outer_momentum(), 0, 0.999));
  ValidateFragments(s, layers, errors);
  if (layers < 1) return;  // said of model.layers
  if (s.stages() > layers) {
    errors->Refuse(
        "strategy.stages", s.stages(),
        absl::StrCat("at most model.layers (", layers, "): a stage holds at least one layer"));
  }
  if (s.layers_per_stage().empty()) return;
  int64_t sum = 0;
  for (int n : s.layers_per_stage()) {
    errors->Add(CheckRange("strategy.layers_per_stage", n, 1, layers));
    sum += n;
  }
  if (sum != layers) {
    errors->Refuse("strategy.layers_per_stage", absl::StrCat("sum ", sum),
                   absl::StrCat("model.layers (", layers, ")"));
  }
  if (s.stages() != 0 && s.stages() != s.layers_per_stage_size()) {
    errors->Refuse(
        "strategy.stages", s.stages(),
        absl::StrCat("the length of strategy.layers_per_stage (", s.layers_per_stage_size(), ")"));
  }
}

// A kept is the backward pass's.
bool CheckNoKept(const std::string& field, const std::string& text, Errors* errors) {
  if (!NeedsIndices(ParseCodec(text).value())) return true;
  errors->Refuse(field, text,
                 absl::StrCat("another codec: kept is a backward codec, for a boundary whose "
                              "forward codec is ",
                              IndicesNeeded()));
  return false;
}

// An autoencoder is the forward pass's, and no wider than the model.
void CheckForward(const std::string& field, const std::string& text, int hidden, Errors* errors) {
  if (!errors->Add(CheckCodec(field, text, true)) || text == "auto") return;
  if (!CheckNoKept(field, text, errors)) return;
  const CodecSpec spec = ParseCodec(text).value();
  if (spec.kind() == CodecSpec::AUTOENCODER && spec.channels() > hidden) {
    errors->Refuse(field, text,
                   absl::StrCat("an autoencoder of at most model.hidden (", hidden, ") channels"));
  }
}

bool CheckNoAutoencoder(const std::string& field, const std::string& text, Errors* errors) {
  if (ParseCodec(text).value().kind() != CodecSpec::AUTOENCODER) return true;
  errors->Refuse(field, text,
                 "another codec: an autoencoder is named forward alone, and what crosses its "
                 "boundary has its channels both ways and in validation passes");
  return false;
}

// `when`: compression.backward_when.
void CheckBackward(const std::string& field, const std::string& text, const std::string& when,
                   Errors* errors) {
  if (!errors->Add(CheckCodec(field, text, true)) || text == "auto") return;
  if (!CheckNoAutoencoder(field, text, errors)) return;
  if (HasBuffers(ParseCodec(text).value())) {
    errors->Refuse(field, text,
                   "a codec without delta: a gradient has no earlier version of itself to differ "
                   "from (AQ-SGD, section 3)");
    return;
  }
  if (when != "epilogue") return;
  const absl::Status may = CheckEpilogue(ParseCodec(text).value());
  if (!may.ok())
    errors->Add(FieldError(
        field,
        absl::StrCat(may.message(), "; use another codec, or compression.backward_when all")));
}

// What ranks reduce goes to several of them, and no element has an earlier version of itself.
void CheckReduced(const std::string& field, const std::string& text, Errors* errors) {
  if (!errors->Add(CheckCodec(field, text, true)) || text == "auto") return;
  if (GroupsTake(ParseCodec(text).value())) return;
  errors->Refuse(field, text,
                 "a codec without delta, predict, kept or autoencoder, such as none, bf16, "
                 "ef(quant(8, token)), ef(lowrank(4)) (without zstd) or ef(topk(0.01))");
}

// One side of a boundary: what its codec is, and the field that says so.
struct Side {
  std::string field, text;
};

// A kept backward needs indices of the forward codec.
void CheckPair(const Side& forward, const Side& backward, Errors* errors) {
  if (backward.text == "auto") return;
  const absl::StatusOr<CodecSpec> down = ParseCodec(backward.text);
  if (!down.ok() || !NeedsIndices(*down)) return;  // said of the field, or no concern of this
  const absl::StatusOr<CodecSpec> up =
      forward.text == "auto" ? CodecSpec() : ParseCodec(forward.text);
  if (!up.ok() || NeedsIndices(*up) || KeepsIndices(*up)) return;
  errors->Add(FieldError(
      backward.field,
      absl::StrCat("'", backward.text, "' sends gradients at the indices that the forward ",
                   "codec kept, and ", forward.field, " is '", forward.text,
                   "', which keeps none; name ", IndicesNeeded(),
                   " there, or another codec here")));
}

// Of every boundary: of those with an exception, and of the others together.
void CheckPairs(const CompressionSpec& c, int stages, Errors* errors) {
  const Side forward{"compression.forward", c.forward()};
  const Side backward{"compression.backward", c.backward()};
  std::map<int, std::pair<Side, Side>> exceptions;
  for (int i = 0; i < c.boundaries_size(); ++i) {
    const BoundaryCodec& b = c.boundaries(i);
    const std::string path = absl::StrCat("compression.boundaries[", i, "].");
    auto& [up, down] =
        exceptions.emplace(b.boundary(), std::make_pair(forward, backward)).first->second;
    if (b.has_forward()) up = {path + "forward", b.forward()};
    if (b.has_backward()) down = {path + "backward", b.backward()};
  }
  int64_t excepted = 0;
  for (const auto& [boundary, sides] : exceptions)
    excepted += boundary >= 0 && boundary < stages - 1;
  const bool all_excepted = stages > 1 && excepted == stages - 1;
  if (!all_excepted) CheckPair(forward, backward, errors);
  for (const auto& [boundary, sides] : exceptions) {
    const bool the_same =
        sides.first.field == forward.field && sides.second.field == backward.field;
    if (!the_same || all_excepted) CheckPair(sides.first, sides.second, errors);
  }
}

void ValidateCompression(const CompressionSpec& c, int hidden, int stages, Errors* errors) {
  CheckForward("compression.forward", c.forward(), hidden, errors);
  errors->Add(
      CheckOneOf("compression.backward_when", c.backward_when(), {"all", "epilogue", "auto"}));
  CheckBackward("compression.backward", c.backward(), c.backward_when(), errors);
  const bool evaluation_ok =
      errors->Add(CheckCodec("compression.evaluation", c.evaluation(), false));
  CheckReduced("compression.gradients", c.gradients(), errors);
  CheckReduced("compression.tied", c.tied(), errors);
  errors->Add(CheckRange("compression.min_bits", c.min_bits(), 2, 8));
  if (c.has_gradient_stages())
    errors->Add(CheckRange("compression.gradient_stages", c.gradient_stages(), 0, 256));
  if (evaluation_ok) CheckNoAutoencoder("compression.evaluation", c.evaluation(), errors);
  if (evaluation_ok) CheckNoKept("compression.evaluation", c.evaluation(), errors);
  if (evaluation_ok && IsStateful(ParseCodec(c.evaluation()).value()))
    errors->Refuse("compression.evaluation", c.evaluation(), "a codec without state");
  std::map<int, int> named;  // boundary -> entry
  for (int i = 0; i < c.boundaries_size(); ++i) {
    const BoundaryCodec& b = c.boundaries(i);
    const std::string path = absl::StrCat("compression.boundaries[", i, "].");
    if (const auto [first, is_new] = named.emplace(b.boundary(), i); !is_new) {
      errors->Add(FieldError(
          path + "boundary",
          absl::StrCat(
              "boundary ", b.boundary(), " has an entry already, ", "compression.boundaries[",
              first->second,
              "]: put what is meant for it into one entry, and name another boundary here")));
    }
    errors->Add(CheckRange(path + "boundary", b.boundary(), 0, 255));
    if (b.has_forward()) CheckForward(path + "forward", b.forward(), hidden, errors);
    if (b.has_backward()) CheckBackward(path + "backward", b.backward(), c.backward_when(), errors);
  }
  CheckPairs(c, stages, errors);
  errors->Add(CheckRange("compression.buffer_memory_bytes", c.buffer_memory_bytes(), 0, 1e15));
  errors->Add(CheckRange("compression.buffer_disk_bytes", c.buffer_disk_bytes(), 0, 1e15));
}

}  // namespace

#define DEFAULT(message, field, value) \
  if (!(message)->has_##field()) (message)->set_##field(value)
static void FillRecoveryDefaults(CheckpointSpec* checkpoint, RecoverySpec* recovery) {
  DEFAULT(checkpoint, every, 100);
  DEFAULT(checkpoint, keep, 3);
  DEFAULT(checkpoint, local, kPacedLocal);
  DEFAULT(checkpoint, buddies, 0);
  DEFAULT(recovery, automatic, true);
  DEFAULT(recovery, attempts, 5);
  DEFAULT(recovery, follow, true);
}

void FillDefaults(JobSpec* job) {
  DEFAULT(job, seed, 1);
  DataSpec* d = job->mutable_data();
  DEFAULT(d, validation_share, 0.05);
  ModelSpec* m = job->mutable_model();
  DEFAULT(m, family, kGpt2);
  const bool mlp = IsMlp(*m);
  DEFAULT(d, format, mlp ? "rows" : absl::EndsWith(d->path(), ".bin") ? "tokens" : "bytes");
  if (mlp) FillMlpDefaults(m);
  if (d->format() == "bytes") DEFAULT(m, vocabulary, 256);
  if (m->init_from().empty() && !mlp) DEFAULT(m, norm_epsilon, kNormEpsilon);
  DEFAULT(m, tied, true);
  RecipeSpec* r = job->mutable_recipe();
  const bool phased = !job->phases().empty();  // each has a schedule of its own
  if (!phased) DEFAULT(r, min_learning_rate, 0.1 * r->learning_rate());
  if (!phased) DEFAULT(r, warmup_steps, r->steps() / 20);
  DEFAULT(r, schedule, "cosine");
  FillPhaseDefaults(job);
  DEFAULT(r, beta1, 0.9);
  DEFAULT(r, beta2, 0.95);
  DEFAULT(r, epsilon, 1e-8);
  DEFAULT(r, weight_decay, 0.1);
  DEFAULT(r, clip_norm, 1.0);
  DEFAULT(r, eval_every, 0);
  DEFAULT(r, eval_samples, 64);
  DEFAULT(r, precision, "bf16");
  DEFAULT(r, optimizer, kAdamW);
  DEFAULT(r, optimizer_warmup,
          r->optimizer() == kQuantizedAdam ? std::max<int64_t>(1, r->steps() / 10) : 0);
  DEFAULT(r, deterministic, false);
  DEFAULT(r, recompute, false);
  StrategySpec* s = job->mutable_strategy();
  s->set_stages(WantedStages(*s));  // a 0 that is written out is the default, too
  DEFAULT(s, schedule, "1f1b");
  DEFAULT(s, look_ahead, true);
  DEFAULT(s, queue_limit, 4);
  DEFAULT(s, in_flight, 0);
  DEFAULT(s, replicas, 1);
  DEFAULT(s, local_steps, 1);
  DEFAULT(s, subnetworks, kNoSubnetworks);
  DEFAULT(s, whole_layers, 0);
  // What subnetworks share is the mean of the replicas'.
  DEFAULT(s, outer_learning_rate, TrainsSubnetworks(*job) ? 1 : 0.7);
  DEFAULT(s, outer_momentum, TrainsSubnetworks(*job) ? 0 : 0.9);
  DEFAULT(s, fragments, 1);
  DEFAULT(s, fragment_delay, 0);
  DEFAULT(s, fragment_mix, s->fragment_delay() > 0 ? 0.5 : 0.0);
  CompressionSpec* c = job->mutable_compression();
  DEFAULT(c, forward, "auto");
  DEFAULT(c, backward, "auto");
  DEFAULT(c, backward_when, "all");
  DEFAULT(c, evaluation, c->forward() == "none" ? "none" : "bf16");
  DEFAULT(c, tied, c->forward() == "none" && c->backward() == "none" ? "none" : "auto");
  DEFAULT(c, gradients, c->forward() == "none" && c->backward() == "none" ? "none" : "auto");
  DEFAULT(c, min_bits, 4);
  DEFAULT(c, buffer_memory_bytes, kGiB);
  DEFAULT(c, buffer_disk_bytes, 8 * kGiB);
  DEFAULT(c, check_buffers, false);
  FillRecoveryDefaults(job->mutable_checkpoint(), job->mutable_recovery());
}
#undef DEFAULT

double NormEpsilon(const ModelSpec& model) {
  return model.has_norm_epsilon() ? model.norm_epsilon() : kNormEpsilon;
}

// What job files can say and no program does yet.
void RefuseUnbuilt(const JobSpec& job, Errors* errors) {
  const auto refuse = [errors](bool there, absl::string_view field) {
    if (!there) return;
    errors->Add(FieldError(field, "this version does not have it yet; leave it out"));
  };
  const StrategySpec& s = job.strategy();
  refuse(s.has_cells(), "strategy.cells");
  refuse(s.has_cell_rounds(), "strategy.cell_rounds");
}

std::vector<absl::Status> JobErrors(const JobSpec& job) {
  std::vector<absl::Status> list;
  Errors errors(&list);
  errors.Add(CheckJobName(job.name()));
  const absl::Status format =
      CheckOneOf("data.format", job.data().format(), {"bytes", "tokens", "rows"});
  ValidateModel(job.model(), format.ok(), &errors);
  errors.Add(CheckDataPath(job.data().path()));
  errors.Add(format);
  if (job.data().format() == "bytes" && job.model().vocabulary() < 256) {
    errors.Refuse("model.vocabulary", job.model().vocabulary(),
                  "at least 256 for data.format bytes");
  }
  errors.Add(CheckRange("data.validation_share", job.data().validation_share(), 0, 0.9));
  ValidateRecipe(job.recipe(), !job.phases().empty(), &errors);
  ValidateOptimizer(job.recipe(), job.strategy(), &errors);
  ValidateStrategy(job.strategy(), job.model().layers(), &errors);
  for (absl::Status& error : NodeNameErrors(job.strategy())) errors.Add(std::move(error));
  for (absl::Status& error : FamilyErrors(job)) errors.Add(std::move(error));
  for (absl::Status& error : SubnetworkErrors(job)) errors.Add(std::move(error));
  ValidateCompression(job.compression(), job.model().hidden(), job.strategy().stages(), &errors);
  if (job.compression().backward_when() == "epilogue" && job.strategy().schedule() == "overlap") {
    errors.Add(FieldError("compression.backward_when",
                          "steps of strategy.schedule overlap have no epilogue: the "
                          "forward passes of the next step go on meanwhile; use all"));
  }
  errors.Add(CheckRange("checkpoint.every", job.checkpoint().every(), 0, 1e9));
  errors.Add(CheckRange("checkpoint.keep", job.checkpoint().keep(), 1, 1000));
  errors.Add(CheckRange("checkpoint.local", job.checkpoint().local(), kPacedLocal, 1e9));
  errors.Add(CheckRange("checkpoint.buddies", job.checkpoint().buddies(), 0, 1));
  if (job.checkpoint().buddies() > 0 && job.checkpoint().local() == 0) {
    errors.Add(FieldError("checkpoint.buddies",
                          "they keep copies of local checkpoints, of which there are none with "
                          "checkpoint.local 0: leave one of the two out"));
  }
  if (job.recovery().has_attempts())  // jobs that were stored before there was such a field
    errors.Add(CheckRange("recovery.attempts", job.recovery().attempts(), 1, 1000));
  RefuseUnbuilt(job, &errors);
  for (absl::Status& error : PhaseErrors(job)) errors.Add(std::move(error));
  return list;
}

absl::Status ValidateJob(const JobSpec& job) {
  const std::vector<absl::Status> errors = JobErrors(job);
  return errors.empty() ? absl::OkStatus() : errors.front();
}

}  // namespace isthmus
