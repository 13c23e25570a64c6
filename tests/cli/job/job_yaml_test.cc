#include "coordinator/cli/job/job_yaml.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/codec/codec_grammar.h"

namespace isthmus::cli {
namespace {

using testing::HasSubstr;

constexpr char kGood[] = R"y(name: bible
model: {layers: 4, hidden: 64, heads: 4, context: 64}
data:
  path: bible.txt
recipe:
  steps: 100
  global_batch: 16
  micro_batch: 4
  learning_rate: 1e-3
)y";

std::string Errors(const std::string& text) {
  std::vector<std::string> lines;
  for (const JobFileError& error : ParseJobYaml(text).errors)
    lines.push_back(FormatJobFileError("job.yaml", error));
  return absl::StrJoin(lines, "\n");
}

TEST(JobYaml, ReadsAGoodFile) {
  const JobFile file = ParseJobYaml(kGood);
  EXPECT_EQ(Errors(kGood), "");
  EXPECT_EQ(file.job.name(), "bible");
  EXPECT_EQ(file.job.model().layers(), 4);
  EXPECT_DOUBLE_EQ(file.job.recipe().learning_rate(), 1e-3);
  EXPECT_EQ(file.job.recipe().warmup_steps(), 5);  // a default
}

TEST(JobYaml, ValueForms) {
  const JobFile file = ParseJobYaml(R"y(name: '42'
seed: 18446744073709551615
model: {layers: 4, hidden: 64, heads: 4, context: 64}
data: {path: bible.txt, validation_share: 5%}
recipe: {steps: 1e3, global_batch: 16, micro_batch: 4, learning_rate: 2.5E-4, weight_decay: 0}
strategy: {layers_per_stage: [1, 3], nodes: [a, "b"]}
compression:
  forward: delta(quant(4, group=64)) | zstd
  backward: "quant(8)"
  buffer_memory_bytes: 256MiB
  buffer_disk_bytes: 2.5 GB
  check_buffers: true
  boundaries:
    - boundary: 0
      forward: bf16
)y");
  ASSERT_TRUE(file.errors.empty()) << FormatJobFileError("job.yaml", file.errors[0]);
  EXPECT_EQ(file.job.name(), "42");
  EXPECT_EQ(file.job.seed(), 18446744073709551615u);
  EXPECT_DOUBLE_EQ(file.job.data().validation_share(), 0.05);
  EXPECT_EQ(file.job.recipe().steps(), 1000);
  EXPECT_EQ(file.job.recipe().weight_decay(), 0);
  EXPECT_EQ(file.job.strategy().layers_per_stage(1), 3);
  EXPECT_EQ(file.job.strategy().nodes(1), "b");
  EXPECT_EQ(file.job.compression().buffer_memory_bytes(), 256 << 20);
  EXPECT_EQ(file.job.compression().buffer_disk_bytes(), 2500000000);
  EXPECT_TRUE(file.job.compression().check_buffers());
  EXPECT_EQ(file.job.compression().boundaries(0).forward(), "bf16");
}

TEST(JobYaml, ErrorsOfPhasesHaveTheirLines) {
  EXPECT_EQ(Errors(R"y(name: cycle
model: {layers: 4, hidden: 64, heads: 4, context: 64}
data: {path: text.txt}
recipe: {steps: 31, global_batch: 8, micro_batch: 2, learning_rate: 1e-3, warmup_steps: 2}
phases:
  - {steps: 10, alpha: 0.5}
  - steps: 20
    layers: 3
    heads: 2
  - {steps: 0, alpha: 1.5}
)y"),
            R"y(job.yaml:4:17: recipe.steps: 31, and the steps of the phases sum to 30: leave it out
job.yaml:4:89: recipe.warmup_steps: with phases each has its own schedule: )y"
            R"y(give warmup_steps in phases
job.yaml:6:24: phases[0].alpha: no phase goes before the first one, so nothing )y"
            R"y(is made of it; leave it out
job.yaml:10:13: phases[2].steps: '0' is not allowed; it must be from 1 to 1000000000
job.yaml:10:23: phases[2].alpha: '1.5' is not allowed; it must be from 0 to 1)y");
  EXPECT_EQ(Errors(R"y(name: cycle
model: {layers: 4, hidden: 64, heads: 4, context: 64}
data: {path: text.txt}
recipe: {global_batch: 8, micro_batch: 2, learning_rate: 1e-3}
phases:
  - {steps: 10}
  - steps: 20
    layers: 3
)y"),
            R"y(job.yaml:8:13: phases[1].layers: '3' is not allowed; it must be a divisor of 4, )y"
            R"y(as the phase before has)y");
}

