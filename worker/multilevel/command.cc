#include "worker/multilevel/command.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/command_line.h"
#include "base/number_flag.h"
#include "base/status.h"
#include "worker/multilevel/mapping_choice.h"
#include "worker/multilevel/transform.h"

namespace isthmus::multilevel {
namespace {

constexpr double kDefaultAlpha = 0.25;

constexpr char kFooter[] = R"(
Models are directories with config.json and model.safetensors, as `isthmus export` writes them and
`transformers` loads them. Results are F32, with the tokenizer's files; config.json records what was
done (isthmus_multilevel). OUT appears whole or not at all.

Examples:
  isthmus multilevel coalesce ./large ./small            # half the width, half the layers
  isthmus multilevel decoalesce ./trained ./grown --like ./large
  isthmus multilevel interpolate ./large ./grown ./start --alpha 0.25

Train each of them with model.init_from. Exit codes: 0 done; 1 failed at run time; 2 wrong usage, or
a directory that holds no such model; 3 this machine lacks something (disk, memory).)";

constexpr char kShapeFooter[] = R"(
Without a flag for width or depth both change by 2 (decoalesce: as the recorded coalesce did); where
one is named the other stays. The size of a head never changes, so heads go with the width.)";

struct Flags {
  std::string source, other, out, like;
  std::string width_groups, depth_groups, tied;  // empty: not named
  Asked asked;
  double alpha = kDefaultAlpha;
  bool force = false;
  bool json = false;
};

void AddOut(CLI::App* app, Flags* f) {
  app->add_option("OUT", f->out, "the directory to write")->required();
  app->add_flag("--force", f->force, "replace OUT if it is not empty");
  app->add_flag("--json", f->json, "what was written as one JSON object");
}

void AddShape(CLI::App* app, Flags* f, const char* source) {
  app->add_option(source, f->source, "the model to begin with")->required();
  AddOut(app, f);
  const auto size = [&](const char* name, int64_t* value, int64_t most, const char* what) {
    Whole(app->add_option(name, *value, what), 1, static_cast<uint64_t>(most));
  };
  Asked* a = &f->asked;
  size("--width-factor", &a->width_factor, kMaxHidden, "width of the large by that of the small");
  size("--depth-factor", &a->depth_factor, kMaxLayers, "layers of the large by those of the small");
  size("--hidden", &a->hidden, kMaxHidden, "width of the result");
  size("--heads", &a->heads, kMaxHeads, "heads of the result");
  size("--layers", &a->layers, kMaxLayers, "layers of the result");
  app->add_option("--like", f->like, "width and depth of the model there")->type_name("DIR");
  app->add_option("--width-groups", f->width_groups,
                  "which heads are one: strided (i, i + n) or adjacent (2i, 2i + 1) [strided]")
      ->type_name("GROUPS");
  app->add_option("--depth-groups", f->depth_groups,
                  "which layers are one: the same words [adjacent]")
      ->type_name("GROUPS");
  app->add_option("--tied", f->tied,
                  "what keeps the logits: final-norm (exact for a GPT-2) or embedding (as the "
                  "paper's code, exact for a BERT) [final-norm]")
      ->type_name("RULE");
  app->footer(kShapeFooter);
}

absl::Status ReadWords(Flags* f) {
  const auto groups = [](const char* flag, const std::string& text,
                         std::optional<Groups>* out) -> absl::Status {
    *out = GroupsOf(text);
    if (text.empty() || out->has_value()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(flag, ": '", text, "' is neither 'strided' nor 'adjacent'"));
  };
  RETURN_IF_ERROR(groups("--width-groups", f->width_groups, &f->asked.width));
  RETURN_IF_ERROR(groups("--depth-groups", f->depth_groups, &f->asked.depth));
  f->asked.tied = TiedOf(f->tied);
  if (!f->tied.empty() && !f->asked.tied.has_value())
    return absl::InvalidArgumentError(
        absl::StrCat("--tied: '", f->tied, "' is neither 'final-norm' nor 'embedding'"));
  return absl::OkStatus();
}

