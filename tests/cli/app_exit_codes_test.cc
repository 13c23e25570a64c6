// What a script learns from the command line's exit code.
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/rpc/channel.h"
#include "coordinator/cli/exit_code.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cli/app_fixture.h"

namespace isthmus::cli {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

TEST_F(AppTest, NobodyThereIsFour) {
  const Result result = RunCommand({"list", "--coordinator", "127.0.0.1:1"});
  EXPECT_EQ(result.code, kExitUnreachable);
  EXPECT_THAT(result.err, HasSubstr("127.0.0.1:1"));
  EXPECT_THAT(result.err, HasSubstr("isthmus-coordinator"));
}

// A plan that links forbid was told as "coordinator not reachable".
TEST_F(AppTest, RefusalsKeepTheirWordsAndCodes) {
  const std::pair<absl::StatusCode, int> cases[] = {
      {absl::StatusCode::kInvalidArgument, kExitUsage},
      {absl::StatusCode::kNotFound, kExitUsage},
      {absl::StatusCode::kResourceExhausted, kExitMachine},
      {absl::StatusCode::kFailedPrecondition, kExitRefused},
      {absl::StatusCode::kUnavailable, kExitNotNow},
      {absl::StatusCode::kDeadlineExceeded, kExitNotNow},
      {absl::StatusCode::kInternal, kExitFailure}};
  for (const auto& [code, exit_code] : cases) {
    fake_.refuse = rpc::ToGrpc(absl::Status(code, "the words of the coordinator"));
    const Result result = Run({"submit", Job()});
    EXPECT_EQ(result.code, exit_code);
    EXPECT_THAT(result.err, HasSubstr("the words of the coordinator"));
    EXPECT_THAT(result.out, IsEmpty());
  }
  fake_.refuse = grpc::Status(grpc::StatusCode::UNAVAILABLE, "Socket closed");  // gRPC's own word
  EXPECT_EQ(Run({"submit", Job()}).code, kExitUnreachable);
}

TEST_F(AppTest, NodesWait) {
  for (const char* id : {"a", "b"}) {
    NodeStatus* node = fake_.nodes.add_nodes();
    node->mutable_node()->set_id(id);
    node->set_alive(true);
  }
  EXPECT_EQ(Run({"nodes", "--wait", "2", "--timeout", "nan"}).code, kExitUsage);
  const Result missing = Run({"nodes", "--wait", "2", "--timeout", "0"});
  EXPECT_EQ(missing.code, kExitNotNow) << "the coordinator answered";
  EXPECT_THAT(missing.err, HasSubstr("2 of 2 daemons are alive and 0 of 2 links"));
  for (const auto& [from, to] : {std::pair("a", "b"), std::pair("b", "a")}) {
    LinkMeasurement* link = fake_.nodes.add_links();
    link->set_from_id(from);
    link->set_to_id(to);
  }
  EXPECT_EQ(Run({"nodes", "--wait", "2", "--timeout", "0"}).code, kExitOk);
  EXPECT_EQ(Run({"nodes", "--wait", "3", "--timeout", "0"}).code, kExitNotNow);
}

TEST_F(AppTest, NodesWaitForACoordinatorThatIsNotThereYet) {
  ListNodesReply alone;
  alone.add_nodes()->set_alive(true);
  // The first dial meets one that hangs up; then the coordinator takes its port.
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  const int yes = 1;  // else the first dial's socket keeps the port for a while
  ASSERT_EQ(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)), 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(at);
  ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&at), sizeof(at)), 0);
  ASSERT_EQ(listen(listener, 1), 0);
  getsockname(listener, reinterpret_cast<sockaddr*>(&at), &size);
  const std::string address = absl::StrCat("127.0.0.1:", ntohs(at.sin_port));
  std::unique_ptr<FakeCoordinator> late;
  std::thread starts([&] {
    close(accept(listener, nullptr, nullptr));
    close(listener);
    late = std::make_unique<FakeCoordinator>(address, alone);
  });
  const Result result =
      RunCommand({"nodes", "--wait", "1", "--timeout", "60", "--coordinator", address});
  starts.join();
  EXPECT_EQ(result.code, kExitOk) << result.err;
}

TEST_F(AppTest, AJobThatPausesIsSix) {
  WatchReply paused = Records(0, 4, JOB_PAUSED);
  paused.mutable_status()->set_reason("beta is \x1b[2J lost");
  fake_.streams = {{paused}};
  const Result result = Run({"watch", "bible"});
  EXPECT_THAT(result.out, HasSubstr("paused at step 4"));
  EXPECT_THAT(result.out, Not(HasSubstr("beta"))) << "a cause is told once";
  EXPECT_EQ(result.code, kExitJobNotDone);
  EXPECT_THAT(result.err, HasSubstr("paused: beta is ?[2J lost\n"));
}

TEST_F(AppTest, AStopThatLostStepsIsSixAndAnOrderlyOneIsNot) {
  WatchReply stopped = Records(0, 4, JOB_STOPPED);
  stopped.mutable_status()->set_checkpoint_step(-1);
  fake_.streams = {{stopped}};
  EXPECT_EQ(Run({"watch", "bible"}).code, kExitJobNotDone);
  stopped.mutable_status()->set_checkpoint_step(4);
  fake_.streams = {{stopped}};
  EXPECT_EQ(Run({"watch", "bible"}).code, kExitOk);
}

}  // namespace
}  // namespace isthmus::cli
