// A directory that goes with its owner.
#ifndef ISTHMUS_TESTS_COMPRESS_TEMP_DIRECTORY_H_
#define ISTHMUS_TESTS_COMPRESS_TEMP_DIRECTORY_H_

#include <stdlib.h>

#include <filesystem>
#include <string>

namespace isthmus::compress {

class TempDirectory {
 public:
  TempDirectory()
      : path_((std::filesystem::temp_directory_path() / "isthmus-compress-XXXXXX").string()) {
    if (mkdtemp(path_.data()) == nullptr) abort();
  }
  ~TempDirectory() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace isthmus::compress

#endif  // ISTHMUS_TESTS_COMPRESS_TEMP_DIRECTORY_H_
