#include "coordinator/cli/job/job_yaml.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/file/read_file.h"
#include "base/status.h"
#include "base/suggest.h"
#include "coordinator/cli/job/job_scalar.h"
#include "coordinator/cli/job/standard_input.h"
#include "coordinator/cli/job/yaml_tree.h"
#include "proto/job/field_error.h"
#include "proto/job/job_defaults.h"

namespace isthmus::cli {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// Checks of the first also read the second: where that was refused they would judge a default.
constexpr std::pair<const char*, const char*> kReads[] = {
    {"compression", "model.hidden"},
    {"compression", "strategy.stages"},
    {"compression.backward", "compression.forward"},
    {"compression.boundaries", "compression.forward"},
    {"compression.boundaries", "compression.backward"},
    {"model.vocabulary", "data.format"},
    {"model.vocabulary", "data.path"},  // its ending is the default format
    {"strategy.stages", "strategy.layers_per_stage"},
    {"strategy", "model.layers"},
    {"phases", "model"},
    {"phases", "recipe"},
    {"phases", "strategy"},
};

std::string Join(absl::string_view path, absl::string_view name) {
  return path.empty() ? std::string(name) : absl::StrCat(path, ".", name);
}

std::vector<std::string> FieldNames(const Descriptor* type) {
  std::vector<std::string> names;
  for (int i = 0; i < type->field_count(); ++i) names.push_back(type->field(i)->name());
  return names;
}

// Every path of the job, for keys that stand in the wrong section.
void CollectPaths(const Descriptor* type, const std::string& path,
                  std::vector<std::pair<std::string, std::string>>* out) {
  for (int i = 0; i < type->field_count(); ++i) {
    const FieldDescriptor* field = type->field(i);
    out->emplace_back(field->name(), path);
    if (field->message_type() != nullptr)
      CollectPaths(field->message_type(), Join(path, field->name()), out);
  }
}

class Mapper {
 public:
  explicit Mapper(JobFile* out) : out_(out) {}

  void Map(const YamlNode& root) {
    if (root.kind == YamlNode::kNull) {
      Error(root, "", "the file is empty; `isthmus job-template` prints one to start from");
      return;
    }
    MapMessage(root, &out_->job, "");
  }

  // After Map: one --set. Its value is what could stand behind the key in a file.
  void Set(const std::string& setting) {
    flag_ = absl::StrCat("--set ", Shown(setting));
    const size_t equals = setting.find('=');
    const std::string path = setting.substr(0, equals);
    YamlNode value;
    if (equals == std::string::npos || path.empty()) {
      Error(value, "", "must be PATH=VALUE, such as recipe.steps=10");
    } else if (const auto error = ParseYaml(setting.substr(equals + 1), &value)) {
      Error(value, "", error->message);
    } else {
      SetField(path, value);
    }
    flag_.clear();
  }

  // At the end: defaults and the checks of proto/job/job_defaults.h, skipping what errors of the
  // mapping would only repeat.
  void Validate() {
    FillDefaults(&out_->job);
    for (const absl::Status& status : JobErrors(out_->job)) {
      FieldFault fault = FaultOf(status);
      if (!Failed(fault.field)) Add(std::move(fault));
    }
    std::stable_sort(out_->errors.begin(), out_->errors.end(),
                     [](const JobFileError& a, const JobFileError& b) {
                       return std::make_tuple(!a.flag.empty(), a.line, a.column) <
                              std::make_tuple(!b.flag.empty(), b.line, b.column);
                     });
    for (const auto& [path, place] : places_)
      out_->places[path] = {place.line, place.column, path, "", place.flag};
  }

 private:
  struct Place {
    int line;
    int column;
    std::string flag;
  };

  void Error(const YamlNode& at, const std::string& path, std::string message) {
    if (!path.empty() || flag_.empty()) failed_.insert(path);
    Keep({at.line, at.column, path, std::move(message), flag_});
  }
  void Keep(JobFileError error) {
    if (out_->errors.size() < kMaxJobErrors) {
      out_->errors.push_back(std::move(error));
    } else {
      ++out_->more_errors;
    }
  }

  void SetField(const std::string& path, const YamlNode& value) {
    Message* message = &out_->job;
    std::string so_far;
    const std::vector<std::string> keys = absl::StrSplit(path, '.');
    for (size_t i = 0; i < keys.size(); ++i) {
      const FieldDescriptor* field = message->GetDescriptor()->FindFieldByName(keys[i]);
      if (field == nullptr) {
        UnknownKey(value, keys[i], message->GetDescriptor(), so_far);
        return;
      }
      so_far = Join(so_far, field->name());
      if (i + 1 == keys.size()) {
        message->GetReflection()->ClearField(message, field);
        places_[so_far] = {1, 1, flag_};
        MapField(value, field, message, so_far);
      } else if (field->message_type() == nullptr || field->is_repeated()) {
        Error(value, so_far,
              field->is_repeated()
                  ? absl::StrCat("is a list; give all of it, as in ", so_far,
                                 field->message_type() == nullptr ? "=[2, 4]" : "=[{...}, {...}]")
                  : absl::StrCat("is no section, so it has no '", Shown(keys[i + 1]), "'"));
        return;
      } else {
        message = message->GetReflection()->MutableMessage(message, field);
      }
    }
  }

