// What the executor refuses before the first step; its steps are tested with whole sessions in
// tests/rank.
#include "worker/executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/worker/bare_stage.h"
#include "tests/worker/world.h"

namespace isthmus::worker {
namespace {

using ::testing::HasSubstr;

TEST(Executor, ATextTooShortForOneStep) {
  WorldShape shape;
  shape.stages = 1;
  const auto plan = SessionPlan::Make(MakePlan(shape), 0).value();
  const FakeCorpus corpus(6, 0, 3, 11);
  BareStage stage;
  ExecutorOptions options;
  options.stage = &stage;
  options.corpus = &corpus;
  const absl::Status status = Executor::Make(*plan, options, 0).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("holds 6 training samples, one step needs 7"));
}

TEST(Executor, ACorpusOfAnotherContext) {
  WorldShape shape;
  shape.stages = 1;
  const auto plan = SessionPlan::Make(MakePlan(shape), 0).value();
  const FakeCorpus corpus(60, 0, 4, 11);
  BareStage stage;
  ExecutorOptions options;
  options.stage = &stage;
  options.corpus = &corpus;
  EXPECT_THAT(Executor::Make(*plan, options, 0).status().message(),
              HasSubstr("samples of 4 tokens, the model has 3"));
}

}  // namespace
}  // namespace isthmus::worker
