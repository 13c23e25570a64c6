#include "coordinator/cli/job/job_yaml.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "coordinator/cli/job/standard_input.h"
#include "coordinator/cli/job/yaml_tree.h"
#include "coordinator/cli/suggest.h"
#include "proto/job/job_defaults.h"

namespace isthmus::cli {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

constexpr size_t kMaxTextBytes = 4096;
constexpr double kMaxExact = 9007199254740992.0;  // 2^53

std::string Shown(absl::string_view text) {
  return text.size() <= 60 ? std::string(text) : absl::StrCat(text.substr(0, 57), "...");
}

std::string Join(absl::string_view path, absl::string_view name) {
  return path.empty() ? std::string(name) : absl::StrCat(path, ".", name);
}

bool IsBytes(const FieldDescriptor* field) { return absl::EndsWith(field->name(), "_bytes"); }
bool IsShare(const FieldDescriptor* field) { return absl::EndsWith(field->name(), "_share"); }

std::string TypeInWords(const FieldDescriptor* field) {
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return "true or false";
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return IsShare(field) ? "a number such as 0.05, or a percentage such as 5%" : "a number";
    case FieldDescriptor::CPPTYPE_STRING:
      return "a text";
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return "a section";
    default:
      return IsBytes(field) ? "a size such as 256MiB" : "a whole number";
  }
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

  // At the end: defaults and the checks of proto/job/job_defaults.h, skipping what a section with
  // errors would only repeat.
  void Validate() {
    FillDefaults(&out_->job);
    for (const absl::Status& status : JobErrors(out_->job)) {
      const absl::string_view message = status.message();
      const size_t colon = message.find(": ");
      const std::string path(message.substr(0, colon));
      if (colon == absl::string_view::npos || SectionFailed(path)) continue;
      Add({0, 0, path, std::string(message.substr(colon + 2)), ""});
    }
    std::stable_sort(out_->errors.begin(), out_->errors.end(),
                     [](const JobFileError& a, const JobFileError& b) {
                       return std::make_tuple(!a.flag.empty(), a.line, a.column) <
                              std::make_tuple(!b.flag.empty(), b.line, b.column);
                     });
    if (out_->errors.size() > kMaxJobErrors) out_->errors.resize(kMaxJobErrors);
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
    failed_.insert(path.substr(0, path.find('.')));
    if (out_->errors.size() < kMaxJobErrors)
      out_->errors.push_back({at.line, at.column, path, std::move(message), flag_});
  }

  void SetField(const std::string& path, const YamlNode& value) {
    Message* message = &out_->job;
    std::string so_far;
    const std::vector<std::string> keys = absl::StrSplit(path, '.');
    for (size_t i = 0; i < keys.size(); ++i) {
      const FieldDescriptor* field = message->GetDescriptor()->FindFieldByName(keys[i]);
      if (field == nullptr) {
        Error(value, Join(so_far, Shown(keys[i])),
              UnknownKey(keys[i], message->GetDescriptor(), so_far));
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
                  ? std::string("is a list; give all of it, as in strategy.layers_per_stage=[2, 4]")
                  : absl::StrCat("is no section, so it has no '", Shown(keys[i + 1]), "'"));
        return;
      } else {
        message = message->GetReflection()->MutableMessage(message, field);
      }
    }
  }

  bool SectionFailed(const std::string& path) const {
    const std::string section = path.substr(0, path.find('.'));
    if (failed_.count("") > 0 || failed_.count(section) > 0) return true;
    // The checks of these sections also read another one.
    return (section == "strategy" && failed_.count("model") > 0) ||
           (section == "model" && failed_.count("data") > 0);
  }

  // An error of JobErrors: finds its line, or that of the section the field should stand in.
  void Add(JobFileError error) {
    auto place = places_.find(error.path);
    if (place == places_.end()) {
      const size_t allowed = error.message.find("it must be ");
      if (allowed != std::string::npos)
        error.message = absl::StrCat("missing; ", error.message.substr(allowed));
      const size_t dot = error.path.rfind('.');
      place = places_.find(dot == std::string::npos ? std::string() : error.path.substr(0, dot));
    }
    error.line = place == places_.end() ? 1 : place->second.line;
    error.column = place == places_.end() ? 1 : place->second.column;
    if (place != places_.end()) error.flag = place->second.flag;
    out_->errors.push_back(std::move(error));
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
        Error(key, Join(path, Shown(key.scalar)), UnknownKey(key.scalar, type, path));
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

  std::string UnknownKey(const std::string& key, const Descriptor* type, const std::string& path) {
    const std::vector<std::string> here = FieldNames(type);
    const std::string near = Nearest(key, here);
    if (!near.empty()) return absl::StrCat("unknown key; did you mean '", near, "'?");
    std::vector<std::pair<std::string, std::string>> all;
    CollectPaths(JobSpec::descriptor(), "", &all);
    std::vector<std::string> names;
    for (const auto& [name, section] : all) names.push_back(name);
    const std::string elsewhere = Nearest(key, names);
    for (const auto& [name, section] : all) {
      if (name != elsewhere || elsewhere.empty()) continue;
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

  static absl::Status Wrong(absl::string_view text, const FieldDescriptor* field) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", Shown(text), "' is not ", TypeInWords(field)));
  }

  static absl::Status SetScalar(const std::string& text, const FieldDescriptor* field,
                                Message* message) {
    const auto* reflection = message->GetReflection();
    const bool list = field->is_repeated();
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_STRING:
        if (text.size() > kMaxTextBytes) {
          return absl::InvalidArgumentError(
              absl::StrCat("has ", text.size(), " bytes; at most ", kMaxTextBytes));
        }
        list ? reflection->AddString(message, field, text)
             : reflection->SetString(message, field, text);
        return absl::OkStatus();
      case FieldDescriptor::CPPTYPE_BOOL:
        if (text != "true" && text != "false") return Wrong(text, field);
        reflection->SetBool(message, field, text == "true");
        return absl::OkStatus();
      case FieldDescriptor::CPPTYPE_DOUBLE: {
        absl::string_view digits = text;
        const bool percent = absl::ConsumeSuffix(&digits, "%");
        double value = 0;
        if ((percent && !IsShare(field)) || !absl::SimpleAtod(digits, &value) ||
            !std::isfinite(value))
          return Wrong(text, field);
        reflection->SetDouble(message, field, percent ? value / 100 : value);
        return absl::OkStatus();
      }
      case FieldDescriptor::CPPTYPE_INT32: {
        ASSIGN_OR_RETURN(const int64_t value, ParseWholeNumber(text));
        if (value < std::numeric_limits<int32_t>::min() ||
            value > std::numeric_limits<int32_t>::max()) {
          return absl::InvalidArgumentError(absl::StrCat(value, " is too large for this field"));
        }
        list ? reflection->AddInt32(message, field, static_cast<int32_t>(value))
             : reflection->SetInt32(message, field, static_cast<int32_t>(value));
        return absl::OkStatus();
      }
      case FieldDescriptor::CPPTYPE_INT64: {
        ASSIGN_OR_RETURN(const int64_t value,
                         IsBytes(field) ? ParseByteSize(text) : ParseWholeNumber(text));
        reflection->SetInt64(message, field, value);
        return absl::OkStatus();
      }
      case FieldDescriptor::CPPTYPE_UINT64: {
        uint64_t value = 0;
        if (absl::StartsWith(text, "+") || !absl::SimpleAtoi(text, &value)) {
          ASSIGN_OR_RETURN(const int64_t parsed, ParseWholeNumber(text));
          if (parsed < 0)
            return absl::InvalidArgumentError(
                absl::StrCat(parsed, " is negative; it must be 0 or more"));
          value = static_cast<uint64_t>(parsed);
        }
        reflection->SetUInt64(message, field, value);
        return absl::OkStatus();
      }
      default:
        return absl::UnimplementedError(
            absl::StrCat("field type ", field->cpp_type_name(), " in job files"));
    }
  }

  JobFile* const out_;
  std::string flag_;  // the --set that is being mapped
  std::map<std::string, Place> places_;
  std::set<std::string> failed_;  // first parts of the paths of errors
};

}  // namespace