  // `path` is `above`, or stands below it.
  static bool IsBelow(absl::string_view path, absl::string_view above) {
    return above.empty() || (absl::ConsumePrefix(&path, above) &&
                             (path.empty() || path[0] == '.' || path[0] == '['));
  }

  // What the checks say of `path` would follow from an error that was named already.
  bool Failed(const std::string& path) const {
    for (const std::string& failed : failed_) {
      if (IsBelow(path, failed) || IsBelow(failed, path)) return true;
      for (const auto& [checked, read] : kReads) {
        if (IsBelow(path, checked) && IsBelow(failed, read)) return true;
      }
    }
    for (const std::string& meant : meant_) {
      if (IsBelow(path, meant) && places_.count(meant) == 0) return true;
    }
    return false;
  }

  // An error of JobErrors: finds its line, or that of the section the field should stand in.
  void Add(FieldFault fault) {
    JobFileError error{0, 0, std::move(fault.field), std::move(fault.what), ""};
    auto place = places_.find(error.path);
    if (place == places_.end()) {
      if (!fault.allowed.empty())
        error.message = absl::StrCat("missing; it must be ", fault.allowed);
      const size_t dot = error.path.rfind('.');
      place = places_.find(dot == std::string::npos ? std::string() : error.path.substr(0, dot));
    }
    error.line = place == places_.end() ? 1 : place->second.line;
    error.column = place == places_.end() ? 1 : place->second.column;
    if (place != places_.end()) error.flag = place->second.flag;
    Keep(std::move(error));
  }

  void MapMessage(const YamlNode& node, Message* message, const std::string& path) {
    const Descriptor* type = message->GetDescriptor();
    if (node.kind == YamlNode::kNull) return;  // `strategy:` with nothing under it: all defaults
    if (node.kind != YamlNode::kMap) {
      Error(node, path,
            absl::StrCat(path.empty() ? "a job file" : "this",
                         " is a section of `key: value` lines with the keys ",
                         absl::StrJoin(FieldNames(type), ", ")));
      return;
    }
    std::map<std::string, int> seen;
    for (const auto& [key, value] : node.entries) {
      if (key.kind != YamlNode::kScalar) {
        Error(key, path, "a key must be a plain word");
        continue;
      }
      const FieldDescriptor* field = type->FindFieldByName(key.scalar);
      if (field == nullptr) {
        UnknownKey(key, key.scalar, type, path);
        continue;
      }
      const std::string field_path = Join(path, field->name());
      const auto [first, inserted] = seen.emplace(field->name(), key.line);
      if (!inserted) {
        Error(key, field_path, absl::StrCat("given twice; the first is in line ", first->second));
        continue;
      }
      const YamlNode& at = value.kind == YamlNode::kScalar ? value : key;
      places_[field_path] = {at.line, at.column, flag_};
      if (value.kind == YamlNode::kNull &&
          (field->is_repeated() || field->message_type() == nullptr)) {
        Error(key, field_path,
              absl::StrCat("has no value; it must be ",
                           field->is_repeated() ? "a list, each item " : "", TypeInWords(field),
                           " (or delete the line)"));
        continue;
      }
      MapField(value, field, message, field_path);
    }
  }

  void UnknownKey(const YamlNode& at, const std::string& key, const Descriptor* type,
                  const std::string& path) {
    std::string meant;
    Error(at, Join(path, Shown(key)), UnknownKeyWords(key, type, path, &meant));
    if (!meant.empty()) meant_.insert(meant);
  }

  // `meant`: the path of the key that is nearest, if any.
  static std::string UnknownKeyWords(const std::string& key, const Descriptor* type,
                                     const std::string& path, std::string* meant) {
    const std::vector<std::string> here = FieldNames(type);
    const std::string near = Nearest(key, here);
    if (!near.empty()) {
      *meant = Join(path, near);
      return absl::StrCat("unknown key; did you mean '", near, "'?");
    }
    std::vector<std::pair<std::string, std::string>> all;
    CollectPaths(JobSpec::descriptor(), "", &all);
    std::vector<std::string> names;
    for (const auto& [name, section] : all) names.push_back(name);
    const std::string elsewhere = Nearest(key, names);
    for (const auto& [name, section] : all) {
      if (name != elsewhere || elsewhere.empty()) continue;
      *meant = Join(section, name);
      return absl::StrCat(
          "unknown key here; '", name, "' belongs ",
          section.empty() ? "at the top of the file" : absl::StrCat("under '", section, ":'"));
    }
    const std::string hint =
        absl::StrContains(key, ')') ? " (a codec with commas inside { } needs quotes)" : "";
    return absl::StrCat("unknown key", hint, "; the keys here are ", absl::StrJoin(here, ", "));
  }

