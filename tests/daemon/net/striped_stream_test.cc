// StripedStream over lines in memory, and against a peer that sends what it may not.
#include "daemon/net/striped_stream.h"

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/queue.h"
#include "base/rng.h"
#include "gtest/gtest.h"

namespace isthmus::daemon {
namespace {

constexpr size_t kInFlight = 2;  // chunks on a line, each way

struct Line {
  BoundedQueue<LinkChunk> up{kInFlight};
  BoundedQueue<LinkChunk> down{kInFlight};
  void Cut() {
    up.Abort(absl::UnavailableError("the wire was cut"));
    down.Abort(absl::UnavailableError("the wire was cut"));
  }
};

class LineEnd : public LinkStream {
 public:
  LineEnd(std::shared_ptr<Line> line, bool lower)
      : line_(std::move(line)),
        in_(lower ? &line_->down : &line_->up),
        out_(lower ? &line_->up : &line_->down) {}

  bool Read(LinkChunk* chunk) override {
    auto got = in_->Pop(absl::InfiniteDuration());
    if (got.ok()) *chunk = *std::move(got);
    return got.ok();
  }
  bool Write(const LinkChunk& chunk) override {
    return out_->Push(chunk, absl::InfiniteDuration()).ok();
  }
  void Kill(const absl::Status& why) override { line_->Cut(); }
  bool kill_tells_why() const override { return false; }
  absl::Status WhyBroken() override { return absl::UnavailableError("the wire was cut"); }
  absl::Status End(const absl::Status& mine) override {
    ended = true;
    return absl::OkStatus();
  }
  bool ended = false;

 private:
  const std::shared_ptr<Line> line_;
  BoundedQueue<LinkChunk>* const in_;
  BoundedQueue<LinkChunk>* const out_;
};

LinkChunk Data(uint64_t sequence, size_t bytes = 8) {
  LinkChunk chunk;
  chunk.set_data(std::string(bytes, static_cast<char>('a' + sequence % 26)));
  if (sequence > 0) chunk.set_sequence(sequence);
  return chunk;
}

LinkChunk EndAt(uint64_t sequence) {
  LinkChunk chunk;
  chunk.set_end(true);
  chunk.set_sequence(sequence);
  return chunk;
}

class StripedStreamTest : public testing::Test {
 protected:
  std::unique_ptr<StripedStream> Make(int count, bool lower, int64_t window_bytes = 1 << 20) {
    std::vector<std::unique_ptr<LinkStream>> streams;
    for (int i = 0; i < count; ++i) {
      if (static_cast<int>(lines_.size()) <= i) lines_.push_back(std::make_shared<Line>());
      streams.push_back(std::make_unique<LineEnd>(lines_[i], lower));
    }
    return std::make_unique<StripedStream>(std::move(streams), window_bytes);
  }
  // As a peer would that numbers by itself. False: nobody takes it any more.
  bool Put(int line, const LinkChunk& chunk) {
    return lines_[line]->up.Push(chunk, absl::InfiniteDuration()).ok();
  }
  // What the refusal of these chunks, in this order, says.
  std::string Refusal(const std::vector<std::pair<int, LinkChunk>>& chunks) {
    const auto stream = Make(2, false);
    for (const auto& [line, chunk] : chunks) EXPECT_TRUE(Put(line, chunk));
    LinkChunk got;
    while (stream->Read(&got)) {
      if (got.has_end()) return "ended in order";
    }
    const absl::Status why = stream->WhyBroken();
    lines_.clear();
    return why.code() == absl::StatusCode::kInvalidArgument ? std::string(why.message())
                                                            : why.ToString();
  }

