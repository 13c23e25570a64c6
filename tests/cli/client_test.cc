#include "coordinator/cli/client.h"

#include <cstdio>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cli/fake_coordinator.h"
#include "tests/tls_cluster.h"

namespace isthmus::cli {
namespace {

using testing::HasSubstr;

absl::StatusOr<std::unique_ptr<Client>> ConnectTo(const std::string& address) {
  ClientOptions options;
  options.address = address;
  return Client::Connect(options);
}

TEST(Client, AddressesAreChecked) {
  EXPECT_EQ(ConnectTo("nonsense").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ConnectTo("127.0.0.1:1").status().code(), absl::StatusCode::kUnavailable);
}

TEST(Client, AnotherMachineIsAskedOverTlsOrBecauseSomebodySaidSo) {
  ClientOptions options;
  options.address = "192.0.2.1:7070";
  const absl::Status refused = Client::Connect(options).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.message(), HasSubstr("isthmus ca issue NAME --role operator"));
  options.tls_dir = "/nowhere";
  EXPECT_THAT(Client::Connect(options).status().message(), HasSubstr("/nowhere/ca.pem"));
  options.insecure = true;
  EXPECT_THAT(Client::Connect(options).status().message(), HasSubstr("exclude each other"));
}

TEST(Client, WhoHasACertificateIsNotTalkedIntoPlainText) {
  FakeCoordinator plain;
  TlsCluster authority;
  ClientOptions options;
  options.address = plain.address();
  options.tls_dir = authority.Issue("ada", tls::Role::kOperator)->folder().path;
  const absl::Status refused = Client::Connect(options).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_THAT(refused.message(), HasSubstr("speaks plain text, and this program TLS alone"));
  options.tls_dir = authority.Issue("d0", tls::Role::kWorker)->folder().path;
  EXPECT_THAT(Client::Connect(options).status().message(),
              HasSubstr("this program needs one of role operator or viewer"));
}

TEST(Client, CancelEndsEveryLaterCall) {
  FakeCoordinator fake;
  auto client = ConnectTo(fake.address());
  ASSERT_TRUE(client.ok()) << client.status();
  EXPECT_TRUE((*client)->List().ok());
  (*client)->Cancel();
  EXPECT_EQ((*client)->List().status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ((*client)->Watch({}, [](const WatchReply&) { return true; }).code(),
            absl::StatusCode::kCancelled);
}

// A name typed in a Latin-1 terminal must reach the coordinator, which says that there is no such
// job.
TEST(Client, NamesOfAnotherEncodingAreMadeValid) {
  FakeCoordinator fake;
  auto client = ConnectTo(fake.address());
  ASSERT_TRUE(client.ok()) << client.status();
  StopJobRequest request;
  request.set_job(
      "B\xfc"
      "cher");
  const auto reply = (*client)->Stop(request);
  EXPECT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(fake.asked().stop_request.job(),
            "B\xef\xbf\xbd"
            "cher");
}

TEST(Client, AServerThatIsNoCoordinatorIsNamed) {
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  Control::Service other;
  builder.RegisterService(&other);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  auto client = ConnectTo("127.0.0.1:" + std::to_string(port));
  ASSERT_TRUE(client.ok()) << client.status();
  const absl::Status status = (*client)->List().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("not an Isthmus coordinator"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("the port of a daemon, perhaps"));
}

TEST(Client, TheReaderMayEndAStream) {
  FakeCoordinator fake;
  fake.streams = {{WatchReply(), WatchReply(), WatchReply()}};
  auto client = ConnectTo(fake.address());
  ASSERT_TRUE(client.ok()) << client.status();
  int replies = 0;
  EXPECT_TRUE((*client)->Watch({}, [&](const WatchReply&) { return ++replies < 2; }).ok());
  EXPECT_EQ(replies, 2);
}

TEST(Client, CheckpointsTravelInChunks) {
  FakeCoordinator fake;
  auto client = ConnectTo(fake.address());
  ASSERT_TRUE(client.ok()) << client.status();
  std::string data(1 << 20, 'x');
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i * 7);
  int64_t sent = 0;
  const auto write = [&](const Client::TakePiece& take) {
    for (size_t at = 0; at < data.size(); at += 100000) {
      if (!take(absl::string_view(data).substr(at, 100000))) break;
    }
    return absl::OkStatus();
  };
  const auto complete = (*client)->PutCheckpoint({}, write, [&](int64_t bytes) { sent = bytes; });
  ASSERT_TRUE(complete.ok()) << complete.status();
  EXPECT_TRUE(*complete);
  EXPECT_EQ(sent, 1 << 20);
  EXPECT_EQ(fake.asked().put_data, data);

  fake.Settle();
  fake.weights = data;
  const std::string path = testing::TempDir() + "/isthmus_client_test.bin";
  const auto fetched = (*client)->FetchCheckpoint({}, path, nullptr);
  ASSERT_TRUE(fetched.ok()) << fetched.status();
  EXPECT_EQ(fetched->bytes, 1 << 20);
  EXPECT_EQ(fetched->step, 40);
  fake.Settle();
  fake.damage = true;
  EXPECT_EQ((*client)->FetchCheckpoint({}, path, nullptr).status().code(),
            absl::StatusCode::kDataLoss);
  fake.Settle();
  fake.refuse = grpc::Status(grpc::StatusCode::NOT_FOUND, "no checkpoint");
  EXPECT_EQ((*client)->FetchCheckpoint({}, path, nullptr).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ((*client)->PutCheckpoint({}, write, nullptr).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(
      (*client)
          ->PutCheckpoint(
              {}, [](const Client::TakePiece&) { return absl::DataLossError("cut off"); }, nullptr)
          .status()
          .message(),
      "cut off")
      << "what could not be read is the error, not the call that it broke off";
  EXPECT_FALSE((*client)->FetchCheckpoint({}, "/nonexistent/file", nullptr).ok());
  std::remove(path.c_str());
}

}  // namespace
}  // namespace isthmus::cli
