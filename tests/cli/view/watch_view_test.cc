#include "coordinator/cli/view/watch_view.h"

#include <string>

#include "absl/strings/str_join.h"
#include "coordinator/cli/view/render.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace isthmus::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

WatchReply Reply(int64_t step, double loss) {
  WatchReply reply;
  JobStatus* s = reply.mutable_status();
  s->set_name("bible");
  s->set_state(JOB_RUNNING);
  s->set_generation(1);
  s->set_step(step + 1);
  s->set_steps(100);
  s->set_loss(loss);
  s->set_first_loss(5.5);
  s->set_tokens_per_s(4312);
  s->set_eta_s(72);
  BoundaryTotals* b = s->add_boundaries();
  b->set_raw_bytes(64 << 20);
  b->set_wire_bytes(8 << 20);
  JobRecord* r = reply.add_records();
  r->set_step(step);
  r->set_loss(loss);
  r->set_committed(true);
  r->set_tokens_per_s(99);  // of that step alone
  r->set_step_s(0.5);
  r->set_compute_s(0.4);
  return reply;
}

TEST(WatchView, PlainLinesAreRateLimitedAndTheLastOneIsPrinted) {
  WatchView view(WatchViewOptions{});
  const absl::Time start = absl::FromUnixSeconds(1000);
  EXPECT_EQ(view.Update(Reply(0, 5.5), start),
            "bible running\nstep 1/100  loss 5.5000  4.31k tokens/s  8 MiB on the wire, 64 MiB "
            "raw, ratio 8.0  ETA 1m 12s\n");
  EXPECT_EQ(view.Update(Reply(1, 5.4), start + absl::Milliseconds(100)), "");
  EXPECT_THAT(view.Update(Reply(2, 5.3), start + absl::Seconds(3)), HasSubstr("step 3/100"));
  EXPECT_EQ(view.Update(Reply(3, 5.2), start + absl::Milliseconds(3100)), "");
  EXPECT_THAT(view.Finish(), HasSubstr("step 4/100  loss 5.2000"));
  EXPECT_EQ(view.Finish(), "");
  EXPECT_EQ(view.next_step(), 4);
}

TEST(WatchView, AClassifiersAccuracyStandsBesideItsValidationLoss) {
  WatchReply reply = Reply(3, 5.5);
  for (const bool there : {false, true}) {
    JobRecord* record = reply.mutable_records(0);
    record->set_has_validation_loss(true);
    reply.mutable_status()->set_has_validation_loss(true);
    if (there) record->set_validation_accuracy(0.93421);
    if (there) reply.mutable_status()->set_validation_accuracy(0.93421);
    const std::string frame =
        absl::StrJoin(WatchFrame(reply.status(), {*record}, {5.5}, 200, false), "\n");
    for (const std::string& text : {WatchLine(reply.status(), *record), frame})
      EXPECT_THAT(text,
                  HasSubstr(there ? "validation 0.0000  accuracy 93.42 %" : "validation 0.0"));
  }
}

TEST(WatchView, TheFirstStepOfAResumeHasARateAndTheLastStepNoTimeLeft) {
  JobStatus status = Reply(0, 5.5).status();
  status.set_tokens_per_s(0);
  status.set_eta_s(0);
  const JobRecord record = Reply(0, 5.5).records(0);
  EXPECT_THAT(WatchLine(status, record), HasSubstr("  99 tokens/s  "));
  EXPECT_THAT(WatchLine(status, record), HasSubstr("ratio 8.0  ETA -"));
  status.set_step(100);
  EXPECT_THAT(WatchLine(status, record), Not(HasSubstr("ETA")));
}

TEST(WatchView, ARecordHasItsOwnPhase) {
  JobStatus status = Reply(0, 5.5).status();
  JobRecord record = Reply(0, 5.5).records(0);
  EXPECT_THAT(WatchLine(status, record), Not(HasSubstr("phase")));
  status.set_phases(3);
  status.set_phase(2);
  EXPECT_THAT(WatchLine(status, record), HasSubstr("  phase 1/3  "));
  record.set_phase(1);
  EXPECT_THAT(WatchLine(status, record), HasSubstr("  phase 2/3  "));
}

