#include "coordinator/cli/job/job_reference.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "proto/codec/codec_grammar.h"
#include "proto/job.pb.h"
#include "proto/job/field_text.h"
#include "proto/job/job_defaults.h"

namespace isthmus::cli {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

constexpr char kKeptBesides[] =
    "; besides, those that stops and interruptions write push none of the last ones out that were "
    "due (checkpoint.every), and the end of a phase stays while a later one is made of it";

// (message name, field name) -> comment, from lines such as `  optional int32 bits = 3;  //
// comment` inside `message X {`.
std::map<std::pair<std::string, std::string>, std::string> Comments() {
  std::map<std::pair<std::string, std::string>, std::string> comments;
  std::string message;
  for (absl::string_view line : absl::StrSplit(kJobProtoText, '\n')) {
    absl::string_view rest = absl::StripAsciiWhitespace(line);
    if (absl::ConsumePrefix(&rest, "message ")) {
      message = std::string(rest.substr(0, rest.find(' ')));
      continue;
    }
    const size_t equals = rest.find(" = ");
    const size_t semicolon = rest.find(';');
    if (message.empty() || equals == absl::string_view::npos ||
        semicolon == absl::string_view::npos || equals > semicolon)
      continue;
    const absl::string_view declared = rest.substr(0, equals);
    const std::string name(declared.substr(declared.rfind(' ') + 1));
    const size_t slashes = rest.find("//", semicolon);
    comments[{message, name}] =
        slashes == absl::string_view::npos
            ? ""
            : std::string(absl::StripAsciiWhitespace(rest.substr(slashes + 2)));
  }
  return comments;
}

std::string TypeName(const FieldDescriptor* field) {
  std::string type;
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      type = "true|false";
      break;
    case FieldDescriptor::CPPTYPE_DOUBLE:
      type = absl::EndsWith(field->name(), "_share") ? "number or %" : "number";
      break;
    case FieldDescriptor::CPPTYPE_STRING:
      type = "text";
      break;
    case FieldDescriptor::CPPTYPE_MESSAGE:
      type = "section";
      break;
    default:
      type = absl::EndsWith(field->name(), "_bytes") ? "size" : "whole number";
  }
  if (!field->is_repeated()) return type;
  return absl::StrCat("list of ", type, "s");
}

void Collect(const Descriptor* type, const std::string& prefix,
             const std::map<std::pair<std::string, std::string>, std::string>& comments,
             std::vector<FieldDoc>* out) {
  for (int i = 0; i < type->field_count(); ++i) {
    const FieldDescriptor* field = type->field(i);
    FieldDoc doc;
    doc.path = absl::StrCat(prefix, field->name());
    doc.type = TypeName(field);
    const auto comment = comments.find({type->name(), field->name()});
    if (comment != comments.end()) doc.meaning = comment->second;
    const size_t open = doc.meaning.rfind('[');
    if (open != std::string::npos && absl::EndsWith(doc.meaning, "]")) {
      doc.default_value = doc.meaning.substr(open + 1, doc.meaning.size() - open - 2);
      doc.meaning = std::string(absl::StripAsciiWhitespace(doc.meaning.substr(0, open)));
    } else if (field->message_type() == nullptr && !field->is_repeated()) {
      doc.default_value = field->has_presence() ? "unset" : "required";
    }
    if (doc.path == "checkpoint.keep") doc.meaning += kKeptBesides;
    out->push_back(doc);
    if (field->message_type() != nullptr) {
      Collect(field->message_type(), absl::StrCat(doc.path, field->is_repeated() ? "[]." : "."),
              comments, out);
    }
  }
}

// What the template sets; everything else is commented out with its default.
JobSpec ExampleJob() {
  JobSpec job;
  job.set_name("my-first-job");
  ModelSpec* model = job.mutable_model();
  model->set_layers(8);
  model->set_hidden(256);
  model->set_heads(8);
  model->set_context(256);
  job.mutable_data()->set_path("bible.txt");
  RecipeSpec* recipe = job.mutable_recipe();
  recipe->set_steps(1000);
  recipe->set_global_batch(32);
  recipe->set_micro_batch(4);
  recipe->set_learning_rate(1e-3);
  StrategySpec* strategy = job.mutable_strategy();
  strategy->add_layers_per_stage(4);
  strategy->add_layers_per_stage(4);
  strategy->add_nodes("host-a");
  strategy->add_nodes("host-b");
  BoundaryCodec* boundary = job.mutable_compression()->add_boundaries();
  boundary->set_boundary(0);
  boundary->set_forward("delta(quant(3))");
  boundary->set_backward("quant(6)");
  return job;
}

