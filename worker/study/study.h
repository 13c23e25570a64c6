// A study from start to end: runs the cells that its directory does not have yet, then tells what
// all of them say. Thread: one owner; `report` is called on it and on the sessions' threads.
#ifndef ISTHMUS_WORKER_STUDY_STUDY_H_
#define ISTHMUS_WORKER_STUDY_STUDY_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/job.pb.h"
#include "worker/data/corpus.h"
#include "worker/session.h"
#include "worker/study/cell.h"
#include "worker/study/grid.h"
#include "worker/study/table.h"

namespace isthmus::study {

// The job that a study trains if it is given none: a GPT over the bytes of the King James Bible,
// three stages, seconds a cell. Defaults filled in.
JobSpec DefaultJob();

struct StudyOptions {
  JobSpec job;  // with its defaults
  Grid grid;
  std::string out = "study";  // directory: cells.jsonl, study.csv, study.svg
  double passes = 4;          // over the training samples: so many of them are used
  double delay_s = 0.02;      // one way, of the predicted links
  int64_t rank_samples = 16;  // of the rank test; 0: none
  worker::StageFactory make_stage;
};

struct Progress {
  size_t cells = 0;
  size_t done = 0;    // those of earlier runs, and those that can't run, included
  size_t to_run = 0;  // of this run
  size_t ran = 0;
  std::string cell;  // being trained: "quant(4) / none, late, seed 2"
  int64_t step = 0;
  int64_t steps = 0;
  double loss = 0;
};
using Report = std::function<void(const Progress&)>;

struct StudyResult {
  std::vector<Row> rows;
  std::vector<Energy> energies;
  size_t failed = 0;  // cells; their rows say why
};

// InvalidArgument, NotFound: the job or the grid; else from the journal or a file. A cell that
// fails (a loss that is not finite, say) does not end the study, and is tried again by the next
// run.
absl::StatusOr<StudyResult> RunStudy(const StudyOptions& options, const worker::Corpus& corpus,
                                     const Report& report);

// The key of a cell: a hash of all that decides its result.
std::string CellKey(const JobSpec& job, const Cell& cell, const worker::Corpus& corpus,
                    int64_t train_samples);

// Samples that `passes` passes over them make of the job's steps; at least a step's.
int64_t SamplesForPasses(const RecipeSpec& recipe, double passes);

// One line for a terminal, cut to `width` columns.
std::string ProgressLine(const Progress& progress, double elapsed_s, size_t width);

}  // namespace isthmus::study

#endif  // ISTHMUS_WORKER_STUDY_STUDY_H_
