// A directory of its own for tests of base/tls, and the moment they take for now. Thread: one
// owner.
#ifndef ISTHMUS_TESTS_BASE_TLS_TLS_DIR_H_
#define ISTHMUS_TESTS_BASE_TLS_TLS_DIR_H_

#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "base/tls/authority.h"
#include "gtest/gtest.h"
#include "tests/temp_directory.h"

namespace isthmus::tls {

class TlsDirTest : public testing::Test {
 protected:
  Issued Issue(const std::string& name, Role role, int days = 365) {
    auto issued = Authority::Open(ca_)->Issue({{name, role}, days, ""}, now_);
    EXPECT_TRUE(issued.ok()) << issued.status();
    return issued.ok() ? *issued : Issued();
  }
  static std::string Read(const std::string& path) {
    std::ifstream in(path);
    std::stringstream text;
    text << in.rdbuf();
    return text.str();
  }
  static int ModeOf(const std::string& path) {
    struct stat info = {};
    EXPECT_EQ(::stat(path.c_str(), &info), 0) << path;
    return static_cast<int>(info.st_mode & 0777);
  }

  const TempDirectory scratch_;
  const std::string dir_ = scratch_.path();
  const std::string ca_ = dir_ + "/ca";
  const absl::Time now_ = absl::FromUnixSeconds(1'800'000'000);
};

}  // namespace isthmus::tls

#endif  // ISTHMUS_TESTS_BASE_TLS_TLS_DIR_H_
