// What a GPT learns over several epochs of a small text with fp32, direct quantisation and
// activation deltas (AQ-SGD) on its boundaries. The long form of
// GptRank.ActivationDeltasLearnWhatFp32Learns:
//   convergence_bench [STEPS [SAMPLES [LEARNING_RATE [SEEDS [STAGES]]]]]
// prints the mean loss of the last two epochs, and its difference to fp32.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "base/number_flag.h"
#include "tests/rank/gpt_world.h"
#include "worker/data/corpus.h"

namespace isthmus::worker {
namespace {

constexpr int kGlobalBatch = 16;

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

struct Options {
  int steps = 1000;
  int samples = 128;
  double learning_rate = 1e-3;
  int seeds = 3;
  int stages = 3;
};

void AddFlags(CLI::App* app, Options* o) {
  Whole(app->add_option("STEPS", o->steps, "steps of each run"), 1, 1'000'000)
      ->capture_default_str();
  Whole(
      app->add_option("SAMPLES", o->samples, "samples of the text; an epoch has a sixteenth of it"),
      kGlobalBatch, 1'000'000)
      ->capture_default_str();
  Real(app->add_option("LEARNING_RATE", o->learning_rate), 1e-9, 1)->capture_default_str();
  Whole(app->add_option("SEEDS", o->seeds, "runs of each codec"), 1, 1000)->capture_default_str();
  Whole(app->add_option("STAGES", o->stages, "of one layer each"), 2, 64)->capture_default_str();
}

// Samples that a delta codec sends in full: each that the run sees, once at each boundary. One that
// only ever sent key frames would learn what fp32 learns.
int64_t KeyFrames(const Setting& setting, const WorldShape& shape, int samples) {
  if (!absl::StartsWith(setting.forward, "delta(")) return 0;
  SampleOrder order(shape.seed, samples, shape.global_batch);
  std::set<uint32_t> seen;
  for (int64_t step = 0; step < shape.steps; ++step) {
    for (uint32_t id : order.Step(step)) seen.insert(id);
  }
  return (shape.stages - 1) * static_cast<int64_t>(seen.size());
}

// False: a figure would not be that of its codec.
bool Compare(const Options& o) {
  WorldShape shape = SmallGpt();
  shape.steps = o.steps;
  const int samples = o.samples;
  shape.learning_rate = o.learning_rate;
  const int seeds = o.seeds;
  shape.stages = shape.layers = o.stages;
  shape.context = 32;
  shape.global_batch = kGlobalBatch;
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
      const int64_t in_full = KeyFrames(setting, shape, samples);
      if (run.key_frames != in_full) {
        std::fprintf(stderr,
                     "%s, seed %d: %lld samples were sent in full, not %lld: this is no figure of "
                     "that codec\n",
                     setting.name, seed + 1, static_cast<long long>(run.key_frames),
                     static_cast<long long>(in_full));
        return false;
      }
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
  return true;
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app(
      "Trains a small GPT over several epochs of a small text with fp32, direct quantisation and "
      "activation deltas on its boundaries, and prints the mean loss of the last two epochs of "
      "each.",
      "convergence_bench");
  AddFlags(&app, &options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return Compare(options) ? 0 : 1;
}

}  // namespace
}  // namespace isthmus::worker

int main(int argc, char** argv) { return isthmus::worker::Main(argc, argv); }