std::string FormatJobFileError(absl::string_view file, const JobFileError& error) {
  const std::string place =
      error.flag.empty() ? absl::StrCat(file, ":", error.line, ":", error.column) : error.flag;
  return absl::StrCat(place, ": ", error.path, error.path.empty() ? "" : ": ", error.message);
}

absl::StatusOr<int64_t> ParseWholeNumber(absl::string_view text) {
  int64_t value = 0;
  const bool plain = text.find_first_not_of("0123456789.eE+-") == absl::string_view::npos &&
                     !absl::StartsWith(text, "+");
  if (plain && absl::SimpleAtoi(text, &value)) return value;
  double real = 0;
  if (!plain || !absl::SimpleAtod(text, &real) || !std::isfinite(real)) {
    return absl::InvalidArgumentError(absl::StrCat("'", Shown(text), "' is not a whole number"));
  }
  if (real != std::floor(real))
    return absl::InvalidArgumentError(absl::StrCat("must be a whole number, not ", Shown(text)));
  if (std::abs(real) > kMaxExact)
    return absl::InvalidArgumentError(absl::StrCat(Shown(text), " is too large"));
  return static_cast<int64_t>(real);
}

absl::StatusOr<int64_t> ParseByteSize(absl::string_view text) {
  const size_t unit_at = std::min(text.find_first_not_of("0123456789.eE+-"), text.size());
  const absl::string_view digits = text.substr(0, unit_at);
  const absl::string_view unit = absl::StripAsciiWhitespace(text.substr(unit_at));
  static const std::map<absl::string_view, double> kUnits = {{"", 1},
                                                             {"B", 1},
                                                             {"kB", 1e3},
                                                             {"KB", 1e3},
                                                             {"MB", 1e6},
                                                             {"GB", 1e9},
                                                             {"TB", 1e12},
                                                             {"KiB", 1024.0},
                                                             {"MiB", 1048576.0},
                                                             {"GiB", 1073741824.0},
                                                             {"TiB", 1099511627776.0}};
  const auto factor = kUnits.find(unit);
  double value = 0;
  if (factor == kUnits.end() || !absl::SimpleAtod(digits, &value) || !std::isfinite(value)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", Shown(text), "' is not a size; write bytes or a unit: 1048576, 512KiB, 256MiB, 2GB"));
  }
  const double bytes = std::round(value * factor->second);
  if (bytes < 0 || bytes > kMaxExact)
    return absl::InvalidArgumentError(absl::StrCat(Shown(text), " is out of range"));
  return static_cast<int64_t>(bytes);
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
  std::ifstream in(source.file, std::ios::binary);
  if (!in)
    return absl::NotFoundError(
        absl::StrCat("can't open the job file ", source.file, ": ", std::strerror(errno)));
  std::string text(kMaxYamlBytes + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (in.bad() || (in.fail() && !in.eof()))
    return absl::NotFoundError(
        absl::StrCat("can't read the job file ", source.file, ": ", std::strerror(errno)));
  text.resize(static_cast<size_t>(in.gcount()));
  return text;
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
  if (file.errors.size() >= kMaxJobErrors) lines.push_back("(there may be more)");
  return absl::InvalidArgumentError(absl::StrJoin(lines, "\n"));
}

}  // namespace isthmus::cli
