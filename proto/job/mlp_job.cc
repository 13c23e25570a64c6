#include "proto/job/mlp_job.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "proto/codec/codec_text.h"
#include "proto/job/field_error.h"
#include "proto/model/family.h"

namespace isthmus {
namespace {

constexpr int kMostInputs = 65536;

class Checker {
 public:
  explicit Checker(const JobSpec& job) : job_(job) {}

  std::vector<absl::Status> Check() {
    const ModelSpec& m = job_.model();
    if (!IsMlp(m)) {
      Unless(!m.has_inputs(), "model.inputs", "left out: only model.family mlp has it");
      Unless(!m.has_classes(), "model.classes", "left out: only model.family mlp has it");
      Unless(job_.data().format() != "rows", "data.format",
             "bytes or tokens: rows are for model.family mlp");
      return std::move(errors_);
    }
    Unless(
        m.inputs() >= 1 && m.inputs() <= kMostInputs, "model.inputs",
        absl::StrCat("from 1 to ", kMostInputs, ", the values of a row, and it is ", m.inputs()));
    Unless(m.classes() >= 2 && m.classes() <= kRowValues, "model.classes",
           absl::StrCat("from 2 to ", kRowValues, ", and it is ", m.classes()));
    Unless(m.heads() == 1, "model.heads", "left out with model.family mlp, which has none");
    Unless(m.context() == 1, "model.context",
           "left out with model.family mlp: a row has model.inputs values and one class");
    Unless(m.vocabulary() == kRowValues, "model.vocabulary",
           absl::StrCat("left out with model.family mlp, whose values are below ", kRowValues));
    Unless(!m.tied(), "model.tied", "false or left out with model.family mlp: nothing is embedded");
    Unless(!m.has_norm_epsilon(), "model.norm_epsilon",
           "left out with model.family mlp, which has no norms");
    Unless(m.init_from().empty(), "model.init_from",
           "left out with model.family mlp: a GPT-2 is what is read");
    Unless(job_.data().format() == "rows", "data.format", "rows with model.family mlp");
    Unless(job_.phases().empty(), "phases",
           "left out with model.family mlp: only a GPT-2 is made smaller and larger");
    Unless(!job_.recipe().recompute(), "recipe.recompute",
           "false with model.family mlp: a layer keeps its inputs and outputs alone");
    const CompressionSpec& c = job_.compression();
    CheckCodec("compression.forward", c.forward());
    CheckCodec("compression.backward", c.backward());
    CheckCodec("compression.evaluation", c.evaluation());
    for (int i = 0; i < c.boundaries_size(); ++i) {
      CheckCodec(absl::StrCat("compression.boundaries[", i, "].forward"),
                 c.boundaries(i).forward());
      CheckCodec(absl::StrCat("compression.boundaries[", i, "].backward"),
                 c.boundaries(i).backward());
    }
    return std::move(errors_);
  }

 private:
  void Unless(bool good, absl::string_view field, absl::string_view must) {
    if (!good) errors_.push_back(ValueError(field, "", must));
  }

  // What can't be read as a codec is said of the field.
  void CheckCodec(const std::string& field, const std::string& text) {
    const absl::StatusOr<CodecSpec> codec = ParseCodec(text);
    Unless(!codec.ok() || !NeedsTokenIds(*codec), field,
           "a codec without predict with model.family mlp: predictions are made from token ids");
  }

  const JobSpec& job_;
  std::vector<absl::Status> errors_;
};

}  // namespace

void FillMlpDefaults(ModelSpec* m) {
  if (m->heads() == 0) m->set_heads(1);
  if (m->context() == 0) m->set_context(1);
  if (!m->has_vocabulary()) m->set_vocabulary(kRowValues);
  if (!m->has_tied()) m->set_tied(false);
}

std::vector<absl::Status> FamilyErrors(const JobSpec& job) { return Checker(job).Check(); }

}  // namespace isthmus
