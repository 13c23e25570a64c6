// A study with the real engine: a small GPT on a generated text.
#include <cmath>
#include <map>
#include <string>

#include "gtest/gtest.h"
#include "tests/rank/gpt_world.h"
#include "tests/temp_directory.h"
#include "worker/study/study.h"

namespace isthmus::study {
namespace {

TEST(StudyEngine, QuantisedAndUncompressedAndTheRankTest) {
  StudyOptions options;
  const TempDirectory out;
  options.out = out.path();
  options.job = DefaultJob();
  options.job.mutable_model()->set_layers(3);
  options.job.mutable_model()->set_hidden(32);
  options.job.mutable_model()->set_context(16);
  RecipeSpec* recipe = options.job.mutable_recipe();
  recipe->set_steps(60);
  recipe->set_global_batch(8);
  recipe->set_eval_samples(8);
  options.grid.settings = {*ParseSetting("quant(8) / quant(8)"), *ParseSetting("quant(1)")};
  options.grid.boundaries = {Where::kAll};
  options.grid.seeds = {1};
  options.make_stage = worker::GptStages();
  const worker::TextCorpus corpus(worker::GenerateText(160 * 16 + 1, 1), 16, 16);
  const auto result = RunStudy(options, corpus, [](const Progress&) {});
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_EQ(result->rows.size(), 3u);
  const Row &none = result->rows[0], &mild = result->rows[1], &harsh = result->rows[2];
  EXPECT_LT(none.validation, 4);
  EXPECT_NE(none.validation, mild.validation);
  EXPECT_LT(none.loss, 4);  // it learns: ln 256 is 5.5
  EXPECT_LT(std::abs(mild.difference), 0.02);
  EXPECT_GT(harsh.difference, std::abs(mild.difference) + 0.01);  // one bit: no positive level
  EXPECT_GT(mild.ratio(), 3);
  ASSERT_EQ(result->energies.size(), 4u);
  std::map<std::string, double> share;
  for (const Energy& e : result->energies) {
    EXPECT_GT(e.least, 0) << e.what;
    EXPECT_LE(e.most, 1 + 1e-9) << e.what;
    EXPECT_EQ(e.matrices, e.what == "weight gradient" ? 12 : 2) << e.what;
    share[e.what] = e.share;
  }
  // T3.4: what low-rank codecs count on is in the gradients of weights, and less in activations.
  EXPECT_LT(share["activation"], share["weight gradient"]);
}

}  // namespace
}  // namespace isthmus::study
