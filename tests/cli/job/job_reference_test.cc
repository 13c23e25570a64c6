#include "coordinator/cli/job/job_reference.h"

#include <functional>
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "coordinator/cli/job/job_yaml.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/codec/codec_grammar.h"

namespace isthmus::cli {
namespace {

using testing::HasSubstr;

FieldDoc DocOf(const std::string& path) {
  for (const FieldDoc& doc : JobFieldDocs()) {
    if (doc.path == path) return doc;
  }
  ADD_FAILURE() << "no field " << path;
  return {};
}

TEST(JobReference, FieldsComeFromTheProto) {
  const FieldDoc rate = DocOf("recipe.min_learning_rate");
  EXPECT_EQ(rate.type, "number");
  EXPECT_EQ(rate.default_value, "0.1 x learning_rate");
  EXPECT_EQ(rate.meaning, "end of the schedule");
  EXPECT_EQ(DocOf("model.layers").default_value, "required");
  EXPECT_EQ(DocOf("compression.buffer_memory_bytes").type, "size");
  EXPECT_EQ(DocOf("strategy.layers_per_stage").type, "list of whole numbers");
  EXPECT_EQ(DocOf("compression.boundaries").type, "list of sections");
  EXPECT_THAT(DocOf("checkpoint.keep").meaning,
              HasSubstr("last ones kept; besides, those that stops"));
}

TEST(JobReference, EveryFieldIsInTheReferenceAndTheTemplate) {
  const std::string reference = JobReference();
  const std::string text = JobTemplate();
  EXPECT_THAT(reference, HasSubstr("kept | kept(CODEC)      backward"));
  EXPECT_THAT(reference, HasSubstr(CodecHelp()));
  for (const FieldDoc& doc : JobFieldDocs()) {
    const std::string name = doc.path.substr(doc.path.rfind('.') + 1);
    EXPECT_THAT(reference, HasSubstr(name));
    EXPECT_THAT(text, HasSubstr(name + ":"));
    if (doc.default_value == "required" && doc.path != "model.heads" &&
        !absl::StrContains(doc.path, "[]")) {
      EXPECT_NE(doc.meaning, "") << doc.path << " has no comment in job.proto";
    }
  }
}

TEST(JobReference, TheTemplateIsAValidJob) {
  const JobFile file = ParseJobYaml(JobTemplate());
  for (const JobFileError& error : file.errors)
    ADD_FAILURE() << FormatJobFileError("template", error);
}

// The template with the optional lines on that `wanted` names by their keys.
std::string TemplateWith(const std::function<bool(absl::string_view key)>& wanted) {
  std::string text;
  for (absl::string_view line : absl::StrSplit(JobTemplate(), '\n')) {
    std::string copy(line);
    const size_t mark = copy.find("# ");
    const bool whole_comment =
        absl::StartsWith(copy, "# A job") || absl::StartsWith(copy, "# Lines");
    const absl::string_view key = line.substr(mark == std::string::npos ? 0 : mark + 2);
    if (!whole_comment && mark != std::string::npos && copy.find_first_not_of(' ') == mark &&
        wanted(key.substr(0, key.find(':'))))
      copy.erase(mark, 2);
    absl::StrAppend(&text, copy, "\n");
  }
  return text;
}

TEST(JobReference, TheTemplateIsValidWithEveryOptionalLineOn) {
  // Phases have schedules of their own, inputs and classes are of another family; the others are
  // not built yet.
  const std::set<absl::string_view> left_out = {"phases", "cells", "cell_rounds", "inputs",
                                                "classes"};
  const std::string text =
      TemplateWith([&](absl::string_view key) { return left_out.count(key) == 0; });
  const JobFile file = ParseJobYaml(text);
  for (const JobFileError& error : file.errors)
    ADD_FAILURE() << FormatJobFileError("template", error) << "\n" << text;
}

TEST(JobReference, ThePhasesOfTheTemplateAreValid) {
  const std::string text = TemplateWith([](absl::string_view key) { return key == "phases"; });
  const JobFile file = ParseJobYaml(text);
  for (const JobFileError& error : file.errors)
    ADD_FAILURE() << FormatJobFileError("template", error) << "\n" << text;
  EXPECT_EQ(file.job.phases_size(), 3);
  EXPECT_EQ(file.job.phases(2).alpha(), 0.5);
}

}  // namespace
}  // namespace isthmus::cli