absl::StatusOr<Written> RunShape(Flags* f, Operator kind) {
  RETURN_IF_ERROR(ReadWords(f));
  ASSIGN_OR_RETURN(const ModelFiles source, ModelFiles::Open(f->source));
  if (!f->like.empty()) {
    ASSIGN_OR_RETURN(const ModelFiles like, ModelFiles::Open(f->like));
    f->asked.like = like.shape();
  }
  std::optional<Mapping> recorded;
  if (kind == Operator::kDecoalesce) {
    absl::StatusOr<std::optional<Mapping>> undo = CoalesceToUndo(source.config());
    if (!undo.ok()) return Annotate(undo.status(), source.dir() + "/config.json");
    recorded = *std::move(undo);
  }
  Operation operation;
  operation.kind = kind;
  ASSIGN_OR_RETURN(operation.mapping, ChooseMapping(kind, source.shape(), f->asked, recorded));
  return Transform(source, operation, {f->out, f->force});
}

absl::StatusOr<Written> RunInterpolate(const Flags& f) {
  ASSIGN_OR_RETURN(const ModelFiles before, ModelFiles::Open(f.source));
  ASSIGN_OR_RETURN(const ModelFiles other, ModelFiles::Open(f.other));
  return InterpolateModels(before, other, f.alpha, {f.out, f.force});
}

std::string Report(const Flags& f, const Written& w) {
  if (!f.json)
    return absl::StrCat("wrote ", f.out, ": ", ShapeWords(w.shape), " (", Parameters(w.shape),
                        " parameters)\n");
  nlohmann::ordered_json object = {
      {"dir", f.out},           {"layers", w.shape.layers},          {"hidden", w.shape.hidden},
      {"heads", w.shape.heads}, {"parameters", Parameters(w.shape)}, {"bytes", w.bytes}};
  object[kRecordKey] = nlohmann::ordered_json::parse(w.history);
  return object.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace

int RunCommand(int argc, const char* const* argv, FILE* out, FILE* err) {
  Flags flags;
  CLI::App app(
      "isthmus-multilevel: makes a small GPT-2 of a large one and a large one of a small one.",
      CalledAs(argc, argv, "isthmus-multilevel"));
  app.require_subcommand(1);
  app.set_help_all_flag("--help-all", "the options of each of them as well");
  app.set_version_flag("--version", std::string("isthmus-multilevel ") + ISTHMUS_VERSION);
  app.footer(kFooter);
  CLI::App* coalesce = app.add_subcommand("coalesce", "a model of less width and depth");
  AddShape(coalesce, &flags, "LARGE");
  CLI::App* decoalesce = app.add_subcommand("decoalesce", "a model of more width and depth");
  AddShape(decoalesce, &flags, "SMALL");
  CLI::App* mix = app.add_subcommand("interpolate", "(1 - alpha) BEFORE + alpha OTHER");
  mix->add_option("BEFORE", flags.source, "the model as it was before the small one")->required();
  mix->add_option("OTHER", flags.other, "the de-coalesced one, of the same shape")->required();
  AddOut(mix, &flags);
  Real(mix->add_option("--alpha", flags.alpha, "weight of OTHER"), 0, 1)->capture_default_str();
  mix->footer("");
  if (const auto ended = ParseCommandLine(argc, argv, "isthmus-multilevel", &app, out, err))
    return *ended;
  const absl::StatusOr<Written> written =
      mix->parsed()
          ? RunInterpolate(flags)
          : RunShape(&flags, coalesce->parsed() ? Operator::kCoalesce : Operator::kDecoalesce);
  if (!written.ok()) {
    std::fprintf(err, "isthmus-multilevel: %s\n", std::string(written.status().message()).c_str());
    return CommandExitFor(written.status());
  }
  std::fputs(Report(flags, *written).c_str(), out);
  return kOk;
}

}  // namespace isthmus::multilevel
