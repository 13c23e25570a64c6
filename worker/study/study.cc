#include "worker/study/study.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/file/durable_file.h"
#include "base/hash.h"
#include "base/status.h"
#include "proto/job/job_defaults.h"
#include "worker/study/cell.h"
#include "worker/study/journal.h"
#include "worker/study/subset_corpus.h"

namespace isthmus::study {
namespace {

constexpr int kComputeRepeats = 20;
constexpr size_t kBarColumns = 20;

std::string CellName(const Cell& cell) {
  if (!cell.setting.compresses()) return absl::StrCat("none, seed ", cell.seed);
  return absl::StrCat(cell.setting.Text(), ", ", WhereName(cell.where), ", seed ", cell.seed);
}

absl::Status WriteFile(const std::string& path, const std::string& text) {
  const absl::Status written = WriteFileDurably(path, text);
  if (written.ok()) return written;
  return absl::ResourceExhaustedError(absl::StrCat(
      "can't write ", path, ": ", written.message(),
      "; the finished cells are kept, and the same command writes it once there is room"));
}

class Study {
 public:
  Study(const StudyOptions& options, const worker::Corpus& corpus, const Report& report)
      : o_(options),
        samples_(SamplesForPasses(options.job.recipe(), options.passes)),
        corpus_(corpus, samples_),
        boundaries_(options.job.strategy().stages() - 1),
        cells_(Cells(options.grid, std::max(1, boundaries_))),
        report_(report) {}

  absl::StatusOr<StudyResult> Run() {
    RETURN_IF_ERROR(Check());
    ASSIGN_OR_RETURN(journal_, Journal::Open(o_.out));
    progress_.cells = cells_.size();
    progress_.steps = o_.job.recipe().steps();
    for (const Cell& cell : cells_) progress_.to_run += ToRun(cell);
    progress_.done = progress_.cells - progress_.to_run;
    RETURN_IF_ERROR(MeasureCompute());
    for (const Cell& cell : cells_) {
      if (ToRun(cell)) RETURN_IF_ERROR(RunOne(cell));
    }
    return Results();
  }

 private:
  // Every cell's plan can be made, before the first is trained.
  absl::Status Check() {
    std::string obstacles;  // of settings that compress
    bool compresses = false;
    for (const Cell& cell : cells_) {
      const std::string obstacle = Obstacle(cell, boundaries_);
      if (obstacle.empty()) {
        RETURN_IF_ERROR(MakeCellPlan(o_.job, cell, samples_).status());
        compresses = compresses || cell.setting.compresses();
      } else if (cell.seed == o_.grid.seeds.front()) {
        absl::StrAppend(&obstacles, obstacles.empty() ? "" : "; ", cell.setting.Text(), " at ",
                        WhereName(cell.where), ": ", obstacle);
      }
    }
    if (!compresses && !obstacles.empty())
      return absl::InvalidArgumentError(absl::StrCat("no setting can run: ", obstacles));
    if (corpus_.train_samples() >= samples_) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrFormat(
        "the text has %d training samples, and %g passes over %d steps need %d: use more passes, "
        "fewer steps or a longer text",
        corpus_.train_samples(), o_.passes, o_.job.recipe().steps(), samples_));
  }

  std::string Key(const Cell& cell) const { return CellKey(o_.job, cell, corpus_, samples_); }
  bool ToRun(const Cell& cell) const {
    return journal_->Find(Key(cell)) == nullptr && Obstacle(cell, boundaries_).empty();
  }

  absl::Status MeasureCompute() {
    const std::string key = Key(Cell());
    if (const ComputeCost* known = journal_->Compute(key)) {
      compute_ = *known;
      return absl::OkStatus();
    }
    ASSIGN_OR_RETURN(const Plan plan, MakeCellPlan(o_.job, cells_.front(), samples_));
    ASSIGN_OR_RETURN(StageLine line, StageLine::Make(plan, o_.make_stage, corpus_));
    ASSIGN_OR_RETURN(compute_, line.MeasureCompute(kComputeRepeats));
    return journal_->AppendCompute(key, compute_);
  }