// Phases have what they leave out of model.*: that it is missing was said of each of them, too.
TEST(JobYaml, WhatPhasesHaveOfTheModelIsMissingOnce) {
  EXPECT_EQ(Errors(R"y(name: cycle
model: {hidden: 64, context: 64}
data: {path: text.txt}
recipe: {global_batch: 8, micro_batch: 2, learning_rate: 1e-3}
phases:
  - {steps: 10}
  - {steps: 20, layers: 2, heads: 2}
)y"),
            "job.yaml:2:1: model.layers: missing; it must be from 1 to 1000\n"
            "job.yaml:2:1: model.heads: missing; it must be from 1 to 1024");
}

TEST(JobYaml, GoldenErrors) {
  EXPECT_EQ(Errors(R"y(name: Bible Study
sed: 1
model:
  layers: four
  hidden: 65
  heads: 4
  context: 64
  learning_rate: 3
data:
  path:
  validation_share: 95%
recipe:
  steps: 100
  steps: 200
  global_batch: "16"
  micro_batch: [4]
  learning_rate: 5%
strategy: none
compression:
  forward: quant(9)
  buffer_memory_bytes: 1 gig
  check_buffers: yes
)y"),
            R"y(job.yaml:1:7: name: 'Bible Study' is not allowed; it must be )y"
            R"y(1-63 lower-case letters, digits and '-', and not begin with '-'
job.yaml:2:1: sed: unknown key; did you mean 'seed'?
job.yaml:4:11: model.layers: 'four' is not a whole number
job.yaml:5:11: model.hidden: '65' is not allowed; it must be a multiple of model.heads (4)
job.yaml:8:3: model.learning_rate: unknown key here; 'learning_rate' belongs under 'recipe:'
job.yaml:10:3: data.path: has no value; it must be a text (or delete the line)
job.yaml:11:21: data.validation_share: '0.95' is not allowed; it must be from 0 to 0.9
job.yaml:14:3: recipe.steps: given twice; the first is in line 13
job.yaml:15:17: recipe.global_batch: must be a whole number, )y"
            R"y(but it stands in quotes; write 16 without them
job.yaml:16:16: recipe.micro_batch: must be a whole number, not a list
job.yaml:17:18: recipe.learning_rate: '5%' is not a number
job.yaml:18:11: strategy: this is a section of `key: value` lines )y"
            R"y(with the keys stages, layers_per_stage, schedule, queue_limit, in_flight, )y"
            R"y(nodes, replicas, local_steps, outer_learning_rate, outer_momentum, )y"
            R"y(look_ahead, fragments, fragment_delay, fragment_mix, )y"
            R"y(subnetworks, cells, cell_rounds, whole_layers
job.yaml:20:12: compression.forward: codec 'quant(9)', column 8: expected bits from 1 to 8
job.yaml:21:24: compression.buffer_memory_bytes: '1 gig' is not a size; write bytes )y"
            R"y(or a unit: 1048576, 512KiB, 256MiB, 2GB
job.yaml:22:18: compression.check_buffers: 'yes' is not true or false)y");
}