  void MapField(const YamlNode& node, const FieldDescriptor* field, Message* message,
                const std::string& path) {
    if (!field->is_repeated()) {
      if (field->message_type() != nullptr) {
        MapMessage(node, message->GetReflection()->MutableMessage(message, field), path);
      } else {
        MapScalar(node, field, message, path);
      }
      return;
    }
    if (node.kind != YamlNode::kList) {
      Error(node, path,
            absl::StrCat("must be a list, such as ",
                         field->message_type() ? "lines that start with '- '" : "[1, 2]",
                         "; each item is ", TypeInWords(field)));
      return;
    }
    for (size_t i = 0; i < node.items.size(); ++i) {
      const std::string item_path = absl::StrCat(path, "[", i, "]");
      places_[item_path] = {node.items[i].line, node.items[i].column, flag_};
      if (field->message_type() != nullptr) {
        MapMessage(node.items[i], message->GetReflection()->AddMessage(message, field), item_path);
      } else {
        MapScalar(node.items[i], field, message, item_path);
      }
    }
  }

  void MapScalar(const YamlNode& node, const FieldDescriptor* field, Message* message,
                 const std::string& path) {
    if (node.kind == YamlNode::kNull) {
      Error(node, path, absl::StrCat("has no value; it must be ", TypeInWords(field)));
      return;
    }
    if (node.kind != YamlNode::kScalar) {
      Error(node, path,
            absl::StrCat("must be ", TypeInWords(field), ", not a ",
                         node.kind == YamlNode::kList ? "list" : "section"));
      return;
    }
    const bool text_field = field->cpp_type() == FieldDescriptor::CPPTYPE_STRING;
    if (node.quoted && !text_field) {
      Error(node, path,
            absl::StrCat("must be ", TypeInWords(field), ", but it stands in quotes; write ",
                         Shown(node.scalar), " without them"));
      return;
    }
    const absl::Status status = SetScalar(node.scalar, field, message);
    if (!status.ok()) Error(node, path, std::string(status.message()));
  }

  JobFile* const out_;
  std::string flag_;  // the --set that is being mapped
  std::map<std::string, Place> places_;
  std::set<std::string> failed_;  // paths of errors; "" fails all
  std::set<std::string> meant_;   // paths that an unknown key was probably meant for
};

}  // namespace

std::string FormatJobFileError(absl::string_view file, const JobFileError& error) {
  const std::string place =
      error.flag.empty() ? absl::StrCat(file, ":", error.line, ":", error.column) : error.flag;
  return absl::StrCat(place, ": ", error.path, error.path.empty() ? "" : ": ", error.message);
}

std::string MoreErrors(size_t more) {
  return more == 0 ? "" : absl::StrCat("and ", more, more == 1 ? " more error" : " more errors");
}

JobFile ParseJobYaml(absl::string_view text, const JobSettings& settings) {
  JobFile file;
  YamlNode root;
  if (const std::optional<YamlError> error = ParseYaml(text, &root)) {
    file.errors.push_back({error->line, error->column, "", error->message, ""});
    return file;
  }
  Mapper mapper(&file);
  mapper.Map(root);
  for (const std::string& setting : settings) mapper.Set(setting);
  mapper.Validate();
  return file;
}

void ResolveInitFrom(const JobSource& source, JobSpec* job) {
  const std::filesystem::path dir = job->model().init_from();
  if (dir.empty()) return;
  const std::filesystem::path file = source.file == kStandardInput ? "" : source.file;
  std::error_code error;
  const auto absolute = std::filesystem::absolute(file.parent_path() / dir, error);
  if (!error) job->mutable_model()->set_init_from(absolute.lexically_normal().string());
}

std::string JobFileName(const JobSource& source) {
  return source.file == kStandardInput ? kStandardInputName : source.file;
}

absl::StatusOr<std::string> ReadJobText(const JobSource& source) {
  if (source.file == kStandardInput) return ReadStandardInput(kMaxYamlBytes + 1);
  const absl::StatusOr<std::string> text = ReadFileHead(source.file, kMaxYamlBytes + 1);
  if (text.ok()) return text;
  return absl::Status(
      text.status().code(),
      absl::StrCat(
          "the job file: ", text.status().message(),
          absl::IsInvalidArgument(text.status()) ? "; '-' in its place reads standard input" : ""));
}

absl::StatusOr<JobSpec> ReadJobFile(const JobSource& source) {
  ASSIGN_OR_RETURN(const std::string text, ReadJobText(source));
  JobFile file = ParseJobYaml(text, source.settings);
  if (file.errors.empty()) {
    ResolveInitFrom(source, &file.job);
    return std::move(file.job);
  }
  std::vector<std::string> lines;
  for (const JobFileError& error : file.errors)
    lines.push_back(FormatJobFileError(JobFileName(source), error));
  if (file.more_errors > 0) lines.push_back(MoreErrors(file.more_errors));
  return absl::InvalidArgumentError(absl::StrJoin(lines, "\n"));
}

}  // namespace isthmus::cli
