#include "coordinator/cli/job/yaml_tree.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include <sstream>

#include "absl/strings/str_cat.h"
#include "base/utf8.h"

namespace isthmus::cli {
namespace {

struct Refused {  // thrown through yaml-cpp's parser, caught in ParseYaml
  YamlError error;
};

[[noreturn]] void Refuse(const YAML::Mark& mark, std::string message) {
  throw Refused{{mark.line + 1, mark.column + 1, std::move(message)}};
}

class TreeBuilder : public YAML::EventHandler {
 public:
  explicit TreeBuilder(YamlNode* root) : root_(root) {}

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    Check(mark, "", anchor);
    Place(Node(mark, YamlNode::kNull));
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    Refuse(mark, "aliases (*name) are not used in job files: write the value out");
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    Check(mark, tag, anchor);
    if (!IsUtf8(value)) Refuse(mark, "not UTF-8: save the file in that encoding");
    YamlNode node = Node(mark, YamlNode::kScalar);
    node.scalar = value;
    node.quoted = tag == "!";
    Place(std::move(node));
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    Check(mark, tag, anchor);
    Open(Node(mark, YamlNode::kList));
  }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    Check(mark, tag, anchor);
    Open(Node(mark, YamlNode::kMap));
  }
  void OnSequenceEnd() override { CloseTop(); }
  void OnMapEnd() override { CloseTop(); }

 private:
  // A list or map being filled. `key` is the map's key still without its value.
  struct Level {
    YamlNode node;
    std::optional<YamlNode> key;
  };

  static YamlNode Node(const YAML::Mark& mark, YamlNode::Kind kind) {
    YamlNode node;
    node.kind = kind;
    node.line = mark.line + 1;
    node.column = mark.column + 1;
    return node;
  }

  void Check(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) {
    if (anchor != YAML::NullAnchor)
      Refuse(mark, "anchors (&name) are not used in job files: write the value out");
    if (!tag.empty() && tag != "?" && tag != "!") {
      Refuse(mark, absl::StrCat("tags (", tag.substr(0, 40), ") are not used in job files"));
    }
    if (++nodes_ > kMaxYamlNodes)
      Refuse(mark, absl::StrCat("more than ", kMaxYamlNodes, " values in one file"));
    if (levels_.size() > kMaxYamlDepth) {
      Refuse(mark, absl::StrCat("nested more than ", kMaxYamlDepth,
                                " levels deep; a job file needs three"));
    }
  }

  void Open(YamlNode node) { levels_.push_back({std::move(node), std::nullopt}); }
  void CloseTop() {
    YamlNode done = std::move(levels_.back().node);
    levels_.pop_back();
    Place(std::move(done));
  }
  void Place(YamlNode node) {
    if (levels_.empty()) {
      *root_ = std::move(node);
      return;
    }
    Level& top = levels_.back();
    if (top.node.kind == YamlNode::kList) {
      top.node.items.push_back(std::move(node));
    } else if (!top.key.has_value()) {
      top.key = std::move(node);
    } else {
      top.node.entries.emplace_back(std::move(*top.key), std::move(node));
      top.key.reset();
    }
  }

  YamlNode* const root_;
  std::vector<Level> levels_;
  int nodes_ = 0;
};

}  // namespace

std::optional<YamlError> ParseYaml(absl::string_view text, YamlNode* root) {
  *root = YamlNode();
  if (text.size() > kMaxYamlBytes) {
    return YamlError{1, 1,
                     absl::StrCat("the file is larger than ", kMaxYamlBytes,
                                  " bytes, the most a job file may have")};
  }
  if (text.find('\0') != absl::string_view::npos)
    return YamlError{1, 1, "this is not a text file: it has zero bytes"};
  try {
    std::istringstream in{std::string(text)};
    YAML::Parser parser(in);
    TreeBuilder first(root);
    if (!parser.HandleNextDocument(first)) return std::nullopt;
    YamlNode more;
    TreeBuilder second(&more);
    if (parser.HandleNextDocument(second)) {
      return YamlError{more.line, more.column,
                       "a second document (---) in one file: a job file holds one job"};
    }
  } catch (const Refused& refused) {
    return refused.error;
  } catch (const YAML::Exception& error) {
    return YamlError{error.mark.line + 1, error.mark.column + 1,
                     absl::StrCat("not valid YAML: ", error.msg)};
  } catch (const std::exception& error) {
    return YamlError{1, 1, absl::StrCat("can't be read as YAML: ", error.what())};
  }
  return std::nullopt;
}

}  // namespace isthmus::cli