TEST(WatchView, AWarningIsPrintedOnceAndItsEndToo) {
  WatchView view(WatchViewOptions{});
  const absl::Time start = absl::FromUnixSeconds(1000);
  view.Update(Reply(0, 5.5), start);
  WatchReply reply;
  *reply.mutable_status() = Reply(0, 5.5).status();
  reply.mutable_status()->add_warnings("checkpoints are not stored: that of step 10");
  EXPECT_EQ(view.Update(reply, start), "warning: checkpoints are not stored: that of step 10\n");
  reply.mutable_status()->set_warnings(0, "checkpoints are not stored: that of step 20");
  EXPECT_EQ(view.Update(reply, start), "") << "the same trouble";
  const std::string frame = absl::StrJoin(WatchFrame(reply.status(), {}, {}, 80, true), "\n");
  EXPECT_THAT(frame, HasSubstr("warning: checkpoints are not stored: that of step 20"));
  reply.mutable_status()->clear_warnings();
  EXPECT_EQ(view.Update(reply, start), "no longer: checkpoints are not stored\n");
  EXPECT_EQ(view.Update(reply, start), "");
}

// The history comes in pages. A line of its midst with today's totals beside it would be of no
// step.
TEST(WatchView, OfTheHistoryTheNewestStepAloneHasALine) {
  WatchView view(WatchViewOptions{});
  const absl::Time start = absl::FromUnixSeconds(1000);
  WatchReply page = Reply(0, 5.5);
  page.mutable_status()->set_step(3);
  EXPECT_EQ(view.Update(page, start), "bible running\n");
  EXPECT_EQ(view.Update(Reply(1, 5.4), start + absl::Milliseconds(1)), "");
  EXPECT_THAT(view.Update(Reply(2, 5.3), start + absl::Milliseconds(2)), HasSubstr("step 3/100"));
  EXPECT_THAT(view.Update(Reply(3, 5.2), start + absl::Seconds(9)), HasSubstr("step 4/100"));
}

TEST(WatchView, AnOldValidationHasNoneOfTodaysTotals) {
  WatchView view(WatchViewOptions{});
  WatchReply page = Reply(0, 5.5);
  page.mutable_status()->set_step(3);
  page.mutable_records(0)->set_has_validation_loss(true);
  page.mutable_records(0)->set_validation_loss(2.25);
  EXPECT_EQ(view.Update(page, absl::FromUnixSeconds(1000)),
            "bible running\nstep 1/100  loss 5.5000  validation 2.2500\n");
}

// Those between two lines were never printed.
TEST(WatchView, EveryValidationHasALine) {
  WatchView view(WatchViewOptions{});
  const absl::Time start = absl::FromUnixSeconds(1000);
  view.Update(Reply(0, 5.5), start);
  WatchReply reply = Reply(1, 5.4);
  reply.mutable_records(0)->set_has_validation_loss(true);
  reply.mutable_records(0)->set_validation_loss(2.25);
  *reply.add_records() = Reply(2, 5.3).records(0);
  EXPECT_EQ(view.Update(reply, start + absl::Milliseconds(10)),
            "step 2/100  loss 5.4000  4.31k tokens/s  8 MiB on the wire, 64 MiB raw, ratio 8.0  "
            "ETA 1m 12s  validation 2.2500\n");
  EXPECT_EQ(view.Update(Reply(3, 5.2), start + absl::Milliseconds(20)), "") << "said once";
  WatchReply history = Reply(4, 5);
  for (int i = 5; i < 105; ++i) {
    JobRecord* old = history.add_records();
    *old = Reply(i, 5).records(0);
    old->set_has_validation_loss(true);
  }
  const std::string lines = view.Update(history, start + absl::Milliseconds(30));
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 5) << lines;
  EXPECT_THAT(lines, HasSubstr("step 105/"));
}

TEST(WatchView, AChangeOfStateIsPrintedWithItsReason) {
  WatchView view(WatchViewOptions{});
  view.Update(Reply(0, 5.5), absl::FromUnixSeconds(1000));
  WatchReply stopping;
  *stopping.mutable_status() = Reply(0, 5.5).status();
  stopping.mutable_status()->set_reason("asked to stop");
  EXPECT_EQ(view.Update(stopping, absl::FromUnixSeconds(1000)), "bible running: asked to stop\n");
  EXPECT_EQ(view.Update(stopping, absl::FromUnixSeconds(1001)), "");
}

TEST(WatchView, TheEndIsLeftToTheSummary) {
  WatchView view(WatchViewOptions{});
  view.Update(Reply(0, 5.5), absl::FromUnixSeconds(1000));
  WatchReply paused;
  paused.mutable_status()->set_name("bible");
  paused.mutable_status()->set_state(JOB_PAUSED);
  paused.mutable_status()->set_reason("n2 is \x1b[2J lost");
  EXPECT_EQ(view.Update(paused, absl::FromUnixSeconds(1001)), "");
  WatchReply last = Reply(1, 5.4);
  *last.mutable_status() = paused.status();
  EXPECT_EQ(view.Update(last, absl::FromUnixSeconds(1001)), "");
  const std::string end = view.Finish();
  EXPECT_THAT(end, testing::StartsWith("step 2/"));
  EXPECT_THAT(end, Not(HasSubstr("lost")));
  EXPECT_EQ(view.Finish(), "");
  WatchViewOptions terminal;
  terminal.terminal = true;
  WatchView drawn(terminal);
  drawn.Update(last, absl::FromUnixSeconds(1001));
  EXPECT_THAT(drawn.Finish(), testing::AllOf(HasSubstr("paused"), Not(HasSubstr("lost"))));
}

