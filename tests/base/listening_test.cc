#include "base/rpc/listening.h"

#include <cstdlib>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace isthmus::rpc {
namespace {

using testing::HasSubstr;
using tls::Role;

TEST(ListeningTest, LoopbackIsThisMachineAlone) {
  for (const char* here : {"127.0.0.1:7070", "127.3.4.5:0", "localhost:1", "[::1]:7070"})
    EXPECT_TRUE(IsLoopback(here)) << here;
  for (const char* open : {"0.0.0.0:7070", "10.0.0.1:7070", "[::]:7070", "host-a:7070", "*:7070",
                           "127.evil.org:7070", "localhost.org:7070"})
    EXPECT_FALSE(IsLoopback(open)) << open;
}

TEST(ListeningTest, OffLoopbackACertificateIsWantedOrSaidToBeUnwanted) {
  EXPECT_TRUE(CheckListening("127.0.0.1:0", {}, Role::kCoordinator).ok());
  EXPECT_TRUE(CheckListening("0.0.0.0:0", {true, false}, Role::kCoordinator).ok());
  EXPECT_TRUE(CheckListening("0.0.0.0:0", {false, true}, Role::kCoordinator).ok());
  EXPECT_FALSE(CheckListening("0.0.0.0:0", {true, true}, Role::kCoordinator).ok());
  const absl::Status refused = CheckListening("0.0.0.0:7070", {}, Role::kCoordinator);
  EXPECT_TRUE(absl::IsInvalidArgument(refused));
  for (const char* command :
       {"isthmus ca init\n", "isthmus ca issue coordinator --role coordinator\n",
        "--tls-dir isthmus-ca/certificates/coordinator", "--insecure"})
    EXPECT_THAT(refused.message(), HasSubstr(command));
}

TEST(ListeningTest, WhatIsTypedWinsOverTheEnvironment) {
  const char* const typed[] = {"program", "--insecure", "--listen", "a:1"};
  std::string tls_dir = "/of/the/environment";
  bool insecure = true;
  TypedWins(4, typed, &tls_dir, &insecure);
  EXPECT_EQ(tls_dir, "");
  EXPECT_TRUE(insecure);
  const char* const other[] = {"program", "--tls-dir=/typed"};
  tls_dir = "/typed";
  TypedWins(2, other, &tls_dir, &insecure);
  EXPECT_EQ(tls_dir, "/typed");
  EXPECT_FALSE(insecure);
  const char* const both[] = {"program", "--tls-dir", "/typed", "--insecure"};
  insecure = true;
  TypedWins(4, both, &tls_dir, &insecure);
  EXPECT_EQ(tls_dir, "/typed");
  EXPECT_TRUE(insecure) << "that is refused as a contradiction";
}

TEST(ListeningTest, AVariableThatIsNoYesOrNoIsNamed) {
  const std::string words = "Could not convert: --insecure = maybe\n";
  unsetenv("ISTHMUS_INSECURE");
  EXPECT_EQ(NameTheVariable(words), words) << "it was typed";
  setenv("ISTHMUS_INSECURE", "maybe", 1);
  EXPECT_THAT(NameTheVariable(words), HasSubstr("ISTHMUS_INSECURE=maybe: set it to 1 or 0"));
  EXPECT_EQ(NameTheVariable("--listen: 1 required\n"), "--listen: 1 required\n");
  unsetenv("ISTHMUS_INSECURE");
}

TEST(ListeningTest, SoDoesOneWhoDials) {
  EXPECT_TRUE(CheckDialling("--coordinator", "localhost:7070", {}, Role::kWorker).ok());
  EXPECT_TRUE(CheckDialling("--coordinator", "a:7070", {true, false}, Role::kWorker).ok());
  EXPECT_TRUE(CheckDialling("--coordinator", "a:7070", {false, true}, Role::kWorker).ok());
  const absl::Status refused = CheckDialling("--coordinator", "a:7070", {}, Role::kWorker);
  EXPECT_TRUE(absl::IsInvalidArgument(refused));
  EXPECT_THAT(refused.message(), HasSubstr("--coordinator a:7070 is another machine"));
  EXPECT_THAT(refused.message(), HasSubstr("isthmus ca issue NAME --role worker"));
}

}  // namespace
}  // namespace isthmus::rpc
