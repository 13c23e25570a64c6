#include "proto/job/job_names.h"

#include <set>

#include "absl/strings/str_cat.h"
#include "proto/job/field_error.h"

namespace isthmus {

absl::Status CheckJobName(const std::string& name) {
  bool good = !name.empty() && name.size() <= 63 && name[0] != '-';
  for (char c : name) good = good && ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-');
  if (good) return absl::OkStatus();
  return NotAllowed("name", name.substr(0, 80),
                    "1-63 lower-case letters, digits and '-', and not begin with '-'");
}

std::vector<absl::Status> NodeNameErrors(const StrategySpec& strategy) {
  std::vector<absl::Status> errors;
  std::set<std::string> named;
  for (const std::string& node : strategy.nodes()) {
    if (node.empty()) {
      errors.push_back(NotAllowed("strategy.nodes", "", "the name of a daemon (isthmus nodes)"));
    } else if (!named.insert(node).second) {
      errors.push_back(
          FieldError("strategy.nodes",
                     absl::StrCat("'", node.substr(0, 80),
                                  "' is there twice; a daemon holds one stage: name another one")));
    }
  }
  return errors;
}

}  // namespace isthmus
