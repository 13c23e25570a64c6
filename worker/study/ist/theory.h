// The table of `isthmus study ist-theory`: results of arXiv 2306.16484 for quadratics, each
// measured by running the method or by enumerating its sketches, beside its closed form. Thread:
// pure functions.
#ifndef ISTHMUS_WORKER_STUDY_IST_THEORY_H_
#define ISTHMUS_WORKER_STUDY_IST_THEORY_H_

#include <cstdint>
#include <string>
#include <vector>

namespace isthmus::study::ist {

struct TheoryOptions {
  int64_t seeds = 3;         // of the problems and of the rounds: 1, 2, ...; each row has its worst
  int64_t rounds = 200'000;  // of each run that is averaged over time
};

struct TheoryRow {
  std::string part;  // of the theory: "expectation", "fixed point", ...
  std::string what;
  double measured = 0;  // a number, or the norm of a vector
  double expected = 0;
  // A bound: `measured` may be at most `expected`, and the deviation is by how much it is above.
  bool bound = false;
  double deviation = 0;  // relative; of vectors the norm of the difference
  double tolerance = 0;
  bool holds() const { return deviation <= tolerance; }  // also false for NaN
};

// Deterministic. Tolerances of what is averaged over time grow where there are fewer rounds than
// the default.
std::vector<TheoryRow> TheoryTable(const TheoryOptions& options);

std::string RenderTheory(const std::vector<TheoryRow>& rows);
std::string RenderTheoryJson(const std::vector<TheoryRow>& rows);

}  // namespace isthmus::study::ist

#endif  // ISTHMUS_WORKER_STUDY_IST_THEORY_H_