  std::vector<std::shared_ptr<Line>> lines_;
};

// Also: both directions full without a deadlock, and the orderly end.
TEST_F(StripedStreamTest, CarriesEverythingInOrderBothWaysAtOnce) {
  constexpr int kChunks = 3000;
  for (const int count : {2, 3, 8}) {
    lines_.clear();
    const auto lower = Make(count, true, 1000);
    const auto upper = Make(count, false, 1000);
    const auto send = [&](StripedStream* stream) {
      for (int i = 0; i < kChunks; ++i) {
        LinkChunk chunk;
        chunk.set_data(absl::StrCat(i, ":", std::string(Mix64(i) % 300, 'x')));
        ASSERT_TRUE(stream->Write(chunk)) << i;
      }
      LinkChunk last;
      last.set_end(true);
      ASSERT_TRUE(stream->Write(last));
      EXPECT_FALSE(stream->Write(last)) << "after the end";
    };
    const auto receive = [&](StripedStream* stream) {
      LinkChunk got;
      for (int i = 0; i < kChunks; ++i) {
        ASSERT_TRUE(stream->Read(&got)) << i;
        ASSERT_EQ(got.data().substr(0, got.data().find(':')), absl::StrCat(i));
      }
      ASSERT_TRUE(stream->Read(&got));
      EXPECT_TRUE(got.has_end());
    };
    std::vector<std::thread> threads;
    for (StripedStream* stream : {lower.get(), upper.get()}) {
      threads.emplace_back([&, stream] { send(stream); });
      threads.emplace_back([&, stream] { receive(stream); });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_TRUE(lower->End(absl::OkStatus()).ok());
    EXPECT_TRUE(upper->End(absl::OkStatus()).ok());
  }
}

TEST_F(StripedStreamTest, WhatComesEarlyWaitsForItsTurn) {
  const auto stream = Make(3, false);
  ASSERT_TRUE(Put(1, Data(3)) && Put(2, Data(2)) && Put(1, Data(4)) && Put(0, Data(1)));
  LinkChunk got;
  for (uint64_t i = 1; i <= 4; ++i) {
    ASSERT_TRUE(stream->Read(&got));
    EXPECT_EQ(got.sequence(), i);
  }
}

// One line is far ahead: it is read no further than the window, and the chunk whose turn it is
// comes through all the same.
TEST_F(StripedStreamTest, TheWindowBoundsWhatIsHeldAndNeverHoldsUpTheNext) {
  constexpr int64_t kWindow = 4 * (1000 + StripedStream::kChunkOverheadBytes);
  constexpr uint64_t kAhead = 40;
  const auto stream = Make(2, false, kWindow);
  std::thread ahead([&] {
    for (uint64_t i = 2; i <= kAhead; ++i) ASSERT_TRUE(Put(0, Data(i, 900)));
  });
  ASSERT_TRUE(Put(1, Data(1, 900)));
  LinkChunk got;
  for (uint64_t i = 1; i <= kAhead; ++i) {
    ASSERT_TRUE(stream->Read(&got));
    EXPECT_EQ(got.sequence(), i);
    EXPECT_LE(stream->held_bytes(), kWindow);
  }
  ahead.join();
}

TEST_F(StripedStreamTest, AConsumerThatSleepsStallsThePeerWithinBounds) {
  constexpr int kCount = 4;
  constexpr int kChunks = 500;
  constexpr int64_t kChunkBytes = 100;
  constexpr int kWindow = 10;  // chunks
  const auto lower = Make(kCount, true);
  const auto upper =
      Make(kCount, false, kWindow * (kChunkBytes + StripedStream::kChunkOverheadBytes));
  std::atomic<int> written{0};
  std::thread sender([&] {
    for (int i = 0; i < kChunks; ++i, ++written) ASSERT_TRUE(lower->Write(Data(0, kChunkBytes)));
  });
  LinkChunk got;
  for (int i = 0; i < kChunks; ++i) {
    // Waiting to be written, in a writer's hands, on the lines, in a reader's hands, and held; the
    // one whose turn it is always finds room.
    const int most = i + kCount * (1 + 1 + static_cast<int>(kInFlight) + 1) + kWindow + 1;
    EXPECT_LE(written.load(), most);
    ASSERT_TRUE(upper->Read(&got));
  }
  sender.join();
}

TEST_F(StripedStreamTest, OneBrokenStreamBreaksTheLinkAndIsNamed) {
  const auto lower = Make(3, true);
  const auto upper = Make(3, false);
  lines_[1]->Cut();
  LinkChunk got;
  EXPECT_FALSE(upper->Read(&got));
  EXPECT_EQ(upper->WhyBroken(), absl::UnavailableError("connection 2 of 3: the wire was cut"));
  while (lower->Write(Data(0))) {
  }
  EXPECT_EQ(lower->WhyBroken(), absl::UnavailableError("connection 2 of 3: the wire was cut"));
}

TEST_F(StripedStreamTest, KillEndsWhatWaitsAndNothingIsLeftRunning) {
  const auto lower = Make(2, true);
  const auto upper = Make(2, false, 1);
  std::thread reader([&] {
    LinkChunk got;
    EXPECT_FALSE(lower->Read(&got));
  });
  std::thread writer([&] {
    while (lower->Write(Data(0))) {
    }
  });
  lower->Kill(absl::CancelledError("enough"));
  reader.join();
  writer.join();
  EXPECT_TRUE(lower->End(absl::CancelledError("enough")).ok());
}

TEST_F(StripedStreamTest, AnErrorComesThroughThoughAChunkBeforeItIsMissing) {
  const auto stream = Make(2, false);
  LinkChunk last;
  last.set_error("out of memory");
  last.set_sequence(9);
  ASSERT_TRUE(Put(0, Data(1)) && Put(0, Data(3)) && Put(0, last));
  LinkChunk got;
  ASSERT_TRUE(stream->Read(&got));
  EXPECT_EQ(got.sequence(), 1u);
  ASSERT_TRUE(stream->Read(&got));
  EXPECT_EQ(got.error(), "out of memory");
}

TEST_F(StripedStreamTest, AnErrorGoesOverEveryStreamThoughChunksWait) {
  const auto lower = Make(2, true);
  std::thread writer([&] {
    while (lower->Write(Data(0))) {  // nobody reads: until the error
    }
  });
  std::thread reader([&] {
    for (const auto& line : lines_) {
      while (!line->up.Pop(absl::InfiniteDuration())->has_error()) {
      }
    }
  });
  LinkChunk last;
  last.set_error("out of memory");
  EXPECT_TRUE(lower->Write(last));
  writer.join();
  reader.join();
}

TEST_F(StripedStreamTest, NumbersThatNoPeerMaySendAreRefusedInWords) {
  EXPECT_EQ(Refusal({{0, Data(0)}}),
            "connection 1 of 2: chunk 0 came after chunk 0; numbers begin at 1 and must grow");
  EXPECT_EQ(Refusal({{1, Data(5)}, {1, Data(5)}}),
            "connection 2 of 2: chunk 5 came after chunk 5; numbers begin at 1 and must grow");
  EXPECT_EQ(Refusal({{1, Data(5)}, {1, Data(4)}}),
            "connection 2 of 2: chunk 4 came after chunk 5; numbers begin at 1 and must grow");
  EXPECT_NE(Refusal({{0, Data(2)}, {1, Data(3)}}).find("chunk 1 was skipped"), std::string::npos);
  EXPECT_NE(Refusal({{0, Data(1)}, {1, Data(1)}}).find("chunk 1 came twice"), std::string::npos);
  EXPECT_NE(Refusal({{0, Data(1)}, {1, Data(2)}, {0, Data(4)}, {1, Data(~uint64_t{0})}})
                .find("chunk 3 was skipped"),
            std::string::npos);
}

TEST_F(StripedStreamTest, EndsThatDoNotFitAreRefusedInWords) {
  EXPECT_EQ(Refusal({{0, Data(1)}, {0, EndAt(2)}, {1, EndAt(2)}}), "ended in order");
  lines_.clear();
  EXPECT_NE(Refusal({{0, Data(1)}, {0, EndAt(3)}, {1, EndAt(3)}}).find("chunk 2 was skipped"),
            std::string::npos);
  EXPECT_NE(Refusal({{0, EndAt(2)}, {1, EndAt(3)}}).find("but others lie behind it"),
            std::string::npos);
  EXPECT_NE(Refusal({{0, EndAt(2)}, {1, Data(1)}, {1, Data(2)}}).find("behind"), std::string::npos)
      << "whichever stream is read first";
}

}  // namespace
}  // namespace isthmus::daemon
