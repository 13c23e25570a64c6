// Plans and submissions of jobs that start from something: a model that is read in, a checkpoint.
#include <filesystem>
#include <fstream>

#include "base/hash.h"
#include "base/safetensors.h"
#include "coordinator/cli/exit_code.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cli/app_fixture.h"
#include "tests/cli/model/small_gpt2.h"

namespace isthmus::cli {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

TEST_F(AppTest, SubmitUploadsTheModelItStartsFrom) {
  fs::create_directory(dir_ + "/gpt2");
  WriteSmallGpt2(dir_ + "/gpt2", "");
  std::ofstream(Job())
      << "name: bible\nmodel: {layers: 2, hidden: 8, heads: 2, context: 4, init_from: gpt2}\ndata: "
         "{path: bible.txt}\n"
         "recipe: {steps: 10, global_batch: 4, micro_batch: 2, learning_rate: 1e-3}\n";
  const Result result = Run({"submit", Job()});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(fake_.asked().put_header.job_id(), "bible-7");
  EXPECT_EQ(fake_.asked().put_header.file(), "weights.safetensors");
  EXPECT_EQ(fake_.asked().put_header.stages(), 1);
  EXPECT_EQ(fake_.asked().put_header.file_bytes(),
            static_cast<int64_t>(fake_.asked().put_data.size()));
  EXPECT_EQ(fake_.asked().put_header.checksum(), Hash64(fake_.asked().put_data));
  EXPECT_TRUE(ParseSafetensors(fake_.asked().put_data).ok());
  EXPECT_TRUE(fake_.asked().submit_request.init_uploaded());
  EXPECT_EQ(fake_.asked().submit_request.job().model().init_from(),
            fs::path(dir_ + "/gpt2").lexically_normal());
  EXPECT_EQ(fake_.asked().submit_request.job_id(), "bible-7");

  std::ofstream(Job())
      << "name: bible\nmodel: {layers: 3, hidden: 8, heads: 2, context: 4, init_from: gpt2}\ndata: "
         "{path: bible.txt}\n"
         "recipe: {steps: 10, global_batch: 4, micro_batch: 2, learning_rate: 1e-3}\n";
  const Result wrong = Run({"submit", Job()});
  EXPECT_EQ(wrong.code, kExitUsage);
  EXPECT_THAT(wrong.err, HasSubstr("n_layer is 2, but model.layers is 3"));
  const Result planned = Run({"plan", Job()});  // before anybody is asked
  EXPECT_EQ(planned.code, kExitUsage);
  EXPECT_THAT(planned.err, HasSubstr("n_layer is 2, but model.layers is 3"));
}

TEST_F(AppTest, PlanAndSubmitTakeTheNormsEpsilonOfTheModel) {
  fs::create_directory(dir_ + "/gpt2");
  WriteSmallGpt2(dir_ + "/gpt2", "");
  ModelSpec model = SmallGpt2Model();
  model.set_norm_epsilon(1e-3);
  std::ofstream(dir_ + "/gpt2/config.json") << Gpt2ConfigJson(model);
  std::ofstream(Job())
      << "name: bible\nmodel: {layers: 2, hidden: 8, heads: 2, context: 4, init_from: gpt2}\ndata: "
         "{path: bible.txt}\n"
         "recipe: {steps: 10, global_batch: 4, micro_batch: 2, learning_rate: 1e-3}\n";
  const Result planned = Run({"plan", Job()});
  EXPECT_EQ(planned.code, 0) << planned.err;
  EXPECT_THAT(planned.out, HasSubstr("/gpt2: 3840 parameters, "));
  EXPECT_THAT(planned.out, HasSubstr("layer_norm_epsilon 0.001"));
  EXPECT_EQ(fake_.asked().plan_request.job().model().norm_epsilon(), 1e-3);
  EXPECT_TRUE(fake_.asked().put_data.empty());
  EXPECT_EQ(Run({"submit", Job()}).code, 0);
  EXPECT_EQ(fake_.asked().submit_request.job().model().norm_epsilon(), 1e-3);
  EXPECT_EQ(Run({"submit", Job(), "--resume"}).code, 0);  // the checkpoint has the model
  EXPECT_FALSE(fake_.asked().submit_request.init_uploaded());
}

TEST_F(AppTest, AResumeShowsWhatItChanges) {
  FieldChange* change = fake_.plan.add_changes();
  change->set_field("learning rate at step 101");
  change->set_before("0.0003");
  change->set_after("0.00298");
  change->set_alters_run(true);
  *fake_.submitted.add_changes() = *change;
  const Result planned = Run({"plan", Job(), "--resume"});
  EXPECT_EQ(planned.code, 0) << planned.err;
  EXPECT_THAT(planned.out,
              testing::ContainsRegex("\\*  learning rate at step 101  0.0003  0.00298"));
  EXPECT_THAT(planned.out, HasSubstr("only with --accept-changes"));
  EXPECT_TRUE(fake_.asked().plan_request.resume());
  const Result submitted = Run({"submit", Job(), "--resume", "--accept-changes"});
  EXPECT_EQ(submitted.code, 0) << submitted.err;
  EXPECT_THAT(submitted.out, HasSubstr("learning rate at step 101"));
  EXPECT_TRUE(fake_.asked().submit_request.accept_changes());
  const Result alone = Run({"submit", Job(), "--accept-changes"});
  EXPECT_EQ(alone.code, kExitUsage);
  EXPECT_THAT(alone.err, HasSubstr("add --resume"));
}

}  // namespace
}  // namespace isthmus::cli
