#include "worker/study/ist/command.h"

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/study/command.h"

namespace isthmus::study::ist {
namespace {

using testing::HasSubstr;

// Through the command line of isthmus-study, whose word it is.
int Theory(std::vector<const char*> arguments, std::string* out, std::string* err) {
  arguments.insert(arguments.begin(), {"isthmus-study", "ist-theory"});
  char *out_text = nullptr, *err_text = nullptr;
  size_t out_size = 0, err_size = 0;
  FILE* out_file = open_memstream(&out_text, &out_size);
  FILE* err_file = open_memstream(&err_text, &err_size);
  const int code =
      RunCommand(static_cast<int>(arguments.size()), arguments.data(), {}, out_file, err_file);
  std::fclose(out_file);
  std::fclose(err_file);
  out->assign(out_text, out_size);
  err->assign(err_text, err_size);
  std::free(out_text);
  std::free(err_text);
  return code;
}

TEST(IstCommand, PrintsTheTable) {
  std::string out, err;
  ASSERT_EQ(Theory({"--seeds", "1", "--rounds", "2000"}, &out, &err), 0) << out << err;
  EXPECT_THAT(out, HasSubstr("CLOSED FORM"));
  ASSERT_EQ(Theory({"--seeds", "1", "--rounds", "2000", "--json"}, &out, &err), 0) << err;
  EXPECT_GE(nlohmann::json::parse(out).size(), 30U);
}

TEST(IstCommand, RefusesWhatIsNoNumber) {
  std::string out, err;
  EXPECT_EQ(Theory({"--seeds", "0"}, &out, &err), 2);
  EXPECT_THAT(err, HasSubstr("--seeds: '0'"));
  EXPECT_EQ(Theory({"--rounds", "1e3"}, &out, &err), 2);
  EXPECT_EQ(Theory({"job.yaml"}, &out, &err), 2);
  EXPECT_EQ(Theory({"--help"}, &out, &err), 0);
  EXPECT_THAT(out, HasSubstr("arXiv 2306.16484"));
}

}  // namespace
}  // namespace isthmus::study::ist
