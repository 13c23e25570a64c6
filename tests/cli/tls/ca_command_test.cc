#include "coordinator/cli/tls/ca_command.h"

#include "coordinator/cli/exit_code.h"
#include "coordinator/cli/testnet/testnet_flags.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/cli/app_fixture.h"
#include "tests/temp_directory.h"

namespace isthmus::cli {
namespace {

using testing::HasSubstr;

class CaCommandTest : public testing::Test {
 protected:
  Result Ca(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "ca");
    arguments.insert(arguments.end(), {"--dir", dir_ + "/ca"});
    return RunCommand(std::move(arguments));
  }

  const TempDirectory scratch_;
  const std::string dir_ = scratch_.path();
};

TEST_F(CaCommandTest, MakesIssuesListsAndRevokes) {
  const Result made = Ca({"init"});
  EXPECT_EQ(made.code, kExitOk) << made.err;
  EXPECT_THAT(made.out, HasSubstr("next: isthmus ca issue coordinator --role coordinator"));
  EXPECT_EQ(Ca({"init"}).code, kExitRefused);
  const Result issued = Ca({"issue", "home-pc", "--role", "worker", "--days", "30"});
  EXPECT_EQ(issued.code, kExitOk) << issued.err;
  EXPECT_THAT(issued.out, HasSubstr("/certificates/home-pc: certificate of home-pc (worker)"));
  EXPECT_THAT(issued.out, HasSubstr("start isthmusd with --tls-dir FOLDER there"));
  const auto viewer = nlohmann::json::parse(
      Ca({"issue", "ada", "--role", "viewer", "--out", dir_ + "/ada", "--json"}).out);
  EXPECT_EQ(viewer["folder"], dir_ + "/ada");
  EXPECT_EQ(viewer["role"], "viewer");

  EXPECT_THAT(Ca({"list"}).out, HasSubstr("holds until 20"));
  const Result revoked = Ca({"revoke", "home-pc"});
  EXPECT_EQ(revoked.code, kExitOk) << revoked.err;
  EXPECT_THAT(revoked.out, HasSubstr("revoked home-pc (worker), serial "));
  EXPECT_THAT(revoked.out, HasSubstr("into the coordinator's --tls-dir"));
  const auto list = nlohmann::json::parse(Ca({"list", "--json"}).out);
  ASSERT_EQ(list["certificates"].size(), 2u);
  EXPECT_EQ(list["certificates"][0]["name"], "ada");
  EXPECT_EQ(list["certificates"][0]["state"], "holds");
  EXPECT_EQ(list["certificates"][1]["state"], "revoked");
  EXPECT_EQ(Ca({"revoke", "home-pc"}).code, kExitOk) << "a second time does no harm";
  ASSERT_EQ(Ca({"issue", "hub", "--role", "coordinator"}).code, kExitOk);
  EXPECT_THAT(Ca({"revoke", "hub"}).out,
              HasSubstr("the command lines of people do not see the list"));
}

TEST_F(CaCommandTest, SaysWhatIsMissing) {
  EXPECT_THAT(Ca({"list"}).err, HasSubstr("holds no certificate authority"));
  ASSERT_EQ(Ca({"init"}).code, kExitOk);
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"issu", "a"}, "did you mean 'issue'?"},
      {{"issue", "a"}, "wants NAME and --role ROLE"},
      {{"issue", "--role", "worker"}, "wants NAME and --role ROLE"},
      {{"issue", "a", "--role", "root"}, "--role: there is no role 'root'"},
      {{"issue", "A", "--role", "worker"}, "can't be the name in a certificate"},
      {{"revoke"}, "wants NAME or a serial"},
      {{"init", "a"}, "takes no NAME"},
      {{"revoke", "a"}, "isthmus ca list shows them"},
  };
  for (const auto& [arguments, words] : cases) {
    const Result result = Ca(arguments);
    EXPECT_EQ(result.code, kExitUsage) << words;
    EXPECT_THAT(result.err, HasSubstr(words));
  }
}

}  // namespace
}  // namespace isthmus::cli
