// A directory of its own for a test, gone at its end. Thread: one owner.
#ifndef ISTHMUS_TESTS_COORDINATOR_SCRATCH_H_
#define ISTHMUS_TESTS_COORDINATOR_SCRATCH_H_

#include <cstdlib>
#include <filesystem>
#include <string>

namespace isthmus::coordinator {

class Scratch {
 public:
  Scratch() {
    std::string name = (std::filesystem::temp_directory_path() / "isthmus-test-XXXXXX").string();
    dir_ = ::mkdtemp(name.data());
  }
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(dir_, ignored);
  }
  const std::string& dir() const { return dir_; }

 private:
  std::string dir_;
};

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_TESTS_COORDINATOR_SCRATCH_H_
