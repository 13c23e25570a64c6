#include "daemon/join.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <iostream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "base/tls/folder.h"
#include "base/tls/request.h"
#include "coordinator/service/join_server.h"
#include "gmock/gmock.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"
#include "tests/tls_cluster.h"

namespace isthmus::daemon {
namespace {

using testing::HasSubstr;
using tls::Role;

class JoinTest : public testing::Test {
 protected:
  void SetUp() override {
    tls_ = authority_.Issue("coordinator", Role::kCoordinator);
    coordinator::JoinServerOptions options;
    options.listen = "127.0.0.1:0";
    options.ca_dir = authority_.dir();
    options.coordinator_port = 7070;
    options.tls = tls_.get();
    options.audit = &audit_;
    auto server = coordinator::JoinServer::Start(options);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  std::string Address() const { return absl::StrCat("127.0.0.1:", server_->port()); }
  std::string Make(const std::string& address = "", const TlsCluster* cluster = nullptr) {
    tls::TokenOptions options;
    options.addresses = {address.empty() ? Address() : address};
    const auto joins = tls::Joins::Open((cluster == nullptr ? &authority_ : cluster)->dir());
    const auto made = joins->Create(options, tls::Today());
    EXPECT_TRUE(made.ok()) << made.status();
    return made->text;
  }
  absl::StatusOr<Joined> Run(const JoinFlags& flags, const std::string& state = "a") {
    JoinOptions options;
    options.flags = flags;
    options.state_dir = scratch_.path() + "/" + state;
    options.patience = absl::Seconds(60);
    std::filesystem::create_directories(options.state_dir);
    return JoinCluster(options);
  }
  static int ModeOf(const std::string& path) {
    struct stat info = {};
    EXPECT_EQ(::stat(path.c_str(), &info), 0) << path;
    return static_cast<int>(info.st_mode & 0777);
  }

  TlsCluster authority_;
  const TempDirectory scratch_;
  coordinator::Audit audit_{scratch_.path()};
  std::shared_ptr<rpc::TlsIdentity> tls_;
  std::unique_ptr<coordinator::JoinServer> server_;
};

TEST_F(JoinTest, GetsAFolderAndNeedsNoTokenAfterwards) {
  const auto joined = Run({Make(), ""});
  ASSERT_TRUE(joined.ok()) << joined.status();
  EXPECT_EQ(joined->coordinator, "127.0.0.1:7070");
  EXPECT_EQ(joined->join, Address());
  const std::string dir = joined->tls_dir;
  EXPECT_EQ(dir, scratch_.path() + "/a/tls");
  EXPECT_EQ(ModeOf(dir), 0700);
  EXPECT_EQ(ModeOf(dir + "/key.pem"), 0600);
  EXPECT_FALSE(std::filesystem::exists(scratch_.path() + "/a/tls-joining"));
  const auto folder = tls::ReadFolder(dir, {Role::kWorker}, tls::Today());
  ASSERT_TRUE(folder.ok()) << folder.status();
  EXPECT_EQ(folder->certificate.who.name, "node-1");

  server_.reset();  // nobody is asked
  for (const JoinFlags& flags : {JoinFlags{"a token that is gone", ""}, JoinFlags{"-", ""},
                                 JoinFlags{"", scratch_.path() + "/gone"}}) {
    const auto again = Run(flags);
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(again->coordinator, "127.0.0.1:7070");
    EXPECT_EQ(again->join, joined->join);
  }
  EXPECT_EQ(tls::ReadFolder(dir, {Role::kWorker}, tls::Today())->key_pem, folder->key_pem);
}

TEST_F(JoinTest, ReadsTheTokenFromAFile) {
  const std::string file = scratch_.path() + "/token";
  std::ofstream(file) << Make() << "\n";
  EXPECT_TRUE(Run({"", file}).ok());
  const absl::Status gone = Run({"", file + "-gone"}, "b").status();
  EXPECT_TRUE(absl::IsInvalidArgument(gone)) << gone;
  EXPECT_THAT(std::string(gone.message()), HasSubstr("--join-file: can't read"));
  std::ofstream(file) << std::string(kMaxTokenFile + 1, 'x');
  EXPECT_TRUE(absl::IsInvalidArgument(Run({"", file}, "b").status()));
}

TEST_F(JoinTest, AnAnswerThatWasLostIsAskedForAgainWithTheSameKey) {
  const std::string text = Make();
  const std::string joining = scratch_.path() + "/a/tls-joining";
  std::filesystem::create_directories(joining);
  const std::string key = *tls::MakeKey();
  std::ofstream(joining + "/key.pem") << key;
  const auto token = tls::ReadJoinToken(text);
  ASSERT_TRUE(
      tls::Joins::Open(authority_.dir())
          ->Join({token->id, token->secret, Role::kWorker, *tls::MakeRequest(key)}, tls::Today())
          .ok());
  const auto joined = Run({text, ""});
  ASSERT_TRUE(joined.ok()) << joined.status() << ": the token is for one host, and this is it";
  EXPECT_EQ(tls::ReadFolder(joined->tls_dir, {Role::kWorker}, tls::Today())->key_pem, key);
}

TEST_F(JoinTest, SaysWhyItMayNot) {
  const std::string text = Make();
  ASSERT_TRUE(Run({text, ""}).ok());
  const absl::Status used = Run({text, ""}, "b").status();
  EXPECT_TRUE(absl::IsPermissionDenied(used)) << used;
  EXPECT_THAT(std::string(used.message()), HasSubstr("is used up"));
  EXPECT_FALSE(std::filesystem::exists(scratch_.path() + "/b/tls"));

  std::string slip = text;
  slip[40] = slip[40] == 'x' ? 'y' : 'x';
  EXPECT_TRUE(absl::IsInvalidArgument(Run({slip, ""}, "b").status()));

  TlsCluster other;
  const absl::Status strange = Run({Make(Address(), &other), ""}, "b").status();
  EXPECT_TRUE(absl::IsUnauthenticated(strange)) << strange;
  EXPECT_THAT(std::string(strange.message()), HasSubstr("the token is of another cluster"));
  const absl::Status kept = Run({Make(Address(), &other), ""}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(kept)) << kept;
  EXPECT_THAT(std::string(kept.message()), HasSubstr("of another cluster than the token's"));

  const std::string address = Address(), late = Make();
  server_.reset();
  EXPECT_TRUE(absl::IsUnavailable(Run({late, ""}, "b").status()));
}

TEST_F(JoinTest, TakesNoFolderThatItDidNotMake) {
  const std::string dir = scratch_.path() + "/a/tls";
  std::filesystem::create_directories(dir);
  const absl::Status there = Run({Make(), ""}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(there)) << there;
  EXPECT_THAT(std::string(there.message()), HasSubstr("did not come by joining"));
  std::ofstream(dir + "/joined") << "nonsense\n";
  EXPECT_THAT(std::string(Run({Make(), ""}).status().message()),
              HasSubstr("does not say where the cluster is"));
}

TEST_F(JoinTest, ACertificateThatExpiredIsReplacedByAToken) {
  const auto joins = tls::Joins::Open(authority_.dir());
  tls::TokenOptions options;
  options.addresses = {Address()};
  options.certificate_life = absl::Minutes(1);
  const absl::Time before = tls::Today() - absl::Hours(1);
  const auto token = tls::ReadJoinToken(joins->Create(options, before)->text);
  const std::string key = *tls::MakeKey();
  const auto old =
      joins->Join({token->id, token->secret, Role::kWorker, *tls::MakeRequest(key)}, before);
  ASSERT_TRUE(old.ok()) << old.status();
  ASSERT_TRUE(Run({Make(), ""}).ok());
  const std::string dir = scratch_.path() + "/a/tls";
  std::ofstream(dir + "/cert.pem") << old->certificate_pem;
  std::ofstream(dir + "/key.pem") << key;
  const auto joined = Run({Make(), ""});
  ASSERT_TRUE(joined.ok()) << joined.status();
  const auto folder = tls::ReadFolder(dir, {Role::kWorker}, tls::Today());
  ASSERT_TRUE(folder.ok()) << folder.status();
  EXPECT_NE(folder->key_pem, key);
}

TEST_F(JoinTest, AFolderThatCantBeReadIsNotReplaced) {
  ASSERT_TRUE(Run({Make(), ""}).ok());
  const std::string dir = scratch_.path() + "/a/tls", token = Make();
  for (const std::string& file : {dir + "/cert.pem", dir + "/joined", dir + "/key.pem"}) {
    std::filesystem::rename(file, file + "-away");
    std::filesystem::create_symlink(file, file);  // a loop, which root can't read, either
    const absl::Status refused = Run({token, ""}).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << file << ": " << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("or move it away and join with a new"));
    std::filesystem::rename(file + "-away", file);
  }
  EXPECT_TRUE(Run({"spent", ""}).ok());
}

TEST_F(JoinTest, AKeyThatWasLeftOverIsNotUsedAgain) {
  const std::string state = scratch_.path() + "/a";
  ASSERT_TRUE(Run({Make(), ""}).ok());
  std::filesystem::create_directories(state + "/tls-joining");
  std::filesystem::create_directories(state + "/tls.part.123456");
  ASSERT_TRUE(Run({"spent", ""}).ok());
  EXPECT_FALSE(std::filesystem::exists(state + "/tls-joining"));
  EXPECT_FALSE(std::filesystem::exists(state + "/tls.part.123456"));

  // As an earlier version left it, and the cure in the words is followed.
  std::filesystem::create_directories(state + "/tls-joining");
  std::filesystem::copy(state + "/tls/key.pem", state + "/tls-joining/key.pem");
  ASSERT_TRUE(tls::Authority::Open(authority_.dir())->Revoke("node-1", tls::Today()).ok());
  std::filesystem::remove_all(state + "/tls");
  const std::string token = Make();
  const absl::Status revoked = Run({token, ""}).status();
  EXPECT_TRUE(absl::IsPermissionDenied(revoked)) << revoked;
  EXPECT_THAT(std::string(revoked.message()), HasSubstr("that key is removed now"));
  const auto joined = Run({token, ""});
  EXPECT_TRUE(joined.ok()) << joined.status();
}

TEST_F(JoinTest, WhoShowsTheAuthorityUnderAForeignCertificateIsAnImpostor) {
  TlsCluster other;
  const auto foreign = other.Issue("coordinator", Role::kCoordinator);
  const std::string ca = tls_->folder().ca_pem;
  grpc::SslServerCredentialsOptions options;
  options.pem_key_cert_pairs = {
      {foreign->folder().key_pem, foreign->folder().certificate_pem + ca}};
  grpc::AsyncGenericService nothing;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::SslServerCredentials(options), &port);
  builder.RegisterAsyncGenericService(&nothing);
  const auto queue = builder.AddCompletionQueue();
  const auto server = builder.BuildAndStart();
  ASSERT_NE(server, nullptr);
  const absl::Status status = Run({Make(absl::StrCat("127.0.0.1:", port)), ""}).status();
  server->Shutdown();
  queue->Shutdown();
  void* tag = nullptr;
  bool ok = false;
  while (queue->Next(&tag, &ok)) {
  }
  EXPECT_TRUE(absl::IsUnauthenticated(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("is of another authority than the join token names"));
}

TEST_F(JoinTest, EndsWhenItIsToldToAndAfterItsTimeInAll) {
  const int silent = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);  // takes, says nothing
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof(address);
  ASSERT_EQ(::bind(silent, reinterpret_cast<sockaddr*>(&address), bytes), 0);
  ASSERT_EQ(::listen(silent, 16), 0);
  ASSERT_EQ(::getsockname(silent, reinterpret_cast<sockaddr*>(&address), &bytes), 0);
  JoinOptions options;
  options.flags.token = Make(absl::StrCat("127.0.0.1:", ntohs(address.sin_port)));
  options.state_dir = scratch_.path();
  options.patience = absl::Hours(1);
  options.in_all = absl::Milliseconds(10);
  EXPECT_TRUE(absl::IsUnavailable(JoinCluster(options).status()));
  options.in_all = absl::Hours(1);
  options.stop = [] { return true; };
  EXPECT_TRUE(absl::IsCancelled(JoinCluster(options).status()));
  ::close(silent);
}

TEST_F(JoinTest, TheLineIsReadBeforehandWhereItIsNeeded) {
  std::istringstream input(Make() + "\nmore\n");
  std::streambuf* const before = std::cin.rdbuf(input.rdbuf());
  const std::string state = scratch_.path() + "/a";
  JoinFlags flags{"-", ""};
  ReadTokenLine(state, &flags);
  EXPECT_TRUE(Run(flags).ok());
  JoinFlags kept{"-", ""};
  ReadTokenLine(state, &kept);
  std::cin.rdbuf(before);
  EXPECT_EQ(kept.token, "-") << "none is needed";
  JoinFlags text{"a token", ""};
  ReadTokenLine(scratch_.path() + "/b", &text);
  EXPECT_EQ(text.token, "a token");
}

TEST_F(JoinTest, WarnsOfATokenThatOthersMayRead) {
  const std::string file = scratch_.path() + "/token";
  std::ofstream(file) << "text";
  ASSERT_EQ(::chmod(file.c_str(), 0640), 0);
  EXPECT_THAT(TokenFileWarning(file), HasSubstr("chmod 600"));
  ASSERT_EQ(::chmod(file.c_str(), 0600), 0);
  EXPECT_EQ(TokenFileWarning(file), "");
  EXPECT_EQ(TokenFileWarning(""), "");
}

TEST_F(JoinTest, ATokenIsNotPrinted) {
  const std::string token = Make();
  EXPECT_EQ(WithoutTokens("not expected: " + token + " " + token + "\n"),
            "not expected: isthmus-join-xxx isthmus-join-xxx\n");
  EXPECT_EQ(WithoutTokens("no token"), "no token");
  EXPECT_EQ(std::string(Run({"", token}).status().message()).find(token), std::string::npos);
}

TEST(TypedTest, AFlagStandsForItselfAlone) {
  const char* argv[] = {"isthmusd", "--tls-dir", "a", "--join=b", "--join-file"};
  EXPECT_TRUE(Typed(5, argv, "--tls-dir"));
  EXPECT_TRUE(Typed(5, argv, "--join"));
  EXPECT_FALSE(Typed(5, argv, "--tls"));
  EXPECT_FALSE(Typed(4, argv, "--join-file"));
}

TEST(HideTokenTest, NoArgumentHoldsItLonger) {
  std::string program = "isthmusd", flag = "--join", token = "secret", joined = "--join=secret",
              other = "--join-file", file = "secret";
  char* argv[] = {program.data(), flag.data(),  token.data(),
                  joined.data(),  other.data(), file.data()};
  HideToken(6, argv);
  EXPECT_EQ(token, "xxxxxx");
  EXPECT_EQ(joined, "--join=xxxxxx");
  EXPECT_EQ(file, "secret") << "a file's name is none";
}

}  // namespace
}  // namespace isthmus::daemon
