// ResumingStream over lines in memory that break where the test says.
#include "daemon/net/resuming_stream.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/queue.h"
#include "base/rng.h"
#include "daemon/net/striped_stream.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace isthmus::daemon {
namespace {

using ::testing::HasSubstr;

constexpr size_t kInFlight = 3;  // chunks on a line, each way
constexpr int kNever = 1 << 30;

// Two directions. Each breaks the line as its `left` runs out: that chunk and all that is under way
// are lost.
struct Line {
  explicit Line(size_t in_flight = kInFlight) : up(in_flight), down(in_flight) {}
  BoundedQueue<LinkChunk> up;
  BoundedQueue<LinkChunk> down;
  std::atomic<int> left_up{kNever};
  std::atomic<int> left_down{kNever};
  std::atomic<bool> one_sided{false};  // only the writer sees it break
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
        out_(lower ? &line_->up : &line_->down),
        left_(lower ? &line_->left_up : &line_->left_down) {}

  bool Read(LinkChunk* chunk) override {
    auto got = in_->Pop(absl::InfiniteDuration());
    if (got.ok()) *chunk = *std::move(got);
    return got.ok();
  }
  bool Write(const LinkChunk& chunk) override {
    if (broken_) return false;
    if (left_->fetch_sub(1) > 0) return out_->Push(chunk, absl::InfiniteDuration()).ok();
    if (line_->one_sided) {
      broken_ = true;
      in_->Abort(absl::UnavailableError("the wire was cut"));
    } else {
      line_->Cut();
    }
    return false;
  }
  void Kill(const absl::Status& why) override { line_->Cut(); }
  bool kill_tells_why() const override { return false; }
  absl::Status WhyBroken() override { return told.ok() ? line_broke_ : told; }
  bool may_resume() override { return told.ok(); }
  absl::Status End(const absl::Status& mine) override { return absl::OkStatus(); }

  absl::Status told;  // by the peer

 private:
  const absl::Status line_broke_ = absl::UnavailableError("the wire was cut");
  const std::shared_ptr<Line> line_;
  BoundedQueue<LinkChunk>* const in_;
  BoundedQueue<LinkChunk>* const out_;
  std::atomic<int>* const left_;
  std::atomic<bool> broken_{false};
};

// Where the two ends meet for their next line: both come, told or by themselves.
struct Meeting {
  struct Side {
    bool here = false;
    uint64_t received = 0;
    uint64_t there = 0;  // received of the other one
    Redialler::Interrupt interrupt;
    std::unique_ptr<LinkStream> stream;
  };
  Mutex mutex;
  CondVar changed;
  Side sides[2];
  bool cancelled = false;
  absl::Status refusal;
  int lines = 0;
  std::function<std::shared_ptr<Line>(int)> make = [](int) { return std::make_shared<Line>(); };
};

class MeetingEnd : public Redialler {
 public:
  MeetingEnd(Meeting* meeting, bool lower) : meeting_(meeting), side_(lower ? 0 : 1) {}
  ~MeetingEnd() override {
    MutexLock lock(&meeting_->mutex);
    meeting_->sides[side_].interrupt = nullptr;
  }
  void OnInterrupt(Interrupt interrupt) override {
    MutexLock lock(&meeting_->mutex);
    meeting_->sides[side_].interrupt = std::move(interrupt);
  }
  absl::StatusOr<Connection> Redial(uint64_t received) override {
    MutexLock lock(&meeting_->mutex);
    if (!meeting_->refusal.ok()) return meeting_->refusal;
    Meeting::Side& mine = meeting_->sides[side_];
    Meeting::Side& other = meeting_->sides[1 - side_];
    mine.here = true;
    mine.received = received;
    if (other.here) {
      const auto line = meeting_->make(++meeting_->lines);
      mine.stream = std::make_unique<LineEnd>(line, side_ == 0);
      other.stream = std::make_unique<LineEnd>(line, side_ == 1);
      mine.here = other.here = false;
      mine.there = other.received;
      other.there = mine.received;
    } else if (other.interrupt) {
      EXPECT_TRUE(other.interrupt(std::nullopt).ok());
    }
    meeting_->changed.SignalAll();
    while (mine.stream == nullptr && !meeting_->cancelled) meeting_->changed.Wait(&meeting_->mutex);
    if (meeting_->cancelled) return absl::CancelledError("cancelled");
    return Connection{std::move(mine.stream), mine.there};
  }
  void Cancel() override {
    MutexLock lock(&meeting_->mutex);
    meeting_->cancelled = true;
    meeting_->changed.SignalAll();
  }

