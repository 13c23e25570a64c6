#include "worker/study/ist/command.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>

#include "base/command_line.h"
#include "base/number_flag.h"
#include "worker/study/ist/theory.h"

namespace isthmus::study::ist {
namespace {

constexpr uint64_t kMaxSeeds = 1000, kLeastRounds = 1000, kMostRounds = 100'000'000;

constexpr char kFooter[] = R"(
Independent subnetwork training on quadratics (Shulgin and Richtarik, ICML 2024, arXiv 2306.16484):
what sketches do on the average, rates, fixed points, their bias, the neighbourhood that no step
size removes, and compressed gradients, which have none of that. Every row is measured, by running
the method or by going through all sketches, and compared with its closed form; each row is that of
the seed that comes nearest to its limit. Of vectors the table has the norms, and the deviation is
that of the vectors. "<=" is a bound: its deviation is by how much it is passed.

Exit codes: 0 every row holds; 1 a row misses its tolerance; 2 wrong usage.)";

}  // namespace

int RunTheoryCommand(int argc, const char* const* argv, FILE* out, FILE* err) {
  TheoryOptions options;
  bool json = false;
  CLI::App app("Measures the theory of independent subnetwork training on quadratics.",
               "isthmus study ist-theory");
  Whole(app.add_option("--seeds", options.seeds, "so many problems, from seed 1"), 1, kMaxSeeds)
      ->capture_default_str();
  Whole(app.add_option("--rounds", options.rounds,
                       "of each run that is averaged over time; tolerances grow with fewer"),
        kLeastRounds, kMostRounds)
      ->capture_default_str();
  app.add_flag("--json", json, "the table as JSON");
  app.footer(kFooter);
  if (const auto ended = ParseCommandLine(argc, argv, "isthmus-study", &app, out, err))
    return *ended;
  const std::vector<TheoryRow> rows = TheoryTable(options);
  std::fputs((json ? RenderTheoryJson(rows) : RenderTheory(rows)).c_str(), out);
  const auto missed =
      std::count_if(rows.begin(), rows.end(), [](const TheoryRow& row) { return !row.holds(); });
  if (missed == 0) return kOk;
  std::fprintf(err, "isthmus-study: %d of %d rows miss their tolerance\n", static_cast<int>(missed),
               static_cast<int>(rows.size()));
  return kFailed;
}

}  // namespace isthmus::study::ist
