// Two stages of GPT-2 124M on one GPU, each in a session of its own, over a link in memory: what
// boundaries, codecs and the tied exchange cost beside the engine (gpu_engine_bench).
//
//   gpu_session_bench [FORWARD [BACKWARD [TIED [SAMPLES]]]]    codecs, none; samples a step, 64
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "tests/rank/gpt_world.h"

namespace isthmus::worker {
namespace {

constexpr int kSteps = 8, kWarm = 3;

// Milliseconds: the median over the steps after the first ones.
double Median(const std::vector<StepRecord>& records,
              const std::function<double(const StepRecord&)>& seconds) {
  std::vector<double> ms;
  for (size_t i = kWarm; i < records.size(); ++i) ms.push_back(1e3 * seconds(records[i]));
  if (ms.empty()) return 0;
  std::nth_element(ms.begin(), ms.begin() + ms.size() / 2, ms.end());
  return ms[ms.size() / 2];
}

int Run(const char* forward, const char* backward, const char* tied, int samples) {
  WorldShape shape = SmallGpt();
  shape.layers = 12;
  shape.hidden = 768;
  shape.heads = 12;
  shape.context = 1024;
  shape.vocabulary = 50304;
  shape.steps = kSteps;
  shape.global_batch = samples;
  shape.micro_batch = 8;
  shape.learning_rate = 3e-4;
  shape.forward = forward;
  shape.backward = backward;
  shape.tied = tied;
  Plan plan = MakePlan(shape);
  plan.mutable_job()->mutable_recipe()->set_precision("bf16");
  const TextCorpus corpus(GenerateText((int64_t{samples} + 1) * shape.context + 1, 1),
                          shape.context, 1);
  MemoryStore store;
  World world(plan, GptOptions(&store, &corpus, {engine::EngineOptions{"cuda:0", 0, false}}));
  for (const absl::Status& status : world.Run()) {
    if (status.ok()) continue;
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    return 1;
  }
  for (int rank = 0; rank < 2; ++rank) {
    const std::vector<StepRecord> r = world.observer(rank).records();
    const double step = Median(r, [](const StepRecord& s) { return s.step_s(); });
    std::printf(
        "| %s, %s, %s | %d | %d | %.1f | %.0f | %.1f | %.1f | %.1f | %.1f | %.1f | %.1f |\n",
        forward, backward, tied, samples, rank, step, samples * shape.context / step * 1e3,
        Median(r, [](const StepRecord& s) { return s.compute_s(); }),
        Median(r, [](const StepRecord& s) { return s.recv_wait_s(); }),
        Median(r, [](const StepRecord& s) { return s.send_wait_s(); }),
        Median(r, [](const StepRecord& s) { return s.sync_s(); }),
        Median(r, [](const StepRecord& s) { return s.encode_s(); }),
        Median(r, [](const StepRecord& s) { return s.decode_s(); }));
  }
  return 0;
}

}  // namespace
}  // namespace isthmus::worker

int main(int argc, char** argv) {
  return isthmus::worker::Run(argc > 1 ? argv[1] : "none", argc > 2 ? argv[2] : "none",
                              argc > 3 ? argv[3] : "none", argc > 4 ? std::atoi(argv[4]) : 64);
}
