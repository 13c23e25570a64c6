#include "coordinator/cli/tls/token_command.h"

#include "base/tls/join_token.h"
#include "coordinator/cli/exit_code.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/cli/app_fixture.h"
#include "tests/temp_directory.h"

namespace isthmus::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

class TokenCommandTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(Ca({"init"}).code, kExitOk); }
  Result Ca(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "ca");
    arguments.insert(arguments.end(), {"--dir", scratch_.path() + "/ca"});
    return RunCommand(std::move(arguments));
  }

  const TempDirectory scratch_;
};

TEST_F(TokenCommandTest, MakesListsAndRevokes) {
  EXPECT_THAT(Ca({"token", "list"}).out, HasSubstr("has made no join token yet"));
  const Result made = Ca({"token", "create", "--address", "a:7072", "--address", "b:7072", "--uses",
                          "2", "--name", "gpu-*", "--life", "15m"});
  ASSERT_EQ(made.code, kExitOk) << made.err;
  const auto token = tls::ReadJoinToken(made.out);
  ASSERT_TRUE(token.ok()) << token.status() << ": the output is the token and nothing else";
  EXPECT_EQ(token->addresses, (std::vector<std::string>{"a:7072", "b:7072"}));
  EXPECT_THAT(made.err, HasSubstr("2 hosts may join as gpu-* until"));
  EXPECT_THAT(made.err, HasSubstr("isthmusd --join-file FILE"));

  const auto list = nlohmann::json::parse(Ca({"token", "list", "--json"}).out);
  ASSERT_EQ(list["tokens"].size(), 1u);
  EXPECT_EQ(list["tokens"][0]["state"], "holds");
  EXPECT_EQ(list["tokens"][0]["uses"], 2);
  const std::string id = list["tokens"][0]["id"];
  const std::string words = Ca({"token", "list"}).out;
  EXPECT_THAT(words, HasSubstr(id));
  EXPECT_THAT(words, HasSubstr("0 of 2"));
  EXPECT_THAT(words, Not(HasSubstr("isthmus-join-"))) << "it is shown once";

  const Result revoked = Ca({"token", "revoke", id});
  EXPECT_EQ(revoked.code, kExitOk) << revoked.err;
  EXPECT_THAT(revoked.out, HasSubstr("nobody joins by it any more"));
  EXPECT_THAT(Ca({"token", "list"}).out, HasSubstr("revoked"));
  const auto more = nlohmann::json::parse(
      Ca({"token", "create", "--address", "a:7072", "--json", "--certificate-life", "30d"}).out);
  EXPECT_TRUE(tls::ReadJoinToken(std::string(more["token"])).ok());
  EXPECT_EQ(more["name"], "node-*");
  EXPECT_EQ(more["certificate_life_s"], 30 * 86400);
}

TEST_F(TokenCommandTest, SaysWhatIsWrong) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"token"}, "wants create, list or revoke ID"},
      {{"token", "creat"}, "did you mean 'create'?"},
      {{"token", "create"}, "wants --address HOST:PORT"},
      {{"token", "create", "--address", "a"}, "--address: 'a' has no port"},
      {{"token", "create", "--address", "a:1", "--life", "7"}, "--life '7': must be a time"},
      {{"token", "create", "--address", "a:1", "--life", "-1d"}, "--life '-1d': must be a time"},
      {{"token", "create", "--address", "a:1", "--life", "31d"}, "--life: must be more than"},
      {{"token", "create", "--address", "a:1", "--certificate-life", "366d"}, "10s to 365d"},
      {{"token", "create", "--address", "a:1", "--role", "operator"}, "isthmus ca issue"},
      {{"token", "create", "--address", "a:1", "--role", "root"}, "there is no role 'root'"},
      {{"token", "create", "--address", "a:1", "--name", "Pc"}, "--name 'Pc'"},
      {{"token", "create", "--address", "a:1", "--name", "pc", "--uses", "2"}, "only one host"},
      {{"token", "create", "x", "--address", "a:1"}, "takes no ID"},
      {{"token", "revoke"}, "wants the ID of a token"},
      {{"token", "revoke", "0000000000000000"}, "isthmus ca token list shows them"},
      {{"list", "", "x"}, "takes no"},
  };
  for (const auto& [arguments, words] : cases) {
    const Result result = Ca(arguments);
    EXPECT_EQ(result.code, kExitUsage) << words;
    EXPECT_THAT(result.err, HasSubstr(words));
  }
}

}  // namespace
}  // namespace isthmus::cli