  absl::Status RunOne(const Cell& cell) {
    progress_.cell = CellName(cell);
    progress_.step = 0;
    report_(progress_);
    ASSIGN_OR_RETURN(const Plan plan, MakeCellPlan(o_.job, cell, samples_));
    const StepWatcher watch = [this](int64_t step, double loss) {
      progress_.step = step;
      progress_.loss = loss;
      report_(progress_);
    };
    absl::StatusOr<CellResult> result = RunCell(plan, corpus_, o_.make_stage, watch);
    if (absl::IsResourceExhausted(result.status())) return result.status();
    if (result.ok()) {
      ASSIGN_OR_RETURN(const CellRecord record, Record(plan, cell, *result));
      RETURN_IF_ERROR(journal_->Append(record));
    } else {
      failures_[Key(cell)] = std::string(result.status().message());
    }
    ++progress_.done;
    ++progress_.ran;
    report_(progress_);
    return absl::OkStatus();
  }

  absl::StatusOr<CellRecord> Record(const Plan& plan, const Cell& cell, const CellResult& result) {
    CellRecord record;
    record.key = Key(cell);
    record.setting = cell.setting.Text();
    record.where = WhereName(cell.where);
    record.seed = cell.seed;
    record.loss = result.loss;
    record.steps = result.steps;
    record.raw_bytes = result.raw_bytes;
    record.wire_bytes = result.wire_bytes;
    record.encode_s = result.encode_s;
    record.decode_s = result.decode_s;
    record.seconds = result.seconds;
    record.wire = result.wire;
    ASSIGN_OR_RETURN(const std::string weights, MergeWeights(result.weights));
    ASSIGN_OR_RETURN(StageLine line, StageLine::Make(plan, o_.make_stage, corpus_));
    ASSIGN_OR_RETURN(record.validation, line.Validation(weights, o_.job.recipe().eval_samples()));
    if (cell.setting.compresses() || o_.rank_samples <= 0) return record;
    ASSIGN_OR_RETURN(record.energies, line.Energies(weights, o_.rank_samples));
    return record;
  }

  StepShape Shape() const {
    const RecipeSpec& r = o_.job.recipe();
    StepShape shape;
    shape.schedule = o_.job.strategy().schedule();
    shape.stages = o_.job.strategy().stages();
    shape.micros = (r.global_batch() + r.micro_batch() - 1) / r.micro_batch();
    shape.queue_limit = o_.job.strategy().queue_limit();
    shape.delay_s = o_.delay_s;
    return shape;
  }

  // A cell without a result has a row that says why; one that no seed can run, one for all.
  void AddNotes(std::vector<Row>* rows) const {
    for (const Cell& cell : cells_) {
      std::string note;
      const auto failure = failures_.find(Key(cell));
      if (failure != failures_.end()) {
        note = absl::StrCat("seed ", cell.seed, " failed: ", failure->second);
      } else if (cell.seed == o_.grid.seeds.front()) {
        note = Obstacle(cell, boundaries_);
      }
      if (note.empty()) continue;
      Row row;
      row.setting = cell.setting.Text();
      row.where = WhereName(cell.where);
      row.note = note;
      rows->push_back(std::move(row));
    }
  }

  absl::StatusOr<StudyResult> Results() {
    std::vector<CellRecord> records;
    for (const Cell& cell : cells_) {
      if (const CellRecord* record = journal_->Find(Key(cell))) records.push_back(*record);
    }
    StudyResult result;
    ASSIGN_OR_RETURN(result.rows, MakeRows(records, Shape(), compute_));
    AddNotes(&result.rows);
    result.energies = MakeEnergies(records);
    result.failed = failures_.size();
    RETURN_IF_ERROR(WriteFile(o_.out + "/study.csv", RenderCsv(result.rows)));
    const std::string title = absl::StrCat(
        "Loss against bytes: ", o_.job.name(), ", ", o_.job.recipe().steps(), " steps, ",
        o_.grid.seeds.size(), o_.grid.seeds.size() == 1 ? " seed" : " seeds");
    RETURN_IF_ERROR(WriteFile(o_.out + "/study.svg", RenderSvg(result.rows, title)));
    return result;
  }