TEST(JobYaml, ChecksOfValuesHaveTheirLine) {
  EXPECT_EQ(
      Errors(R"y(name: bible
model: {layers: 4, hidden: 65, heads: 4, context: 64}
data:
  path: bible.txt
  validation_share: 95%
recipe:
  steps: 100
  global_batch: 16
  micro_batch: 32
compression:
  forward: quant(9)
  boundaries:
    - {boundary: 1, backward: delta(quant(4))}
)y"),
      R"y(job.yaml:2:28: model.hidden: '65' is not allowed; it must be a multiple of model.heads (4)
job.yaml:5:21: data.validation_share: '0.95' is not allowed; it must be from 0 to 0.9
job.yaml:6:1: recipe.learning_rate: missing; it must be from 1e-12 to 10
job.yaml:9:16: recipe.micro_batch: '32' is not allowed; it must be from 1 to 16
job.yaml:11:12: compression.forward: codec 'quant(9)', column 8: expected bits from 1 to 8
job.yaml:13:31: compression.boundaries[0].backward: 'delta(quant(4))' is not allowed; )y"
      R"y(it must be a codec without delta: a gradient has no earlier version )y"
      R"y(of itself to differ from (AQ-SGD, section 3))y");
}

// An error of one field hides what would follow from it, and nothing else.
TEST(JobYaml, AllErrorsAreShown) {
  EXPECT_EQ(Errors(R"y(name: Bible
model: {layers: x, hidden: 65, heads: 4, context: 0}
data: {path: ../bible.txt, format: byts}
recipe: {stps: 100, global_batch: 16, micro_batch: 32, learning_rate: 1e-3, schedule: cosin}
strategy: {stages: 3, schedule: 1fb1, layers_per_stage: [1, y]}
compression: {forward: qunat(4), backward: "quant(4, tokn)", tied: bf61}
)y"),
            R"y(job.yaml:1:7: name: 'Bible' is not allowed; it must be 1-63 lower-case )y"
            R"y(letters, digits and '-', and not begin with '-'
job.yaml:2:17: model.layers: 'x' is not a whole number
job.yaml:2:28: model.hidden: '65' is not allowed; it must be a multiple of model.heads (4)
job.yaml:2:51: model.context: '0' is not allowed; it must be from 1 to 65536
job.yaml:3:14: data.path: '../bible.txt' is not allowed; it must be inside each )y"
            R"y(daemon's --data-dir; remove '..'
job.yaml:3:36: data.format: 'byts' is not allowed; it must be 'bytes', 'tokens', 'rows'; )y"
            R"y(did you mean 'bytes'?
job.yaml:4:10: recipe.stps: unknown key; did you mean 'steps'?
job.yaml:4:52: recipe.micro_batch: '32' is not allowed; it must be from 1 to 16
job.yaml:4:87: recipe.schedule: 'cosin' is not allowed; it must be 'cosine', 'linear', )y"
            R"y('constant'; did you mean 'cosine'?
job.yaml:5:61: strategy.layers_per_stage[1]: 'y' is not a whole number
job.yaml:6:24: compression.forward: codec 'qunat(4)', column 1: expected a codec (did )y"
            R"y(you mean 'quant'?): )y" +
                CodecList() +
                R"y(
job.yaml:6:44: compression.backward: codec 'quant(4, tokn)', column 14: expected an )y"
                R"y(option (did you mean 'token'?): )y" +
                CodecOptionList("quant") +
                R"y(
job.yaml:6:68: compression.tied: codec 'bf61', column 1: expected a codec (did )y"
                R"y(you mean 'bf16'?): )y" +
                CodecList() + "; or auto");
  // With the layers known, the schedule is judged too.
  EXPECT_THAT(Errors(absl::StrCat(kGood, "strategy: {schedule: 1fb1}\n")),
              HasSubstr("it must be '1f1b', 'gpipe', 'overlap'; did you mean '1f1b'?"));
}

TEST(JobYaml, PathsOutsideOfTheDataDirectoryAreRefused) {
  for (const auto& [path, words] : {std::pair<const char*, const char*>("/etc/passwd", "relative"),
                                    {"a/../../b", "remove '..'"},
                                    {"\"a\\0b\"", "NUL character"}}) {
    std::string text = kGood;
    text.replace(text.find("bible.txt"), 9, path);
    EXPECT_THAT(Errors(text), HasSubstr("job.yaml:4:9: data.path: ")) << path;
    EXPECT_THAT(Errors(text), HasSubstr(words)) << path;
  }
}

