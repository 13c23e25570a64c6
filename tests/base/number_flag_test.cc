#include "base/number_flag.h"

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace isthmus {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class NumberFlag : public testing::Test {
 protected:
  NumberFlag() {
    Whole(app_.add_option("--small", small_), 1, 1000);
    Whole(app_.add_option("--step", step_), 0, uint64_t{1} << 40)->type_name("STEP");
    Whole(app_.add_option("--seed", seed_), 0);
    Whole(app_.add_option("--seeds", seeds_)->delimiter(','), 0, 100);
    Real(app_.add_option("--share", share_), 0.001, 1000);
  }
  // The error; "" for none.
  std::string Parse(const std::string& name, const std::string& value) {
    try {
      app_.parse(std::vector<std::string>{value, name});  // CLI11 takes them from the end
      return "";
    } catch (const CLI::ParseError& error) {
      return error.what();
    }
  }

  CLI::App app_;
  int small_ = 0;
  std::optional<int64_t> step_;
  uint64_t seed_ = 0;
  std::vector<int> seeds_;
  double share_ = 0;
};

TEST_F(NumberFlag, WholeNumbersAreDecimal) {
  EXPECT_EQ(Parse("--small", "030"), "");
  EXPECT_EQ(small_, 30);
  EXPECT_EQ(Parse("--step", "0000000000000000000000000010"), "");
  EXPECT_EQ(step_, 10);
  EXPECT_EQ(Parse("--step", "0"), "");
  EXPECT_EQ(step_, 0);
  EXPECT_EQ(Parse("--seed", "18446744073709551615"), "");
  EXPECT_EQ(seed_, UINT64_MAX);
  EXPECT_EQ(Parse("--seeds", "1,010,3"), "");
  EXPECT_THAT(seeds_, ElementsAre(1, 10, 3));
}

TEST_F(NumberFlag, AnythingElseIsRefusedByName) {
  for (const char* flag : {"--small", "--step", "--seed", "--seeds"}) {
    for (const char* text : {"0x1e", "+30", " 30", "30 ", "-1", "-30", "1e3", "3.0", "1_000", "0b1",
                             "1'000", "nan", "", "99999999999999999999999", "\xd9\xa3"}) {
      const std::string said = Parse(flag, text);
      EXPECT_THAT(said, HasSubstr(flag)) << text;
    }
  }
  EXPECT_EQ(Parse("--small", "0x1e"),
            "--small: '0x1e' is no whole number from 1 to 1000, written in decimal digits alone");
  EXPECT_THAT(Parse("--small", "0"), HasSubstr("from 1 to 1000"));
  EXPECT_THAT(Parse("--small", "1001"), HasSubstr("from 1 to 1000"));
  EXPECT_THAT(Parse("--step", "1099511627777"), HasSubstr("to 1099511627776"));
  EXPECT_THAT(Parse("--seeds", "1,0x2"), HasSubstr("'0x2'"));
  EXPECT_EQ(small_, 0);
}

TEST_F(NumberFlag, RealsAreFiniteAndInTheirRange) {
  for (const auto& [text, value] : {std::pair<const char*, double>("0.5", 0.5),
                                    {"1e2", 100},
                                    {"1000", 1000},
                                    {".25", 0.25},
                                    {"1e-3", 0.001}}) {
    EXPECT_EQ(Parse("--share", text), "") << text;
    EXPECT_EQ(share_, value) << text;
  }
  for (const char* text :
       {"nan", "inf", "0x1p-1", "1001", "0", "-1", "+1", " 1", "1 ", "1e999", "e", "", "1,5"}) {
    EXPECT_EQ(Parse("--share", text),
              "--share: '" + std::string(text) + "' is no number from 0.001 to 1000");
  }
}

TEST_F(NumberFlag, TheHelpNamesTheRange) {
  const std::string help = app_.help();
  EXPECT_THAT(help, HasSubstr("--step STEP:INT in [0 - 1099511627776]"));
  EXPECT_THAT(help, HasSubstr("--seed UINT  "));
  EXPECT_THAT(help, HasSubstr("FLOAT in [0.001 - 1000]"));
}

}  // namespace
}  // namespace isthmus