  const StudyOptions& o_;
  const int64_t samples_;
  const SubsetCorpus corpus_;
  const int boundaries_;
  const std::vector<Cell> cells_;
  const Report& report_;
  std::unique_ptr<Journal> journal_;
  ComputeCost compute_;
  Progress progress_;
  std::map<std::string, std::string> failures_;  // by key
};

}  // namespace

JobSpec DefaultJob() {
  JobSpec job;
  job.set_name("bible");
  ModelSpec* m = job.mutable_model();
  m->set_layers(3);
  m->set_hidden(64);
  m->set_heads(4);
  m->set_context(64);
  job.mutable_data()->set_path("bible.txt");
  RecipeSpec* r = job.mutable_recipe();
  r->set_steps(250);
  r->set_global_batch(16);
  r->set_micro_batch(4);
  r->set_learning_rate(3e-3);
  r->set_eval_samples(64);
  job.mutable_strategy()->set_stages(3);
  FillDefaults(&job);
  return job;
}

int64_t SamplesForPasses(const RecipeSpec& recipe, double passes) {
  const double all = static_cast<double>(recipe.steps()) * recipe.global_batch();
  return std::max<int64_t>(recipe.global_batch(), std::llround(std::ceil(all / passes)));
}

std::string CellKey(const JobSpec& base, const Cell& cell, const worker::Corpus& corpus,
                    int64_t train_samples) {
  JobSpec job = base;
  job.clear_name();
  job.clear_seed();
  job.clear_checkpoint();
  job.mutable_data()->clear_path();  // the text itself counts
  CompressionSpec* c = job.mutable_compression();
  c->clear_forward();
  c->clear_backward();
  c->clear_evaluation();
  c->clear_boundaries();
  const std::string all =
      absl::StrCat(job.SerializeAsString(), "|", cell.setting.Text(), "|", WhereName(cell.where),
                   "|", cell.seed, "|", corpus.fingerprint(), "|", train_samples);
  return absl::StrCat(absl::Hex(Hash64(all), absl::kZeroPad16));
}

absl::StatusOr<StudyResult> RunStudy(const StudyOptions& options, const worker::Corpus& corpus,
                                     const Report& report) {
  return Study(options, corpus, report).Run();
}

std::string ProgressLine(const Progress& p, double elapsed_s, size_t width) {
  const double steps = static_cast<double>(std::max<int64_t>(1, p.steps));
  const double part = p.step < p.steps ? static_cast<double>(p.step) / steps : 0;
  const double share =
      (static_cast<double>(p.done) + part) / static_cast<double>(std::max<size_t>(1, p.cells));
  const auto filled = std::min(kBarColumns, static_cast<size_t>(share * kBarColumns));
  const double ran = static_cast<double>(p.ran) + part;
  std::string eta = "-";
  if (ran > 0) {
    const auto left =
        static_cast<int>(elapsed_s / ran * std::max(0.0, static_cast<double>(p.to_run) - ran));
    eta = absl::StrFormat("%d:%02d", left / 60, left % 60);
  }
  std::string line =
      absl::StrFormat("[%s%s] %d/%d cells  ETA %s  %s  step %d/%d  loss %.4f",
                      std::string(filled, '#'), std::string(kBarColumns - filled, '.'), p.done,
                      p.cells, eta, p.cell, p.step, p.steps, p.loss);
  if (line.size() > width) line.resize(width);
  return line;
}

}  // namespace isthmus::study
