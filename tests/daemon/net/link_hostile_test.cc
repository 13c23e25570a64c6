// A peer that speaks gRPC but not our protocol: every case ends with a refusal, nothing hangs, the
// server goes on.
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/rpc/channel.h"
#include "daemon/net/frame_chunks.h"
#include "grpcpp/channel.h"
#include "gtest/gtest.h"
#include "proto/peer_service.grpc.pb.h"
#include "tests/daemon/net/loopback_cluster.h"

namespace isthmus::daemon {
namespace {

constexpr absl::Duration kLong = absl::Seconds(60);

class HostileTest : public testing::Test {
 protected:
  HostileTest() : cluster_(2), plan_(TwoStagePlan()) {
    cluster_.Prepare(&plan_);
    stub_ = Peer::NewStub(rpc::MakeChannel(plan_.ranks(1).address(), {}));
  }

  LinkChunk Hello() const {
    LinkChunk chunk;
    chunk.mutable_hello()->set_job_id(plan_.job_id());
    chunk.mutable_hello()->set_generation(plan_.generation());
    chunk.mutable_hello()->set_link_id("b0");
    chunk.mutable_hello()->set_chunk_bytes(kMinChunkBytes);
    return chunk;
  }

  // Sends `chunks` by a raw stub and gives the status of the call.
  absl::Status Talk(const std::vector<LinkChunk>& chunks, bool half_close) {
    grpc::ClientContext context;
    const auto stream = stub_->Link(&context);
    for (const LinkChunk& chunk : chunks) {
      if (!stream->Write(chunk)) break;
    }
    if (half_close) stream->WritesDone();
    LinkChunk ignored;
    while (stream->Read(&ignored)) {
    }
    return rpc::FromGrpc(stream->Finish());
  }

  // The session's side of one hostile talk.
  absl::Status ServeAndReceive(const std::vector<LinkChunk>& chunks, bool half_close = false) {
    absl::Status got;
    std::thread session([&] {
      auto link = cluster_.opener(1)->Open(plan_, plan_.links(0), 1, kLong);
      if (!link.ok()) {
        got = link.status();
        return;
      }
      EXPECT_FALSE((*link)->peer_exchanges_codec_state());  // an older hello does not say so
      absl::StatusOr<worker::Frame> frame = worker::Frame();
      while (frame.ok()) frame = (*link)->Receive(1 << 20, kLong);
      got = frame.status();
    });
    EXPECT_FALSE(Talk(chunks, half_close).ok());
    session.join();
    return got;
  }

  LoopbackCluster cluster_;
  Plan plan_;
  std::unique_ptr<Peer::Stub> stub_;
};

LinkChunk Header(uint64_t payload_bytes, const std::string& data) {
  LinkChunk chunk;
  chunk.mutable_header()->set_payload_bytes(payload_bytes);
  chunk.set_data(data);
  return chunk;
}

LinkChunk Data(const std::string& data) {
  LinkChunk chunk;
  chunk.set_data(data);
  return chunk;
}

TEST_F(HostileTest, ABadHelloIsRefused) {
  LinkChunk no_job = Hello();
  no_job.mutable_hello()->clear_job_id();
  LinkChunk long_link = Hello();
  long_link.mutable_hello()->set_link_id(std::string(100'000, 'x'));
  LinkChunk with_data = Hello();
  with_data.set_data("data");
  for (const LinkChunk& first :
       {LinkChunk(), Header(1, "x"), Data("x"), no_job, long_link, with_data}) {
    EXPECT_EQ(Talk({first}, false).code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST_F(HostileTest, ACallerThatSaysNothingIsCutOff) { EXPECT_FALSE(Talk({}, false).ok()); }

TEST_F(HostileTest, AChunkSizeOutOfBoundsIsRefused) {
  for (int64_t bytes : {int64_t{-1}, int64_t{0}, kMaxChunkBytes + 1, int64_t{1} << 60}) {
    LinkChunk hello = Hello();
    hello.mutable_hello()->set_chunk_bytes(bytes);
    EXPECT_EQ(ServeAndReceive({hello}).code(), absl::StatusCode::kInvalidArgument) << bytes;
  }
}

TEST_F(HostileTest, BrokenFramesEndTheLink) {
  LinkChunk error;
  error.set_error(std::string(1 << 20, 'e'));
  LinkChunk end;
  end.set_end(true);
  const std::string big(kMinChunkBytes + 1, 'x');
  const std::vector<std::vector<LinkChunk>> cases = {
      {Data("x")},
      {Header(uint64_t{1} << 62, "")},
      {Header(3, "abcd")},
      {Header(10, "abc"), Header(10, "abc")},
      {Header(10, "abc"), end},
      {Header(10, "abc"), Hello()},
      {Header(1 << 20, ""), Data(big)},
      {Header(10, "abc"), Data("")},
      {Header(3, "abc"), Hello()},
      {Header(3, "abc"), error},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    std::vector<LinkChunk> chunks = {Hello()};
    chunks.insert(chunks.end(), cases[i].begin(), cases[i].end());
    const absl::Status status = ServeAndReceive(chunks);
    EXPECT_TRUE(absl::IsInvalidArgument(status) || absl::IsAborted(status)) << i << ": " << status;
    EXPECT_LT(status.message().size(), 3000u);
  }
}

TEST_F(HostileTest, TheCodeOfAnErrorIsKeptButItCantClaimAnOrderlyEnd) {
  LinkChunk error;
  error.set_error("the disk is full");
  error.set_code(static_cast<int>(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(ServeAndReceive({Hello(), error}).code(), absl::StatusCode::kResourceExhausted);
  error.set_code(static_cast<int>(absl::StatusCode::kOutOfRange));
  EXPECT_EQ(ServeAndReceive({Hello(), error}).code(), absl::StatusCode::kAborted);
}

TEST_F(HostileTest, AStreamThatStopsWithoutAnEndIsBroken) {
  EXPECT_EQ(ServeAndReceive({Hello(), Header(10, "abc")}, true).code(),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(ServeAndReceive({Hello()}, true).code(), absl::StatusCode::kUnavailable);
}

TEST_F(HostileTest, AnEchoBeyondTheLimitIsRefused) {
  for (int64_t bytes : {int64_t{-1}, int64_t{4} << 20, int64_t{1} << 60}) {
    grpc::ClientContext context;
    ProbeRequest request;
    request.set_reply_bytes(bytes);
    ProbeReply reply;
    EXPECT_EQ(stub_->Echo(&context, request, &reply).error_code(),
              grpc::StatusCode::INVALID_ARGUMENT);
  }
}

TEST_F(HostileTest, ManyCallersThatNeverGoOnDoNotKeepOthersOut) {
  std::vector<std::thread> callers;
  for (int i = 0; i < 40; ++i) callers.emplace_back([&] { Talk({}, false).IgnoreError(); });
  grpc::ClientContext context;
  ProbeReply reply;
  EXPECT_TRUE(stub_->Echo(&context, ProbeRequest(), &reply).ok());
  for (auto& caller : callers) caller.join();
}

}  // namespace
}  // namespace isthmus::daemon
