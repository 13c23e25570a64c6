#include "proto/job/job_defaults.h"

#include <functional>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/data/data_files.h"

namespace isthmus {
namespace {

JobSpec SmallJob() {
  JobSpec job;
  job.set_name("bible");
  job.mutable_model()->set_layers(4);
  job.mutable_model()->set_hidden(64);
  job.mutable_model()->set_heads(4);
  job.mutable_model()->set_context(64);
  job.mutable_data()->set_path("bible.txt");
  job.mutable_recipe()->set_steps(100);
  job.mutable_recipe()->set_global_batch(16);
  job.mutable_recipe()->set_micro_batch(4);
  job.mutable_recipe()->set_learning_rate(1e-3);
  return job;
}

TEST(JobDefaults, FillsWhatIsUnsetAndKeepsWhatIsSet) {
  JobSpec job = SmallJob();
  job.mutable_recipe()->set_weight_decay(0);
  FillDefaults(&job);
  EXPECT_EQ(job.recipe().weight_decay(), 0);
  EXPECT_EQ(job.recipe().warmup_steps(), 5);
  EXPECT_EQ(job.model().vocabulary(), 256);
  EXPECT_EQ(job.compression().forward(), "auto");
  EXPECT_TRUE(ValidateJob(job).ok()) << ValidateJob(job);
}

// The written-out default of strategy.stages beside a cut: half of the model was planned.
TEST(JobDefaults, ACutSaysTheNumberOfStages) {
  for (const int written : {-1, 0, 2}) {
    JobSpec job = SmallJob();
    if (written >= 0) job.mutable_strategy()->set_stages(written);
    for (int i = 0; i < 2; ++i)
      job.mutable_strategy()->add_layers_per_stage(job.model().layers() / 2);
    EXPECT_EQ(WantedStages(job.strategy()), 2);
    FillDefaults(&job);
    EXPECT_EQ(job.strategy().stages(), 2);
    EXPECT_TRUE(ValidateJob(job).ok()) << ValidateJob(job);
  }
}

TEST(JobDefaults, AVocabularyMayHaveAMillionTokens) {
  JobSpec job = SmallJob();
  FillDefaults(&job);
  job.mutable_model()->set_vocabulary(static_cast<int32_t>(kMaxVocabulary));
  EXPECT_TRUE(ValidateJob(job).ok()) << ValidateJob(job);
  job.mutable_model()->set_vocabulary(static_cast<int32_t>(kMaxVocabulary) + 1);
  EXPECT_THAT(std::string(ValidateJob(job).message()),
              ::testing::HasSubstr("it must be from 2 to 1048576"));
}

TEST(JobDefaults, Precisions) {
  JobSpec job = SmallJob();
  FillDefaults(&job);
  EXPECT_EQ(job.recipe().precision(), "bf16");
  EXPECT_FALSE(job.recipe().deterministic());
  job.mutable_recipe()->set_deterministic(true);
  for (const char* precision : {"fp32", "tf32", "bf16"}) {
    job.mutable_recipe()->set_precision(precision);
    EXPECT_TRUE(ValidateJob(job).ok()) << ValidateJob(job);
  }
  job.mutable_recipe()->set_precision("fp8");
  EXPECT_THAT(std::string(ValidateJob(job).message()), ::testing::HasSubstr("recipe.precision"));
}

// A run without codecs stays exact: its tied gradient goes in fp32.
TEST(JobDefaults, TheTiedGradientIsChosenUnlessNothingIsCompressed) {
  const auto tied = [](const char* forward, const char* backward) {
    JobSpec job = SmallJob();
    if (forward != nullptr) job.mutable_compression()->set_forward(forward);
    if (backward != nullptr) job.mutable_compression()->set_backward(backward);
    FillDefaults(&job);
    EXPECT_TRUE(ValidateJob(job).ok()) << ValidateJob(job);
    return job.compression().tied();
  };
  EXPECT_EQ(tied(nullptr, nullptr), "auto");
  EXPECT_EQ(tied("none", "quant(4)"), "auto");
  EXPECT_EQ(tied("bf16", "none"), "auto");
  EXPECT_EQ(tied("none", "none"), "none");
  JobSpec job = SmallJob();
  FillDefaults(&job);
  EXPECT_EQ(job.compression().min_bits(), 4);
}

TEST(JobDefaults, TheNormsEpsilonIsThatOfTheModelReadIn) {
  JobSpec job = SmallJob();
  FillDefaults(&job);
  EXPECT_EQ(job.model().norm_epsilon(), 1e-5);
  JobSpec read = SmallJob();
  read.mutable_model()->set_init_from("gpt2");
  FillDefaults(&read);
  EXPECT_FALSE(read.model().has_norm_epsilon());
  EXPECT_EQ(NormEpsilon(read.model()), 1e-5);
  EXPECT_TRUE(ValidateJob(read).ok());
}

TEST(JobDefaults, EachBadFieldIsNamed) {
  const std::pair<std::function<void(JobSpec*)>, const char*> cases[] = {
      {[](JobSpec* j) { j->set_name("Bad Name"); }, "name"},
      {[](JobSpec* j) { j->mutable_model()->set_hidden(65); }, "model.hidden"},
      {[](JobSpec* j) { j->mutable_model()->set_norm_epsilon(0); }, "model.norm_epsilon"},
      {[](JobSpec* j) { j->mutable_model()->set_norm_epsilon(2); }, "model.norm_epsilon"},
      {[](JobSpec* j) { j->mutable_model()->set_layers(0); }, "model.layers"},
      {[](JobSpec* j) { j->mutable_data()->clear_path(); }, "data.path"},
      {[](JobSpec* j) { j->mutable_recipe()->set_micro_batch(17); }, "recipe.micro_batch"},
      {[](JobSpec* j) { j->mutable_recipe()->set_learning_rate(0); }, "recipe.learning_rate"},
      {[](JobSpec* j) { j->mutable_strategy()->set_stages(5); }, "strategy.stages"},
      {[](JobSpec* j) { j->mutable_strategy()->add_layers_per_stage(3); },
       "strategy.layers_per_stage"},
      {[](JobSpec* j) { j->mutable_compression()->set_forward("quant(9)"); },
       "compression.forward"},
      {[](JobSpec* j) { j->mutable_compression()->set_min_bits(1); }, "compression.min_bits"},
      {[](JobSpec* j) { j->mutable_compression()->set_min_bits(9); }, "compression.min_bits"},
      {[](JobSpec* j) { j->mutable_compression()->set_tied("delta(quant(4))"); },
       "compression.tied"},
      {[](JobSpec* j) { j->mutable_recipe()->set_optimizer("sgd"); }, "recipe.optimizer"},
      {[](JobSpec* j) { j->mutable_compression()->set_backward("delta(quant(4))"); },
       "compression.backward"},
      {[](JobSpec* j) { j->mutable_compression()->set_tied("lowrank(4) | zstd"); },
       "compression.tied"},
      {[](JobSpec* j) { j->mutable_compression()->set_backward("autoencoder(2)"); },
       "compression.backward"},
      {[](JobSpec* j) { j->mutable_compression()->set_evaluation("autoencoder(2)"); },
       "compression.evaluation"},
      {[](JobSpec* j) { j->mutable_compression()->set_forward("autoencoder(60000)"); },
       "compression.forward"},
      {[](JobSpec* j) { j->mutable_compression()->set_forward("kept"); }, "compression.forward"},
      {[](JobSpec* j) { j->mutable_compression()->set_evaluation("kept"); },
       "compression.evaluation"},
      {[](JobSpec* j) { j->mutable_compression()->set_backward("kept"); }, "compression.backward"},
      {[](JobSpec* j) { j->mutable_checkpoint()->set_keep(0); }, "checkpoint.keep"},
      {[](JobSpec* j) { j->mutable_checkpoint()->set_local(-2); }, "checkpoint.local"},
      {[](JobSpec* j) { j->mutable_checkpoint()->set_buddies(2); }, "checkpoint.buddies"},
      {[](JobSpec* j) {
         j->mutable_checkpoint()->set_local(0);
         j->mutable_checkpoint()->set_buddies(1);
       },
       "checkpoint.buddies"},
      {[](JobSpec* j) { j->mutable_recovery()->set_attempts(0); }, "recovery.attempts"},
      {[](JobSpec* j) { j->mutable_compression()->set_backward_when("drain"); },
       "compression.backward_when"},
  };
  JobSpec before = SmallJob();  // stored before there was such a field
  FillDefaults(&before);
  before.clear_recovery();
  EXPECT_TRUE(ValidateJob(before).ok());
  for (const auto& [spoil, field] : cases) {
    JobSpec job = SmallJob();
    spoil(&job);
    FillDefaults(&job);
    absl::Status status = ValidateJob(job);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << field;
    EXPECT_THAT(std::string(status.message()), testing::StartsWith(field));
  }
}

// Codecs that must see every gradient can't code an epilogue's alone.
TEST(JobDefaults, AnEpilogueHasACodecThatMayMissGradients) {
  const auto error = [](const char* forward, const char* backward, const char* when) {
    JobSpec job = SmallJob();
    job.mutable_compression()->set_forward(forward);
    job.mutable_compression()->set_backward(backward);
    job.mutable_compression()->set_backward_when(when);
    FillDefaults(&job);
    return std::string(ValidateJob(job).message());
  };
  for (const char* codec : {"auto", "none", "quant(4)", "lep(lowrank(4))", "ef(topk(0.1)) | zstd"})
    EXPECT_EQ(error("none", codec, "epilogue"), "") << codec;
  for (const char* when : {"all", "auto"}) {
    EXPECT_EQ(error("predict(none)", "predict(quant(4), next)", when), "");
    EXPECT_EQ(error("topk(0.1)", "kept", when), "");
  }
  EXPECT_THAT(error("predict(none)", "predict(quant(4), next)", "epilogue"),
              testing::StartsWith("compression.backward: predict(quant(4), next) can't code the "
                                  "gradients of an epilogue alone: it learns from every gradient"));
  JobSpec job = SmallJob();
  job.mutable_strategy()->set_schedule("overlap");
  job.mutable_compression()->set_backward_when("epilogue");
  FillDefaults(&job);
  EXPECT_THAT(JobErrors(job),
              testing::Contains(testing::Property(&absl::Status::message,
                                                  testing::HasSubstr("overlap have no epilogue"))));
  EXPECT_THAT(error("topk(0.1)", "kept", "epilogue"),
              testing::HasSubstr("at the indices of its activation; use another codec, or "
                                 "compression.backward_when all"));
}

TEST(JobDefaults, GradientsMayBePredicted) {
  JobSpec job = SmallJob();
  job.mutable_compression()->set_forward("predict(quant(2, token), context=3)");
  job.mutable_compression()->set_backward("predict(quant(4, token), context=2, next)");
  FillDefaults(&job);
  EXPECT_TRUE(ValidateJob(job).ok()) << ValidateJob(job);
}

// Messages about the codecs of a job of three stages.
struct Exception {
  int boundary;
  const char* forward;  // or null
  const char* backward;
};
std::vector<std::string> CodecErrors(const char* forward, const char* backward,
                                     const std::vector<Exception>& exceptions) {
  JobSpec job = SmallJob();
  job.mutable_strategy()->set_stages(3);
  job.mutable_compression()->set_forward(forward);
  job.mutable_compression()->set_backward(backward);
  for (const Exception& e : exceptions) {
    BoundaryCodec* b = job.mutable_compression()->add_boundaries();
    b->set_boundary(e.boundary);
    if (e.forward != nullptr) b->set_forward(e.forward);
    if (e.backward != nullptr) b->set_backward(e.backward);
  }
  FillDefaults(&job);
  std::vector<std::string> messages;
  for (const absl::Status& error : JobErrors(job)) messages.emplace_back(error.message());
  return messages;
}

TEST(JobDefaults, KeptNeedsAForwardCodecThatKeepsIndices) {
  using testing::ElementsAre;
  using testing::IsEmpty;
  using testing::StartsWith;
  for (const char* forward : {"topk(0.1)", "topk(0.1, global) | zstd", "randomk(0.1, scaled)"})
    EXPECT_THAT(CodecErrors(forward, "kept(quant(8)) | zstd", {}), IsEmpty()) << forward;
  for (const char* forward : {"none", "auto", "quant(4)", "delta(topk(0.1))", "ef(topk(0.1))",
                              "cocktail(0.1, 0.2, 4)", "randomk(0.5, values=topk(0.1))"}) {
    EXPECT_THAT(
        CodecErrors(forward, "kept", {}),
        ElementsAre(StartsWith("compression.backward: 'kept' sends gradients at the indices "
                               "that the forward codec kept, and compression.forward is '" +
                               std::string(forward) + "', which keeps none; name topk")))
        << forward;
  }
}

TEST(JobDefaults, KeptIsCheckedBoundaryByBoundary) {
  using testing::ElementsAre;
  using testing::HasSubstr;
  using testing::IsEmpty;
  EXPECT_THAT(CodecErrors("none", "none", {{1, "topk(0.1)", "kept"}}), IsEmpty());
  EXPECT_THAT(CodecErrors("topk(0.1)", "kept", {{1, "none", "quant(8)"}}), IsEmpty());
  EXPECT_THAT(
      CodecErrors("none", "kept", {{0, "topk(0.1)", nullptr}, {1, "randomk(0.1)", nullptr}}),
      IsEmpty());
  EXPECT_THAT(CodecErrors("none", "kept", {{0, "topk(0.1)", nullptr}}),
              ElementsAre(HasSubstr("compression.forward is 'none'")));
  EXPECT_THAT(
      CodecErrors("topk(0.1)", "kept", {{1, "quant(4)", nullptr}}),
      ElementsAre(HasSubstr("compression.backward: 'kept' sends gradients at the indices that the "
                            "forward codec kept, and compression.boundaries[0].forward is "
                            "'quant(4)'")));
  EXPECT_THAT(CodecErrors("none", "none", {{0, nullptr, "none"}, {1, nullptr, "kept(bf16)"}}),
              ElementsAre(testing::StartsWith("compression.boundaries[1].backward: 'kept(bf16)'")));
  // A codec that does not parse is named once.
  EXPECT_THAT(CodecErrors("topk(2)", "kept", {}),
              ElementsAre(testing::StartsWith("compression.forward: codec 'topk(2)'")));
  EXPECT_THAT(CodecErrors("autoo", "none", {}),
              ElementsAre(testing::EndsWith("; or auto; did you mean 'auto'?")));
}

TEST(JobDefaults, AFaultIsNamedOnceThoughOthersAreMeasuredByIt) {
  const std::pair<std::function<void(JobSpec*)>, const char*> cases[] = {
      {[](JobSpec* j) { j->mutable_recipe()->set_steps(-5); }, "recipe.steps: "},
      {[](JobSpec* j) { j->mutable_recipe()->set_global_batch(-16); }, "recipe.global_batch: "},
      {[](JobSpec* j) { j->mutable_recipe()->set_learning_rate(-1); }, "recipe.learning_rate: "},
      {[](JobSpec* j) { j->mutable_model()->set_layers(-4); }, "model.layers: "},
  };
  for (const auto& [spoil, field] : cases) {
    JobSpec job = SmallJob();
    job.mutable_strategy()->set_stages(2);
    FillDefaults(&job);
    spoil(&job);
    std::vector<std::string> messages;
    for (const absl::Status& error : JobErrors(job)) messages.emplace_back(error.message());
    EXPECT_THAT(messages, testing::ElementsAre(testing::StartsWith(field)));
  }
}

TEST(JobDefaults, ABoundaryNamedTwiceIsRefused) {
  using testing::ElementsAre;
  EXPECT_THAT(CodecErrors("none", "none", {{0, "bf16", nullptr}, {1, "bf16", nullptr}}),
              testing::IsEmpty());
  const std::string fix = "put what is meant for it into one entry, and name another boundary here";
  EXPECT_THAT(
      CodecErrors(
          "none", "none",
          {{1, "bf16", nullptr}, {0, "fp16", nullptr}, {1, nullptr, "fp16"}, {1, "bf16", nullptr}}),
      ElementsAre("compression.boundaries[2].boundary: boundary 1 has an entry already, "
                  "compression.boundaries[0]: " +
                      fix,
                  "compression.boundaries[3].boundary: boundary 1 has an entry already, "
                  "compression.boundaries[0]: " +
                      fix));
}

TEST(JobDefaults, AllErrorsAreListed) {
  JobSpec job = SmallJob();
  job.mutable_model()->set_heads(0);
  job.mutable_recipe()->set_steps(0);
  job.mutable_recipe()->set_beta1(2);
  job.mutable_compression()->set_evaluation("quant(9)");
  BoundaryCodec* boundary = job.mutable_compression()->add_boundaries();
  boundary->set_boundary(300);
  boundary->set_backward("delta(quant(4))");
  FillDefaults(&job);
  std::vector<std::string> messages;
  for (const absl::Status& error : JobErrors(job)) messages.emplace_back(error.message());
  EXPECT_THAT(messages,
              testing::ElementsAre(testing::StartsWith("model.heads: "),
                                   testing::StartsWith("recipe.steps: "),
                                   testing::StartsWith("recipe.beta1: "),
                                   testing::StartsWith("compression.evaluation: "),
                                   testing::StartsWith("compression.boundaries[0].boundary: "),
                                   testing::StartsWith("compression.boundaries[0].backward: ")));
}

TEST(JobDefaults, AFrozenSecondMomentNeedsReplicasThatMeetAtEveryStep) {
  JobSpec job = SmallJob();
  FillDefaults(&job);
  EXPECT_EQ(job.recipe().optimizer(), "adamw");
  EXPECT_EQ(job.recipe().optimizer_warmup(), 0);
  job.mutable_recipe()->set_optimizer_warmup(5);
  EXPECT_THAT(std::string(ValidateJob(job).message()), ::testing::HasSubstr("adamw has none"));
  job.mutable_recipe()->set_optimizer("quantized_adam");
  job.mutable_recipe()->set_steps(200);
  job.mutable_recipe()->clear_optimizer_warmup();
  FillDefaults(&job);
  EXPECT_EQ(job.recipe().optimizer_warmup(), 20) << "a tenth";
  const auto refused = [](const JobSpec& job, const char* what) {
    EXPECT_THAT(std::string(ValidateJob(job).message()), ::testing::HasSubstr(what));
  };
  for (const int replicas : {0, 1}) {
    job.mutable_strategy()->set_replicas(replicas);
    refused(job, "2 or more with recipe.optimizer quantized_adam");
  }
  job.mutable_strategy()->set_replicas(2);
  EXPECT_TRUE(ValidateJob(job).ok()) << ValidateJob(job);
  for (const int64_t warmup : {0, 201}) {
    JobSpec other = job;
    other.mutable_recipe()->set_optimizer_warmup(warmup);
    refused(other, "recipe.optimizer_warmup");
  }
  JobSpec other = job;
  other.mutable_strategy()->set_local_steps(10);
  refused(other, "strategy.local_steps: '10'");
  other = job;
  other.mutable_recipe()->set_beta1(0.98);
  refused(other, "recipe.beta1");
  other = job;
  other.mutable_recipe()->set_optimizer("adam");
  refused(other, "did you mean 'adamw'?");
}

TEST(JobDefaults, TheTiedEmbeddingTakesTheCodecsOfGroups) {
  JobSpec job = SmallJob();
  FillDefaults(&job);
  for (const char* codec :
       {"bf16 | zstd", "ef(quant(8, token))", "quant(4, token, symmetric)", "ef(lowrank(4))"}) {
    job.mutable_compression()->set_tied(codec);
    EXPECT_TRUE(ValidateJob(job).ok()) << codec;
  }
  job.mutable_compression()->set_tied("delta(quant(4))");
  EXPECT_THAT(std::string(ValidateJob(job).message()),
              ::testing::HasSubstr("compression.tied: 'delta(quant(4))'"));
}

TEST(JobDefaults, FragmentsHaveALayerAndAStepEachAndArriveInTurn) {
  const auto refusal = [](int local_steps, int fragments, int delay, double mix) {
    JobSpec job = SmallJob();
    job.mutable_model()->set_layers(8);
    StrategySpec* s = job.mutable_strategy();
    s->set_local_steps(local_steps);
    s->set_fragments(fragments);
    s->set_fragment_delay(delay);
    if (mix >= 0) s->set_fragment_mix(mix);
    FillDefaults(&job);
    return std::string(ValidateJob(job).message());
  };
  EXPECT_EQ(refusal(20, 8, 1, -1), "");
  EXPECT_EQ(refusal(20, 4, 4, 0.25), "");
  EXPECT_EQ(refusal(20, 1, 19, 0), "");
  EXPECT_THAT(refusal(20, 0, 0, -1), ::testing::HasSubstr("strategy.fragments: '0'"));
  EXPECT_THAT(refusal(20, 9, 0, -1), ::testing::HasSubstr("strategy.fragments: '9' is not"));
  EXPECT_THAT(refusal(3, 4, 0, -1), ::testing::HasSubstr("at most 3: each has a layer"));
  EXPECT_THAT(refusal(1, 2, 0, -1), ::testing::HasSubstr("at most 1"));
  EXPECT_THAT(refusal(20, 4, 5, -1),
              ::testing::HasSubstr("strategy.fragment_delay: '5' is not allowed; it must be from 0 "
                                   "to 4"));
  EXPECT_THAT(refusal(20, 4, -1, 0), ::testing::HasSubstr("strategy.fragment_delay"));
  EXPECT_THAT(refusal(20, 4, 0, 0.5), ::testing::HasSubstr("0 without strategy.fragment_delay"));
  EXPECT_THAT(refusal(20, 4, 2, 1), ::testing::HasSubstr("strategy.fragment_mix: '1'"));
  JobSpec job = SmallJob();
  job.mutable_strategy()->set_fragment_delay(2);
  FillDefaults(&job);
  EXPECT_EQ(job.strategy().fragment_mix(), 0.5);
  EXPECT_EQ(job.strategy().fragments(), 1);
}

TEST(JobDefaults, LimitsAreWholeNumbers) {
  JobSpec job = SmallJob();
  job.mutable_recipe()->set_steps(2'000'000'000);
  job.mutable_compression()->set_buffer_disk_bytes(-1);
  FillDefaults(&job);
  std::vector<std::string> messages;
  for (const absl::Status& error : JobErrors(job)) messages.emplace_back(error.message());
  EXPECT_THAT(messages,
              testing::ElementsAre(
                  "recipe.steps: '2000000000' is not allowed; it must be from 1 to 1000000000",
                  "compression.buffer_disk_bytes: '-1' is not allowed; it must be from 0 to "
                  "1000000000000000"));
}

// No double holds them: they were echoed as other numbers.
TEST(JobDefaults, AHugeWholeNumberIsNamedAsItWasWritten) {
  for (const int64_t steps :
       {int64_t{9007199254740993}, int64_t{9223372036854775807}, -9007199254740993}) {
    JobSpec job = SmallJob();
    job.mutable_recipe()->set_steps(steps);
    job.mutable_checkpoint()->set_every(steps);
    FillDefaults(&job);
    for (const absl::Status& error : JobErrors(job))
      EXPECT_THAT(std::string(error.message()), testing::HasSubstr(absl::StrCat("'", steps, "'")));
    EXPECT_GE(JobErrors(job).size(), 2u);
  }
}

TEST(JobDefaults, TheDataPathStaysInTheDataDirectory) {
  JobSpec job = SmallJob();
  FillDefaults(&job);
  for (const char* path : {"a.txt", "a/b", "./a", "a..b/..c", "."}) {
    job.mutable_data()->set_path(path);
    EXPECT_TRUE(ValidateJob(job).ok()) << path;
  }
  for (const std::string& path : {std::string("/a"), std::string(".."), std::string("a/../b"),
                                  std::string("a/.."), std::string("a\0b", 3), std::string()}) {
    job.mutable_data()->set_path(path);
    EXPECT_THAT(std::string(ValidateJob(job).message()), testing::StartsWith("data.path: '"));
    EXPECT_EQ(ValidateJob(job), CheckDataPath(path));  // the words of the daemon
  }
}

TEST(JobDefaults, WhatIsNotBuiltIsRefused) {
  const auto refusal = [](const std::function<void(JobSpec*)>& change) {
    JobSpec job = SmallJob();
    change(&job);
    FillDefaults(&job);
    return std::string(ValidateJob(job).message());
  };
  const std::string words = ": this version does not have it yet; leave it out";
  EXPECT_EQ(refusal([](JobSpec* j) { j->mutable_strategy()->set_cells(2); }),
            "strategy.cells" + words);
  EXPECT_EQ(refusal([](JobSpec* j) { j->mutable_strategy()->set_cell_rounds(2); }),
            "strategy.cell_rounds" + words);
}

}  // namespace
}  // namespace isthmus
