#include "tests/rank/gpt_world.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "base/log.h"
#include "base/rng.h"
#include "base/safetensors.h"
#include "base/status.h"
#include "worker/engine/device_lane.h"
#include "worker/engine/gpt2_stage.h"

namespace isthmus::worker {

std::string GenerateText(int64_t bytes, uint64_t seed) {
  static const char* const kSubjects[] = {"the river",    "a merchant",   "her brother",
                                          "the old king", "every sailor", "my neighbour"};
  static const char* const kVerbs[] = {"carried", "forgot",     "was looking for",
                                       "sold",    "remembered", "could not find"};
  static const char* const kObjects[] = {"the silver bridge", "a loaf of bread", "two letters",
                                         "the way home",      "an empty boat",   "his name"};
  static const char* const kEnds[] = {" in the morning", " before the war",       "",
                                      " again",          " by the northern gate", ""};
  std::string text;
  for (uint64_t i = 0; static_cast<int64_t>(text.size()) < bytes; ++i) {
    const auto pick = [&](uint64_t part) { return RandomBelow(seed, part, i, 6); };
    text += std::string(kSubjects[pick(1)]) + " " + kVerbs[pick(2)] + " " + kObjects[pick(3)] +
            kEnds[pick(4)] + ".\n";
  }
  text.resize(bytes);
  return text;
}

TextCorpus::TextCorpus(std::string text, int64_t context, int64_t validation)
    : text_(std::move(text)),
      context_(context),
      validation_(validation),
      samples_((static_cast<int64_t>(text_.size()) - 1) / context) {}

absl::Status TextCorpus::Read(uint32_t id, uint32_t* tokens, uint32_t* targets) const {
  for (int64_t t = 0; t < context_; ++t) {
    if (tokens != nullptr) tokens[t] = static_cast<uint8_t>(text_[id * context_ + t]);
    if (targets != nullptr) targets[t] = static_cast<uint8_t>(text_[id * context_ + t + 1]);
  }
  return absl::OkStatus();
}

absl::Status RowCorpus::Read(uint32_t id, uint32_t* values, uint32_t* classes) const {
  const auto row = RandomBelow(seed_, 1, id, static_cast<uint64_t>(classes_));
  if (classes != nullptr) *classes = static_cast<uint32_t>(row);
  for (int i = 0; values != nullptr && i < inputs_; ++i) {
    const uint64_t own = RandomBelow(seed_, 2 + row, i, 192);
    values[i] = static_cast<uint32_t>(own + RandomBelow(seed_, 1000 + id, i, 64));
  }
  return absl::OkStatus();
}

WorldShape SmallMlp() {
  WorldShape shape;
  shape.real_stages = true;
  shape.tied_head = false;
  shape.layers = 3;
  shape.hidden = 24;
  shape.context = 1;
  shape.inputs = 20;
  shape.classes = 5;
  shape.steps = 20;
  shape.global_batch = 14;
  shape.micro_batch = 4;
  shape.learning_rate = 1e-2;
  shape.eval_samples = 30;
  shape.buffer_memory_bytes = int64_t{1} << 30;
  shape.step_ms = 120000;
  return shape;
}

WorldShape SmallGpt() {
  WorldShape shape;
  shape.real_stages = true;
  shape.layers = 4;
  shape.hidden = 32;
  shape.heads = 4;
  shape.context = 16;
  shape.vocabulary = 256;
  shape.steps = 20;
  shape.global_batch = 7;
  shape.micro_batch = 2;
  shape.learning_rate = 3e-3;
  shape.buffer_memory_bytes = int64_t{1} << 30;
  shape.step_ms = 120000;
  return shape;
}

StageFactory GptStages(const std::string& device) {
  return [device](const Plan& plan, int stage) {
    engine::EngineOptions options;
    options.device = device;
    options.threads = 1;
    return engine::MakeGpt2Stage(plan, stage, options);
  };
}

World::Options GptOptions(MemoryStore* store, const Corpus* corpus, const std::string& device) {
  World::Options options;
  options.store = store;
  options.corpus = corpus;
  options.make_stage = GptStages(device);
  return options;
}

World::Options GptOptions(MemoryStore* store, const Corpus* corpus,
                          const std::vector<engine::EngineOptions>& devices) {
  const auto place = [devices](int rank) {
    return devices[std::min<size_t>(rank, devices.size() - 1)];
  };
  World::Options options;
  options.store = store;
  options.corpus = corpus;
  options.make_stage = [place](const Plan& plan, int rank) {
    return engine::MakeGpt2Stage(plan, rank, place(rank));
  };
  options.make_lanes = [place](int rank) -> LaneFactory {
    return [options = place(rank)] { return engine::MakeDeviceLane(options); };
  };
  return options;
}

GptRun RunGpt(const WorldShape& shape, const Corpus& corpus, LinkOpener* links,
              const std::string& device) {
  MemoryStore store;
  World::Options options = GptOptions(&store, &corpus, device);
  options.links = links;
  return RunWorld(MakePlan(shape), options);
}

GptRun RunWorld(const Plan& plan, const World::Options& options) {
  World world(plan, options);
  for (const absl::Status& status : world.Run()) {
    if (!status.ok()) Fatal(__FILE__, __LINE__, status.message());
  }
  GptRun run;
  run.losses = world.last().losses();
  run.weights = world.Weights(plan.job().recipe().steps());
  for (int stage = 0; stage < plan.ranks_size(); ++stage) {
    for (const StepRecord& r : world.observer(stage).records()) {
      if (r.has_validation_loss()) run.validation.push_back(r.validation_loss());
      if (r.has_validation_accuracy()) run.accuracy.push_back(r.validation_accuracy());
      run.key_frames += r.key_frames();
      for (const DirectionBytes& d : r.directions()) {
        if (d.link_id() != "tied") run.wire_bytes += d.wire_bytes();
      }
    }
  }
  return run;
}

double MeanOfLast(const std::vector<double>& values, int count) {
  const int n = std::min<int>(count, values.size());
  return std::accumulate(values.end() - n, values.end(), 0.0) / n;
}

}  // namespace isthmus::worker
