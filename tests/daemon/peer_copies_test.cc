// Copies of local checkpoints between two daemons: sent by one's CheckpointClient, taken by the
// other's peer server.
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "daemon/checkpoint_client.h"
#include "daemon/net/peer_service.h"
#include "gtest/gtest.h"
#include "tests/temp_directory.h"

namespace isthmus::daemon {
namespace {

class PeerCopiesTest : public testing::Test {
 protected:
  void Serve(bool keeps = true) {
    PeerServerOptions options;
    options.node_id = "buddy-id";
    options.name = "buddy";
    options.board = &board_;
    options.watchdog = &watchdog_;
    if (keeps) {
      options.keep_copy = [this](const PutCheckpointHeader& header, const ByteSource& part,
                                 const std::string& from) {
        EXPECT_EQ(from, "") << "plain text";
        return parts_.Keep(header, part).status();
      };
    }
    server_ = PeerServer::Start(options).value();
  }
  CheckpointClientOptions Options(const std::string& id) {
    CheckpointClientOptions options;
    options.coordinator = absl::StrCat("127.0.0.1:", server_->port());
    options.buddy_id = id;
    options.give_up_after = absl::ZeroDuration();
    options.watchdog = &watchdog_;
    return options;
  }
  static PutCheckpointHeader Header(const std::string& bytes) {
    PutCheckpointHeader header;
    header.set_job_id("job");
    header.set_generation(7);
    header.set_step(100);
    header.set_stage(1);
    header.set_stages(2);
    header.set_file("weights.safetensors");
    header.set_file_bytes(static_cast<int64_t>(bytes.size()));
    header.set_checksum(Hash64(bytes));
    header.set_local(true);
    return header;
  }

  TempDirectory directory_;
  PartDir parts_{directory_.path() + "/checkpoints", {0, {}, 0}};
  Watchdog watchdog_;
  DialBoard board_;
  std::unique_ptr<PeerServer> server_;
};

TEST_F(PeerCopiesTest, PartsOfAllSizesArrive) {
  Serve();
  CheckpointClient client(Options("buddy-id"));
  for (const size_t size : {size_t{0}, size_t{1}, size_t{64} << 10, size_t{9'000'001}}) {
    std::string bytes(size, 'x');
    for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(i * 7 + i / 300);
    ASSERT_TRUE(client.Put(Header(bytes), MemorySource(bytes)).ok()) << size;
    bool found = false;
    for (const LocalPart& part : parts_.Parts("job", 100)) {
      if (part.checksum() != Hash64(bytes)) continue;
      found = true;
      EXPECT_EQ(ReadAll(*parts_.Open("job", 100, part).value(), 1 << 30).value(), bytes);
    }
    EXPECT_TRUE(found) << size;
  }
}

TEST_F(PeerCopiesTest, WhatArrivesDamagedIsNotKept) {
  Serve();
  CheckpointClient client(Options("buddy-id"));
  PutCheckpointHeader header = Header("abc");
  header.set_checksum(header.checksum() + 1);
  EXPECT_EQ(client.Put(header, MemorySource("abc")).code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(parts_.Parts("job", 100).empty());
}

TEST_F(PeerCopiesTest, AnotherDaemonOrOneThatKeepsNoneRefuses) {
  Serve();
  const absl::Status other =
      CheckpointClient(Options("someone")).Put(Header("abc"), MemorySource("abc"));
  EXPECT_EQ(other.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(other.message().find("another daemon answers there: buddy"), std::string::npos);
  EXPECT_TRUE(parts_.Parts("job", 100).empty());
  Serve(false);
  const absl::Status none =
      CheckpointClient(Options("buddy-id")).Put(Header("abc"), MemorySource("abc"));
  EXPECT_NE(none.message().find("this daemon keeps no copies"), std::string::npos) << none;
}

TEST_F(PeerCopiesTest, ABuddyThatIsGoneIsNotTriedForLong) {
  Serve();
  const CheckpointClientOptions options = Options("buddy-id");
  server_.reset();
  const absl::Status gone = CheckpointClient(options).Put(Header("abc"), MemorySource("abc"));
  EXPECT_EQ(gone.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(gone.message().find("buddy 127.0.0.1:"), std::string::npos) << gone;
  EXPECT_NE(gone.message().find("attempt 1"), std::string::npos) << gone;
}

}  // namespace
}  // namespace isthmus::daemon
