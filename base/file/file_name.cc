#include "base/file/file_name.h"

#include <algorithm>

#include "absl/strings/ascii.h"

namespace isthmus {

bool IsFileName(absl::string_view name) {
  return !name.empty() && name.size() <= kMaxFileNameBytes && name[0] != '.' &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' ||
                  c == '.';
         });
}

}  // namespace isthmus
