// What a GPT learns over several epochs of a small text with fp32, direct quantisation and
// activation deltas (AQ-SGD) on its boundaries. The long form of
// GptRank.ActivationDeltasLearnWhatFp32Learns:
//   convergence_bench [STEPS [SAMPLES [LEARNING_RATE [SEEDS [STAGES]]]]]
// prints the mean loss of the last two epochs, and its difference to fp32.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/rank/gpt_world.h"

namespace isthmus::worker {
namespace {

struct Setting {
  const char* name;
  const char* forward;
  const char* backward;
};

constexpr Setting kSettings[] = {
    {"fp32", "none", "none"},
    {"direct fw2bw4", "quant(2)", "quant(4)"},
    {"delta  fw2bw4", "delta(quant(2))", "quant(4)"},
    {"direct fw3bw6", "quant(3)", "quant(6)"},
    {"delta  fw3bw6", "delta(quant(3))", "quant(6)"},
    {"direct fw4bw8", "quant(4)", "quant(8)"},
    {"delta  fw4bw8", "delta(quant(4))", "quant(8)"},
};

int Main(int argc, char** argv) {
  const auto argument = [&](int i, double value) { return i < argc ? std::atof(argv[i]) : value; };
  WorldShape shape = SmallGpt();
  shape.steps = static_cast<int>(argument(1, 1000));
  const int samples = static_cast<int>(argument(2, 128));
  shape.learning_rate = argument(3, 1e-3);
  const int seeds = static_cast<int>(argument(4, 3));
  shape.stages = shape.layers = static_cast<int>(argument(5, 3));
  shape.context = 32;
  shape.global_batch = 16;
  shape.micro_batch = 8;
  shape.eval_samples = 0;
  const int epoch = samples / shape.global_batch;
  std::printf("%d steps of 16 samples, %d steps an epoch, learning rate %g, %d stages\n",
              shape.steps, epoch, shape.learning_rate, shape.stages);
  std::printf("%-14s %8s %8s  %s\n", "codec", "loss", "MB", "difference to fp32 of each seed, %");
  std::vector<double> fp32(seeds);
  for (const Setting& setting : kSettings) {
    double loss = 0, bytes = 0;
    std::string differences;
    for (int seed = 0; seed < seeds; ++seed) {
      shape.seed = seed + 1;
      const TextCorpus corpus(GenerateText(samples * shape.context + 1, shape.seed), shape.context,
                              0);
      shape.forward = setting.forward;
      shape.backward = setting.backward;
      const GptRun run = RunGpt(shape, corpus);
      const double last = MeanOfLast(run.losses, 2 * epoch);
      if (&setting == kSettings) fp32[seed] = last;
      loss += last / seeds;
      bytes += static_cast<double>(run.wire_bytes) / seeds;
      char text[32];
      std::snprintf(text, sizeof text, " %+.2f", 100 * (last / fp32[seed] - 1));
      differences += text;
    }
    std::printf("%-14s %8.4f %8.2f %s\n", setting.name, loss, bytes / 1e6, differences.c_str());
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace isthmus::worker

int main(int argc, char** argv) { return isthmus::worker::Main(argc, argv); }
