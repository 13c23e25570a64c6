// recipe.recompute on a CPU: the highest resident memory of a process that trains one stage, with
// several micro-batches under way at a time (all forward passes, then all backward passes), and the
// milliseconds of a step, with and without it. Two processes of each kind, in turn; the better time
// of each counts.
//
//   recompute_bench [LAYERS [HIDDEN [CONTEXT [MICRO_BATCH [MICRO_BATCHES]]]]]    12 128 256 4 4
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "proto/model/model_cost.h"
#include "tests/engine/pipeline.h"

namespace isthmus::engine {
namespace {

constexpr int kSteps = 3;

struct Figures {
  double step_ms = 0;
  double mib = 0;  // at most
  double loss = 0;
};

void Train(const JobSpec& job, int to) {
  using Clock = std::chrono::steady_clock;
  Pipeline pipeline(MakePlan(job, {job.model().layers()}));
  Figures f;
  for (int step = 0; step < kSteps; ++step) {
    const Clock::time_point start = Clock::now();
    f.loss = pipeline.Step(step);
    const double ms = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
    if (step > 0) f.step_ms = f.step_ms == 0 ? ms : std::min(f.step_ms, ms);
  }
  std::exit(write(to, &f, sizeof f) == sizeof f ? 0 : 1);
}

// In a process of its own.
Figures Run(const JobSpec& job) {
  int ends[2];
  Figures f;
  if (pipe(ends) != 0) std::exit(1);
  const pid_t child = fork();
  if (child == 0) Train(job, ends[1]);
  close(ends[1]);
  rusage used{};
  int status = 0;
  const bool told = read(ends[0], &f, sizeof f) == sizeof f;
  close(ends[0]);
  if (wait4(child, &status, 0, &used) != child || status != 0 || !told) std::exit(1);
  f.mib = static_cast<double>(used.ru_maxrss) / 1024;
  return f;
}

int Main(int layers, int hidden, int context, int samples, int micros) {
  JobSpec job = TinyJob(layers, hidden, std::max(1, hidden / 64), context, 256);
  job.mutable_recipe()->set_micro_batch(samples);
  job.mutable_recipe()->set_global_batch(samples * micros);
  Figures best[2];
  for (int round = 0; round < 2; ++round) {
    for (const bool recompute : {false, true}) {
      job.mutable_recipe()->set_recompute(recompute);
      const Figures f = Run(job);
      Figures& b = best[recompute];
      b = {round == 0 ? f.step_ms : std::min(b.step_ms, f.step_ms), std::max(b.mib, f.mib), f.loss};
    }
  }
  std::printf("%d layers x %d, context %d, %d micro-batches of %d under way\n", layers, hidden,
              context, micros, samples);
  std::printf("| recompute | MiB at most | of it counted for the stage | ms a step | loss |\n");
  std::printf("|---|---|---|---|---|\n");
  for (const bool recompute : {false, true}) {
    const Figures& b = best[recompute];
    const auto counted = static_cast<double>(
        StageMemoryBytes(job.model(), 0, layers, samples, micros, {}, recompute));
    std::printf("| %s | %.0f | %.0f | %.1f | %.6f |\n", recompute ? "yes" : "no", b.mib,
                counted / (1 << 20), b.step_ms, b.loss);
  }
  std::printf("| ratio | %.2f | | %.2f | |\n", best[1].mib / best[0].mib,
              best[1].step_ms / best[0].step_ms);
  return 0;
}

}  // namespace
}  // namespace isthmus::engine

int main(int argc, char** argv) {
  const auto at = [&](int i, int otherwise) { return argc > i ? std::atoi(argv[i]) : otherwise; };
  return isthmus::engine::Main(at(1, 12), at(2, 128), at(3, 256), at(4, 4), at(5, 4));
}