TEST(JobYaml, MissingSectionsAreNamed) {
  const std::string errors = Errors("name: bible\n");
  EXPECT_THAT(errors, HasSubstr("model.layers: missing; it must be from 1 to 1000"));
  EXPECT_THAT(
      errors,
      HasSubstr(
          "data.path: missing; it must be a file or directory under each daemon's --data-dir"));
  EXPECT_THAT(errors, HasSubstr("recipe.steps: missing"));
}

TEST(JobYaml, WholeFileErrors) {
  EXPECT_EQ(Errors(""),
            "job.yaml:1:1: the file is empty; `isthmus job-template` prints one to start from");
  EXPECT_THAT(Errors("- a\n- b\n"), HasSubstr("a job file is a section"));
  EXPECT_THAT(Errors("a: [1\n"), HasSubstr("not valid YAML"));
  EXPECT_THAT(Errors("? [a]\n: b\n"), HasSubstr("a key must be a plain word"));
  EXPECT_THAT(Errors(absl::StrCat(kGood, "compression: {forward: quant(4, group=64)}\n")),
              HasSubstr("needs quotes"));
}

TEST(JobYaml, ErrorsAreBounded) {
  std::string text = kGood;
  for (int i = 0; i < 100; ++i) absl::StrAppend(&text, "zzzzzzzzzzzz", i, ": 1\n");
  const JobFile file = ParseJobYaml(text);
  EXPECT_EQ(file.errors.size(), kMaxJobErrors);
  EXPECT_EQ(file.more_errors, 100 - kMaxJobErrors);
  EXPECT_EQ(MoreErrors(0), "");
  EXPECT_EQ(MoreErrors(1), "and 1 more error");
  EXPECT_EQ(MoreErrors(80), "and 80 more errors");
  EXPECT_THAT(Errors(absl::StrCat("name: ", std::string(100000, 'x'), "\n")),
              HasSubstr("at most 4096"));
}

// A value that each field accepts, by type; fields with a narrower set of values have their own.
std::string ValueFor(const google::protobuf::FieldDescriptor* field) {
  using google::protobuf::FieldDescriptor;
  if (field->name() == "backward" || field->name() == "forward" || field->name() == "evaluation" ||
      field->name() == "tied")
    return "bf16";
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return "true";
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return "0.25";
    case FieldDescriptor::CPPTYPE_STRING:
      return "word";
    default:
      return "7";
  }
}

// Maps a file with each field alone; the errors of missing fields are expected, those of the
// mapping are not.
void CheckReachable(const google::protobuf::Descriptor* type, const std::string& head,
                    const std::string& path, int depth, int* count) {
  for (int i = 0; i < type->field_count(); ++i) {
    const auto* field = type->field(i);
    const std::string indent(2 * depth, ' ');
    const std::string here = path.empty() ? field->name() : path + "." + field->name();
    if (field->message_type() != nullptr) {
      std::string next = absl::StrCat(head, indent, field->name(), ":\n");
      if (field->is_repeated()) absl::StrAppend(&next, indent, "  -\n");
      CheckReachable(field->message_type(), next, here, depth + (field->is_repeated() ? 2 : 1),
                     count);
      continue;
    }
    const std::string value =
        field->is_repeated() ? absl::StrCat("[", ValueFor(field), "]") : ValueFor(field);
    const JobFile file = ParseJobYaml(absl::StrCat(head, indent, field->name(), ": ", value, "\n"));
    for (const JobFileError& error : file.errors) {
      EXPECT_FALSE(absl::StrContains(error.message, "unknown") ||
                   absl::StrContains(error.message, "is not a "))
          << here << ": " << FormatJobFileError("job", error);
    }
    ++*count;
  }
}

TEST(JobYaml, EveryFieldIsReachable) {
  int count = 0;
  CheckReachable(JobSpec::descriptor(), "", "", 0, &count);
  EXPECT_GE(count, 40);
}

TEST(JobYaml, TheExamplesAreValid) {
  int count = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(ISTHMUS_SOURCE_DIR) + "/deploy/jobs")) {
    EXPECT_TRUE(ReadJobFile(entry.path().string()).ok())
        << ReadJobFile(entry.path().string()).status();
    ++count;
  }
  EXPECT_GE(count, 3);
}

