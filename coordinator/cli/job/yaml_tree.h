// YAML text as a plain tree that remembers where everything stands. The only door to yaml-cpp.
// Job files need no anchors, aliases or tags, so those are refused, and with them every way of
// making a small file large. Thread: pure function. Limits: kMaxYamlBytes of text, kMaxYamlDepth
// levels, kMaxYamlNodes values.
#ifndef ISTHMUS_COORDINATOR_CLI_JOB_YAML_TREE_H_
#define ISTHMUS_COORDINATOR_CLI_JOB_YAML_TREE_H_

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace isthmus::cli {

constexpr size_t kMaxYamlBytes = size_t{1} << 20;
constexpr int kMaxYamlDepth = 16;
constexpr int kMaxYamlNodes = 20000;

struct YamlNode {
  enum Kind { kNull, kScalar, kList, kMap };
  Kind kind = kNull;
  std::string scalar;
  bool quoted = false;
  int line = 1;                                        // 1-based
  int column = 1;                                      // 1-based
  std::vector<YamlNode> items;                         // kList
  std::vector<std::pair<YamlNode, YamlNode>> entries;  // kMap, in file order, duplicates kept
};

struct YamlError {
  int line = 1;
  int column = 1;
  std::string message;
};

// The first document of `text` in *root, or the error. Text without a document gives a null root.
std::optional<YamlError> ParseYaml(absl::string_view text, YamlNode* root);

}  // namespace isthmus::cli

#endif  // ISTHMUS_COORDINATOR_CLI_JOB_YAML_TREE_H_