// In place of recipe.steps and the schedule there.
void AddExamplePhases(JobSpec* job) {
  job->add_phases()->set_steps(100);
  PhaseSpec* small = job->add_phases();
  small->set_steps(500);
  small->set_layers(4);
  small->set_heads(4);
  small->set_width_groups("strided");
  small->set_depth_groups("adjacent");
  small->set_learning_rate(2e-3);
  small->set_min_learning_rate(2e-4);
  small->set_warmup_steps(25);
  small->set_schedule("cosine");
  PhaseSpec* large = job->add_phases();
  large->set_steps(400);
  large->set_alpha(0.5);
}

class TemplateWriter {
 public:
  explicit TemplateWriter(std::vector<FieldDoc> docs) {
    for (FieldDoc& doc : docs) docs_[doc.path] = std::move(doc);
  }

  void Section(const Message& message, const std::string& prefix, const std::string& indent) {
    const Descriptor* type = message.GetDescriptor();
    for (int i = 0; i < type->field_count(); ++i) Field(message, type->field(i), prefix, indent);
  }
  std::string Take() { return std::move(text_); }

 private:
  void Field(const Message& message, const FieldDescriptor* field, const std::string& prefix,
             const std::string& indent) {
    const std::string path = absl::StrCat(prefix, field->name());
    const FieldDoc& doc = docs_[path];
    const auto* r = message.GetReflection();
    if (field->message_type() != nullptr && !field->is_repeated()) {
      absl::StrAppend(&text_, "\n", indent, field->name(), ":\n");
      Section(r->GetMessage(message, field), doc.path + ".", indent + "  ");
      return;
    }
    std::string value = FieldText(message, field);
    const bool required = doc.default_value == "required";
    if (!required && value.empty()) value = "DIR";
    std::string line = absl::StrCat(indent, required ? "" : "# ", field->name(), ": ", value);
    const std::string meaning = absl::StrCat(
        doc.meaning,
        required || doc.default_value.empty()
            ? ""
            : absl::StrCat(doc.meaning.empty() ? "" : " ", "[", doc.default_value, "]"));
    if (!meaning.empty()) {
      line.resize(std::max(line.size(), size_t{36}), ' ');
      absl::StrAppend(&line, " # ", meaning);
    }
    absl::StrAppend(&text_, line, "\n");
  }

  std::map<std::string, FieldDoc> docs_;
  std::string text_;
};

}  // namespace

std::vector<FieldDoc> JobFieldDocs() {
  std::vector<FieldDoc> docs;
  Collect(JobSpec::descriptor(), "", Comments(), &docs);
  return docs;
}

std::string JobReference() {
  std::string out =
      "A job file is YAML. Keys are the field names below; [brackets] hold what a field is when "
      "the file leaves it out.\n"
      "Whole numbers may be written as 1e6, sizes as 256MiB or 2GB, shares as 5%. Lists: [1, 2].\n"
      "Codecs, each also with '| zstd' behind it; ',' shows the options that one may have:\n";
  absl::StrAppend(&out, CodecHelp(),
                  "`auto` takes for each link and direction what makes the predicted step the "
                  "shortest, with a price for what a codec loses; never below "
                  "compression.min_bits.\n");
  for (const FieldDoc& doc : JobFieldDocs()) {
    const size_t depth = static_cast<size_t>(std::count(doc.path.begin(), doc.path.end(), '.'));
    const std::string name =
        doc.path.substr(doc.path.rfind('.') == std::string::npos ? 0 : doc.path.rfind('.') + 1);
    if (absl::EndsWith(doc.type, "section")) {
      absl::StrAppend(&out, "\n", name, ":\n");
      continue;
    }
    std::string line = absl::StrCat(std::string(2 * depth, ' '), name);
    line.resize(std::max(line.size() + 1, size_t{26}), ' ');
    absl::StrAppend(&line, doc.type);
    line.resize(std::max(line.size() + 1, size_t{42}), ' ');
    if (doc.default_value == "required") {
      absl::StrAppend(&line, "required. ", doc.meaning);
    } else {
      absl::StrAppend(&line, doc.meaning,
                      doc.meaning.empty() || doc.default_value.empty() ? "" : " ",
                      doc.default_value.empty() ? "" : absl::StrCat("[", doc.default_value, "]"));
    }
    absl::StrAppend(&out, absl::StripTrailingAsciiWhitespace(line), "\n");
  }
  return out;
}

std::string JobTemplate() {
  JobSpec job = ExampleJob();
  FillDefaults(&job);
  // The example's cut is commented out, so the count of stages that follows from it is not a
  // default.
  job.mutable_strategy()->set_stages(0);
  AddExamplePhases(&job);
  TemplateWriter writer(JobFieldDocs());
  writer.Section(job, "", "");
  return absl::StrCat(
      "# A job for Isthmus: `isthmus plan FILE` shows what would happen, `isthmus submit FILE "
      "--watch` trains.\n"
      "# Lines that start with # are optional and show the default or an example. All fields: "
      "`isthmus help job`.\n",
      writer.Take());
}

}  // namespace isthmus::cli