TEST(JobYaml, ReadJobFile) {
  EXPECT_EQ(ReadJobFile("/nonexistent/job.yaml").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ReadJobFile("/").status().code(), absl::StatusCode::kInvalidArgument);
  const std::string path = testing::TempDir() + "/isthmus_job_yaml_test.yaml";
  std::ofstream(path) << kGood;
  EXPECT_EQ(ReadJobFile(path)->name(), "bible");
  std::ofstream(path) << "nam: x\n";
  EXPECT_THAT(std::string(ReadJobFile(path).status().message()),
              HasSubstr(path + ":1:1: nam: unknown key; did you mean 'name'?"));
  std::remove(path.c_str());
}

std::string SetErrors(const JobSettings& settings) {
  std::vector<std::string> lines;
  for (const JobFileError& error : ParseJobYaml(kGood, settings).errors)
    lines.push_back(FormatJobFileError("job.yaml", error));
  return absl::StrJoin(lines, "\n");
}

TEST(JobYaml, SetGoesOverTheFile) {
  const JobFile file =
      ParseJobYaml(kGood, {"recipe.steps=1e6", "strategy.layers_per_stage=[1, 3]", "name=other",
                           "compression.forward=quant(4, group=64) | zstd",
                           "data.validation_share=5%", "recipe.steps=7"});
  EXPECT_TRUE(file.errors.empty()) << FormatJobFileError("", file.errors[0]);
  EXPECT_EQ(file.job.recipe().steps(), 7);  // the last one counts
  EXPECT_EQ(file.job.recipe().global_batch(), 16);
  EXPECT_EQ(file.job.strategy().layers_per_stage_size(), 2);
  EXPECT_EQ(file.job.name(), "other");
  EXPECT_EQ(file.job.compression().forward(), "quant(4, group=64) | zstd");
  EXPECT_DOUBLE_EQ(file.job.data().validation_share(), 0.05);
}

TEST(JobYaml, ASetListReplacesTheFiles) {
  const JobFile file = ParseJobYaml(std::string(kGood) + "strategy: {layers_per_stage: [2, 2]}\n",
                                    {"strategy.layers_per_stage=[1, 1, 2]"});
  EXPECT_TRUE(file.errors.empty()) << FormatJobFileError("", file.errors[0]);
  EXPECT_EQ(file.job.strategy().layers_per_stage_size(), 3);
}

TEST(JobYaml, WhatIsWrongWithASetNamesTheFlag) {
  EXPECT_EQ(SetErrors({"recipe.stps=7"}),
            "--set recipe.stps=7: recipe.stps: unknown key; did you mean 'steps'?");
  EXPECT_THAT(SetErrors({"recipe.steps=ten"}),
              HasSubstr("--set recipe.steps=ten: recipe.steps: 'ten' is not a whole number"));
  EXPECT_THAT(SetErrors({"recipe.steps="}), HasSubstr("has no value"));
  EXPECT_THAT(SetErrors({"recipe.steps"}), HasSubstr("must be PATH=VALUE"));
  EXPECT_THAT(SetErrors({"=7"}), HasSubstr("must be PATH=VALUE"));
  EXPECT_THAT(SetErrors({"name.first=a"}), HasSubstr("is no section, so it has no 'first'"));
  EXPECT_THAT(SetErrors({"compression.boundaries.0=a"}), HasSubstr("is a list"));
  EXPECT_THAT(SetErrors({"phases.2.alpha=0.5"}), HasSubstr("as in phases=[{...}, {...}]"));
  EXPECT_THAT(SetErrors({"strategy.layers_per_stage.0=2"}),
              HasSubstr("as in strategy.layers_per_stage=[2, 4]"));
  EXPECT_THAT(SetErrors({"recipe=7"}), HasSubstr("section"));
  // A check that only sees the whole job still names the flag.
  EXPECT_THAT(SetErrors({"model.heads=3"}), HasSubstr("job.yaml:2:28: model.hidden"));
  EXPECT_THAT(SetErrors({"model.hidden=7"}),
              HasSubstr("--set model.hidden=7: model.hidden: '7' is not allowed"));
}

}  // namespace
}  // namespace isthmus::cli