TEST(WatchView, RepeatedRecordsCountOnce) {
  WatchView view(WatchViewOptions{});
  for (int i = 0; i < 3; ++i) view.Update(Reply(0, 5.5), absl::FromUnixSeconds(1000 + i));
  EXPECT_EQ(view.records().size(), 1u);
}

TEST(WatchView, AJobThatWentOnFromAnEarlierStepIsShownFromThere) {
  WatchView view(WatchViewOptions{});
  absl::Time now = absl::FromUnixSeconds(1000);
  for (int step = 0; step < 8; ++step) {
    WatchReply reply = Reply(step, 5);
    reply.mutable_records(0)->set_generation(1);
    reply.mutable_status()->set_step(8);  // it had come so far when the watching began
    view.Update(reply, now += absl::Seconds(10));
  }
  WatchReply reply = Reply(5, 4.5);
  reply.mutable_records(0)->set_generation(2);
  EXPECT_THAT(view.Update(reply, now += absl::Seconds(10)), HasSubstr("step 6/100  loss 4.5000"));
  EXPECT_EQ(view.next_step(), 6);
  ASSERT_EQ(view.records().size(), 6u);
  reply.mutable_records(0)->set_generation(1);  // sent again after a reconnection
  EXPECT_THAT(view.Update(reply, now += absl::Seconds(10)), Not(HasSubstr("loss 4.5000")));
}

TEST(WatchView, HistoryIsBounded) {
  WatchView view(WatchViewOptions{});
  for (size_t i = 0; i < 5 * kMaxHistory; ++i)
    view.Update(Reply(static_cast<int64_t>(i), 1.0), absl::FromUnixSeconds(1000));
  EXPECT_LE(view.records().size(), 2 * kMaxHistory);
  EXPECT_EQ(view.records().back().step(), static_cast<int64_t>(5 * kMaxHistory - 1));
}

TEST(WatchView, FrameIsRedrawnInPlace) {
  WatchViewOptions options;
  options.terminal = true;
  options.width = 60;
  WatchView view(options);
  const absl::Time start = absl::FromUnixSeconds(1000);
  const std::string first = view.Update(Reply(0, 5.5), start);
  EXPECT_THAT(first, Not(HasSubstr("\x1b[5A")));
  EXPECT_THAT(first, HasSubstr("bible  running  generation 1"));
  EXPECT_EQ(view.Update(Reply(1, 5.0), start + absl::Milliseconds(10)), "");
  const std::string second = view.Update(Reply(2, 4.5), start + absl::Seconds(1));
  EXPECT_THAT(second, HasSubstr("\x1b[5A\r\x1b[J"));  // five lines up
  EXPECT_THAT(second, HasSubstr("step 3/100  ETA 1m 12s"));
  EXPECT_THAT(second, HasSubstr("█▄▁"));
  EXPECT_THAT(second, HasSubstr("80 % of it compute"));
  EXPECT_EQ(view.Remark("lost"), "lost\n");
  EXPECT_THAT(view.Finish(), Not(HasSubstr("\x1b[5A")));
}

TEST(WatchView, NoLineIsWiderThanTheTerminal) {
  WatchReply reply = Reply(0, 5.5);
  reply.mutable_status()->set_reason(std::string(300, 'x') + "\nsecond line");
  for (size_t width : {20, 40, 60, 80, 200}) {
    for (const std::string& line :
         WatchFrame(reply.status(), {reply.records(0)}, {5, 4, 3}, width, true)) {
      EXPECT_LE(DisplayWidth(line), width);
      EXPECT_THAT(line, Not(HasSubstr("\n")));
    }
  }
}

TEST(WatchView, SkippedStepsAreNamed) {
  WatchReply reply = Reply(6, 5);
  reply.mutable_records(0)->set_committed(false);
  reply.mutable_records(0)->set_has_validation_loss(true);
  reply.mutable_records(0)->set_validation_loss(2.25);
  EXPECT_THAT(WatchLine(reply.status(), reply.records(0)),
              HasSubstr("validation 2.2500  (skipped: the gradients were not finite)"));
}

}  // namespace
}  // namespace isthmus::cli
