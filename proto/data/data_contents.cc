#include "proto/data/data_contents.h"

#include <map>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "base/hash.h"
#include "proto/data/data_files.h"

namespace isthmus {

uint64_t DataContents(const DataSpec& data,
                      const google::protobuf::RepeatedPtrField<DataFile>& listed) {
  const std::string path = NormalDataPath(data.path());
  const std::string prefix = path.empty() ? "" : path + "/";
  std::map<std::string, uint64_t> files;  // by the name below data.path
  for (const DataFile& file : listed) {
    if (file.path() == path) return file.contents();
    absl::string_view name = file.path();
    if (absl::ConsumePrefix(&name, prefix) && !absl::StrContains(name, '/') && IsShard(name))
      files[std::string(name)] = file.contents();
  }
  Hasher hasher;
  for (const auto& [name, contents] : files) {
    if (contents == 0) return 0;
    hasher.Update(name.c_str(), name.size() + 1);
    hasher.Update(&contents, sizeof contents);
  }
  return files.empty() ? 0 : hasher.Digest();
}

}  // namespace isthmus
