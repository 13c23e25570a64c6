// A directory that goes with its owner. Thread: one owner.
#ifndef ISTHMUS_TESTS_TEMP_DIRECTORY_H_
#define ISTHMUS_TESTS_TEMP_DIRECTORY_H_

#include <stdlib.h>

#include <filesystem>
#include <string>
#include <system_error>

namespace isthmus {

class TempDirectory {
 public:
  TempDirectory()
      : path_((std::filesystem::temp_directory_path() / "isthmus-test-XXXXXX").string()) {
    if (mkdtemp(path_.data()) == nullptr) abort();
  }
  ~TempDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDirectory(const TempDirectory&) = delete;
  TempDirectory& operator=(const TempDirectory&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace isthmus

#endif  // ISTHMUS_TESTS_TEMP_DIRECTORY_H_