 private:
  Meeting* const meeting_;
  const int side_;
};

// What a stream tells.
class Notices {
 public:
  explicit Notices(std::function<void(const std::string&)>* tell) {
    *tell = [this](const std::string& trouble) {
      EXPECT_TRUE(told_.Push(trouble, absl::InfiniteDuration()).ok());
    };
  }
  std::string Await() { return told_.Pop(absl::InfiniteDuration()).value(); }

 private:
  BoundedQueue<std::string> told_{100};
};

LinkChunk Numbered(int number, size_t bytes = 8) {
  LinkChunk chunk;
  chunk.set_data(absl::StrCat(number, ":", std::string(bytes, 'x')));
  return chunk;
}

class ResumingStreamTest : public testing::Test {
 protected:
  std::unique_ptr<ResumingStream> Make(bool lower, const std::shared_ptr<Line>& line,
                                       int64_t log_bytes = 1 << 20) {
    auto stream = std::make_unique<LineEnd>(line, lower);
    first_[lower ? 0 : 1] = stream.get();
    return std::make_unique<ResumingStream>(
        ResumingOptions{log_bytes, "link b0 to there", tell_, settled_}, std::move(stream),
        std::make_unique<MeetingEnd>(&meeting_, lower));
  }
  // `count` chunks and the end each way at once, each read once and in order.
  void Exchange(const std::shared_ptr<Line>& line, int count, const std::string& what) {
    const auto lower = Make(true, line);
    const auto upper = Make(false, line);
    std::vector<std::thread> threads;
    for (ResumingStream* stream : {lower.get(), upper.get()}) {
      threads.emplace_back([&, stream] {
        for (int i = 0; i < count; ++i) ASSERT_TRUE(stream->Write(Numbered(i))) << what;
        LinkChunk end;
        end.set_end(true);
        ASSERT_TRUE(stream->Write(end)) << what;
      });
      threads.emplace_back([&, stream] {
        LinkChunk got;
        for (int i = 0; i < count; ++i) {
          ASSERT_TRUE(stream->Read(&got)) << what << ": " << stream->WhyBroken();
          ASSERT_EQ(got.data(), Numbered(i).data()) << what;
        }
        ASSERT_TRUE(stream->Read(&got) && got.has_end()) << what;
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  Meeting meeting_;
  std::function<void(const std::string&)> tell_;
  std::chrono::milliseconds settled_{1};
  LineEnd* first_[2] = {};
};

TEST_F(ResumingStreamTest, ABreakAtAnyChunkOfEitherDirectionLosesAndDoublesNothing) {
  constexpr int kChunks = 6;
  for (const bool one_sided : {false, true}) {
    for (int at = 0; at <= kChunks; ++at) {
      for (const bool up : {true, false}) {
        const auto line = std::make_shared<Line>();
        (up ? line->left_up : line->left_down) = at;
        line->one_sided = one_sided;
        const int before = meeting_.lines;
        Exchange(line, kChunks,
                 absl::StrCat(up ? "up " : "down ", at, one_sided ? ", one-sided" : ""));
        EXPECT_EQ(meeting_.lines, before + 1);
        meeting_.cancelled = false;
      }
    }
  }
}

TEST_F(ResumingStreamTest, LinesThatBreakAgainAndAgainAlsoWhileTheyMend) {
  constexpr int kChunks = 60;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    meeting_.cancelled = false;
    const int before = meeting_.lines;
    meeting_.make = [&](int number) {
      auto line = std::make_shared<Line>();
      if (number - before >= 20) return line;
      line->left_up = static_cast<int>(RandomBelow(seed, 1, number, 9));
      line->left_down = static_cast<int>(RandomBelow(seed, 2, number, 9));
      line->one_sided = RandomBelow(seed, 3, number, 2) == 0;
      return line;
    };
    Exchange(meeting_.make(0), kChunks, absl::StrCat("seed ", seed));
    EXPECT_GT(meeting_.lines, before + 5) << seed;
  }
}

TEST_F(ResumingStreamTest, WhatTheOtherEndHasReadIsNotKept) {
  constexpr int kChunks = 40;
  constexpr size_t kBytes = 64 << 10;
  const auto line = std::make_shared<Line>();
  const auto lower = Make(true, line, int64_t{kChunks} * 2 * kBytes);
  const auto upper = Make(false, line);
  std::thread reader([&] {
    LinkChunk got;
    for (int i = 0; i < kChunks; ++i) ASSERT_TRUE(upper->Read(&got));
    EXPECT_TRUE(upper->Write(Numbered(0)));
  });
  std::thread counts([&] {
    LinkChunk got;
    EXPECT_TRUE(lower->Read(&got));
    EXPECT_LE(lower->log_bytes(), ResumingStream::kTellBytes + 2 * int64_t{kBytes});
  });
  for (int i = 0; i < kChunks; ++i) EXPECT_TRUE(lower->Write(Numbered(i, kBytes)));
  reader.join();
  counts.join();
}

TEST_F(ResumingStreamTest, WhatIsKeptIsBoundedAndABreakBeyondItIsFinal) {
  constexpr int64_t kLog = 2000;
  const auto line = std::make_shared<Line>(100);
  const auto lower = Make(true, line, kLog);
  const auto upper = Make(false, line);
  for (int i = 0; i < 50; ++i) {
    ASSERT_TRUE(lower->Write(Numbered(i)));  // nobody reads, and nothing waits
    EXPECT_LE(lower->log_bytes(), kLog);
  }
  line->Cut();
  LinkChunk got;
  EXPECT_FALSE(lower->Read(&got));
  EXPECT_THAT(std::string(lower->WhyBroken().message()),
              HasSubstr("the wire was cut; it can't go on: 0 of 50 messages are said to have come, "
                        "and those from"));
}

TEST_F(ResumingStreamTest, ARedialOfAWrongCountLeavesTheConnectionAlone) {
  const auto line = std::make_shared<Line>(100);
  const auto lower = Make(true, line, 2000);
  const auto upper = Make(false, line);
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(lower->Write(Numbered(i)));
  const auto redialled = [&](uint64_t received) {
    MutexLock lock(&meeting_.mutex);
    return meeting_.sides[0].interrupt(received);
  };
  for (const uint64_t received : {uint64_t{0}, uint64_t{51}, ~uint64_t{0}}) {
    const absl::Status refused = redialled(received);
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << received;
    EXPECT_THAT(std::string(refused.message()), HasSubstr(absl::StrCat(received, " of 50")));
  }
  LinkChunk got;
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(upper->Read(&got)) << i;
  EXPECT_EQ(meeting_.lines, 0);
}

TEST_F(ResumingStreamTest, WhatWasSaidIsFinal) {
  for (const bool read : {true, false}) {
    const auto line = std::make_shared<Line>();
    const auto lower = Make(true, line);
    LinkChunk error;
    error.set_error("the disk is full");
    if (read) {
      ASSERT_TRUE(line->down.Push(error, absl::InfiniteDuration()).ok());
      LinkChunk got;
      EXPECT_TRUE(lower->Read(&got));
      EXPECT_EQ(got.error(), "the disk is full");
    } else {
      EXPECT_TRUE(lower->Write(error));
    }
    line->Cut();
    LinkChunk got;
    EXPECT_FALSE(lower->Read(&got));
  }
  const auto line = std::make_shared<Line>();
  const auto lower = Make(true, line);
  first_[0]->told = absl::DataLossError("a bit flipped");
  line->Cut();
  EXPECT_FALSE(lower->Write(Numbered(0)));
  EXPECT_EQ(lower->WhyBroken(), absl::DataLossError("a bit flipped"));
  EXPECT_EQ(meeting_.lines, 0);
}

TEST_F(ResumingStreamTest, ARedialThatIsRefusedEndsItWithBothReasons) {
  meeting_.refusal = absl::FailedPreconditionError("the link is not open there");
  const auto line = std::make_shared<Line>();
  const auto lower = Make(true, line);
  line->Cut();
  LinkChunk got;
  EXPECT_FALSE(lower->Read(&got));
  EXPECT_FALSE(lower->Write(Numbered(0)));
  EXPECT_EQ(lower->WhyBroken(),
            absl::UnavailableError("the wire was cut; the link is not open there"));
}

TEST_F(ResumingStreamTest, TellsWhenItBreaksAndWhenItGoesOn) {
  Notices notices(&tell_);
  const auto line = std::make_shared<Line>();
  const auto lower = Make(true, line);
  tell_ = nullptr;
  const auto upper = Make(false, line);
  line->Cut();
  EXPECT_TRUE(lower->Write(Numbered(0)));
  LinkChunk got;
  EXPECT_TRUE(upper->Read(&got));
  EXPECT_EQ(notices.Await(), "link b0 to there broke (the wire was cut): dialling again");
  EXPECT_EQ(notices.Await(), "");
}

TEST_F(ResumingStreamTest, OfALinkThatBreaksAgainAndAgainItTellsOnce) {
  constexpr int kBreaks = 5;
  settled_ = std::chrono::hours(1);
  std::atomic<int> told{0};
  tell_ = [&](const std::string&) { ++told; };
  auto line = std::make_shared<Line>();
  meeting_.make = [&](int) { return line; };
  const auto lower = Make(true, line);
  tell_ = nullptr;
  const auto upper = Make(false, line);
  for (int i = 0; i < kBreaks; ++i) {
    std::exchange(line, std::make_shared<Line>())->Cut();
    EXPECT_TRUE(lower->Write(Numbered(i)));
    LinkChunk got;
    EXPECT_TRUE(upper->Read(&got));
  }
  EXPECT_EQ(lower->mended(), kBreaks);
  EXPECT_EQ(told, 1);
}

TEST_F(ResumingStreamTest, KillEndsWhatWaitsForAnotherLine) {
  const auto line = std::make_shared<Line>();
  const auto lower = Make(true, line);
  line->Cut();
  std::thread reader([&] {
    LinkChunk got;
    EXPECT_FALSE(lower->Read(&got));
  });
  std::thread writer([&] { EXPECT_FALSE(lower->Write(Numbered(0))); });
  lower->Kill(absl::InternalError("enough"));
  reader.join();
  writer.join();
  EXPECT_EQ(lower->WhyBroken(), absl::InternalError("enough"));
}

TEST_F(ResumingStreamTest, APeerThatHasMoreThanWasSentIsRefused) {
  const auto line = std::make_shared<Line>();
  const auto lower = Make(true, line);
  LinkChunk count;
  count.set_sequence(1);
  ASSERT_TRUE(line->down.Push(count, absl::InfiniteDuration()).ok());
  LinkChunk got;
  EXPECT_FALSE(lower->Read(&got));
  EXPECT_EQ(lower->WhyBroken(),
            absl::InvalidArgumentError("the peer says that it has 1 messages of 0 that were sent"));
}

// It was sent all, but not over the connection that there is now.
TEST_F(ResumingStreamTest, APeerThatHasWhatIsBeingSentAgainIsRefused) {
  constexpr int kSent = 5;
  meeting_.make = [](int) { return std::make_shared<Line>(1); };
  const auto line = std::make_shared<Line>(100);
  const auto lower = Make(true, line);
  for (int i = 0; i < kSent; ++i) ASSERT_TRUE(lower->Write(Numbered(i)));
  line->Cut();
  const auto peer = MeetingEnd(&meeting_, false).Redial(0);
  ASSERT_TRUE(peer.ok());
  LinkChunk chunk;
  chunk.set_sequence(kSent);
  ASSERT_TRUE(peer->stream->Write(chunk));
  LinkChunk got;
  EXPECT_FALSE(lower->Read(&got));
  EXPECT_THAT(lower->WhyBroken().ToString(),
              HasSubstr("INVALID_ARGUMENT: the peer says that it has 5 messages of"));
  std::thread drain([&] {
    while (peer->stream->Read(&chunk)) {
    }
  });
  lower->Kill(absl::CancelledError("done"));
  drain.join();
}

TEST_F(ResumingStreamTest, WhoGivesUpAStreamThatIsBeingMendedHearsWhyItBroke) {
  Notices notices(&tell_);
  const auto line = std::make_shared<Line>();
  const auto lower = Make(true, line);
  line->Cut();
  std::thread reader([&] {
    LinkChunk got;
    EXPECT_FALSE(lower->Read(&got));
  });
  notices.Await();
  LinkChunk error;
  error.set_error("the disk is full");
  EXPECT_FALSE(lower->Write(error)) << "nobody is there";
  EXPECT_EQ(lower->WhyBroken(), absl::UnavailableError("the wire was cut"));
  lower->Kill(absl::CancelledError("done"));
  reader.join();
}

TEST_F(ResumingStreamTest, SoDoesWhoGivesUpALinkOfSeveral) {
  Notices notices(&tell_);
  const std::shared_ptr<Line> lines[] = {std::make_shared<Line>(), std::make_shared<Line>()};
  std::vector<std::unique_ptr<LinkStream>> streams;
  for (const auto& line : lines) streams.push_back(Make(true, line));
  StripedStream striped(std::move(streams), 1 << 20);
  lines[0]->Cut();
  notices.Await();
  LinkChunk error;
  error.set_error("the disk is full");
  EXPECT_FALSE(striped.Write(error));
  LinkChunk got;
  EXPECT_FALSE(striped.Read(&got));
  EXPECT_EQ(striped.WhyBroken().code(), absl::StatusCode::kUnavailable);
}

TEST_F(ResumingStreamTest, WhatHasNotBrokenNeitherSaysThatAllIsWell) {
  EXPECT_EQ(Make(true, std::make_shared<Line>())->WhyBroken().code(),
            absl::StatusCode::kUnavailable);
}

TEST_F(ResumingStreamTest, AnEndThatHasEndedTakesNoDials) {
  const auto upper = Make(false, std::make_shared<Line>());
  EXPECT_TRUE(upper->End(absl::OkStatus()).ok());
  MutexLock lock(&meeting_.mutex);
  EXPECT_TRUE(meeting_.cancelled);
}

}  // namespace
}  // namespace isthmus::daemon
