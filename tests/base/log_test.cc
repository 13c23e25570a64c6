#include "base/log.h"

#include <fstream>
#include <string>

#include "base/utf8.h"
#include "gtest/gtest.h"
#include "tests/temp_directory.h"

namespace isthmus {
namespace {

// A reader of JSON lines gives up at bytes that are not UTF-8.
TEST(Log, JsonLinesAreUtf8WhateverAFileIsCalled) {
  TempDirectory directory;
  LogOptions options;
  options.program = "test";
  options.json = true;
  options.file = directory.path() + "/log";
  InitLogging(options);
  LogWarning("can't open B\xfc", "cher.txt \"quoted\"");
  InitLogging(LogOptions{"test"});
  std::ifstream in(directory.path() + "/log");
  std::string line;
  ASSERT_TRUE(std::getline(in, line));
  EXPECT_TRUE(IsUtf8(line)) << line;
  EXPECT_NE(line.find("can't open B\xef\xbf\xbd"
                      "cher.txt \\\"quoted\\\"\"}"),
            std::string::npos)
      << line;
}

}  // namespace
}  // namespace isthmus
