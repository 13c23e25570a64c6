#include "coordinator/cli/view/watch_view.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "coordinator/cli/view/render.h"
#include "coordinator/cli/view/summary.h"

namespace isthmus::cli {
namespace {

constexpr size_t kMaxValidationLines = 5;
constexpr size_t kShareOf = 20;  // steps that the split of time is averaged over

int64_t TotalBytes(const JobStatus& status, bool wire) {
  int64_t sum = 0;
  for (const BoundaryTotals& b : status.boundaries()) sum += wire ? b.wire_bytes() : b.raw_bytes();
  return sum;
}

std::string WireText(const JobStatus& status) {
  const int64_t raw = TotalBytes(status, false);
  const int64_t wire = TotalBytes(status, true);
  if (wire == 0) return "no bytes on the wire";
  return absl::StrCat(FormatBytes(static_cast<double>(wire)), " on the wire, ",
                      FormatBytes(static_cast<double>(raw)), " raw, ratio ",
                      FormatFixed(Ratio(raw, wire), 1));
}

// "step 0.21 s: compute 81 %, waiting for the network 12 %" of the last steps.
std::string TimeText(const std::vector<JobRecord>& records) {
  double step = 0;
  double compute = 0;
  const size_t first = records.size() - std::min(records.size(), kShareOf);
  for (size_t i = first; i < records.size(); ++i) {
    step += records[i].step_s();
    compute += records[i].compute_s();
  }
  if (step <= 0) return "";
  return absl::StrFormat("%s a step, %.0f %% of it compute of the slowest stage",
                         FormatSeconds(step / static_cast<double>(records.size() - first)),
                         100 * std::min(1.0, compute / step));
}

// With two spaces before it. Empty: no step is left.
std::string Eta(const JobStatus& status) {
  if (status.eta_s() > 0) return absl::StrCat("  ETA ", FormatSeconds(status.eta_s()));
  return status.step() < status.steps() ? "  ETA -" : "";
}

// With two spaces before it; empty: the job has no phases. `phase`: an index.
std::string PhaseText(const JobStatus& status, int phase) {
  return status.phases() == 0 ? "" : absl::StrCat("  phase ", phase + 1, "/", status.phases());
}

// Of the last steps. A status that came before the first record of a generation has none of it.
double TokensPerSecond(const JobStatus& status, const JobRecord& record) {
  return status.tokens_per_s() > 0 ? status.tokens_per_s() : record.tokens_per_s();
}

}  // namespace

std::vector<std::string> WatchFrame(const JobStatus& status, const std::vector<JobRecord>& records,
                                    const std::vector<double>& losses, size_t width, bool unicode) {
  std::vector<std::string> lines;
  lines.push_back(absl::StrCat(Printable(status.name()), "  ", StateName(status.state()),
                               PhaseText(status, status.phase()), "  generation ",
                               status.generation(), status.reason().empty() ? "" : "  ",
                               Printable(status.reason())));
  const double fraction =
      status.steps() > 0 ? static_cast<double>(status.step()) / static_cast<double>(status.steps())
                         : 0;
  const std::string tail = absl::StrFormat(" %3.0f %%  step %d/%d%s", 100 * fraction, status.step(),
                                           status.steps(), Eta(status));
  const size_t bar =
      width > DisplayWidth(tail) + 12 ? std::min<size_t>(width - DisplayWidth(tail) - 2, 50) : 10;
  lines.push_back(absl::StrCat("[", ProgressBar(fraction, bar, unicode), "]", tail));
  std::string validation;
  if (status.has_validation_loss())
    validation = absl::StrCat("  validation ", FormatFixed(status.validation_loss(), 4));
  if (status.has_validation_accuracy())
    absl::StrAppend(&validation, "  accuracy ", FormatPercent(status.validation_accuracy()));
  if (!losses.empty()) {
    const std::string head = absl::StrCat("loss ", FormatFixed(status.loss(), 4), "  ");
    const std::string end =
        absl::StrCat("  first ", FormatFixed(status.first_loss(), 4), validation);
    const size_t room = width > head.size() + end.size() ? width - head.size() - end.size() : 0;
    lines.push_back(
        absl::StrCat(head, Sparkline(losses, std::min<size_t>(room, 50), unicode), end));
  }
  lines.push_back(
      absl::StrCat(FormatCount(status.tokens_per_s()), " tokens/s  ", WireText(status)));
  const std::string time = TimeText(records);
  if (!time.empty()) lines.push_back(time);
  for (const std::string& warning : status.warnings())
    lines.push_back(absl::StrCat("warning: ", Printable(warning)));
  for (std::string& line : lines) {
    std::replace(line.begin(), line.end(), '\n', ' ');
    line = Clip(line, width);
  }
  return lines;
}

std::string WatchLine(const JobStatus& status, const JobRecord& record, bool newest) {
  std::string line =
      absl::StrFormat("step %d/%d%s  loss %s", record.step() + 1, status.steps(),
                      PhaseText(status, record.phase()), FormatFixed(record.loss(), 4));
  if (newest) {
    absl::StrAppend(&line, "  ", FormatCount(TokensPerSecond(status, record)), " tokens/s  ",
                    WireText(status), Eta(status));
  }
  if (record.has_validation_loss())
    absl::StrAppend(&line, "  validation ", FormatFixed(record.validation_loss(), 4));
  if (record.has_validation_accuracy())
    absl::StrAppend(&line, "  accuracy ", FormatPercent(record.validation_accuracy()));
  if (!record.committed()) absl::StrAppend(&line, "  (skipped: the gradients were not finite)");
  return line;
}

void WatchView::Take(const WatchReply& reply) {
  if (reply.has_status()) {
    status_ = reply.status();
    if (history_end_ < 0) history_end_ = status_.step();
  }
  for (const JobRecord& record : reply.records()) {
    if (record.step() < next_step_) {
      if (record.generation() <= generation_) continue;  // sent again after a reconnection
      // The job went on from an earlier step.
      while (!records_.empty() && records_.back().step() >= record.step()) records_.pop_back();
      printed_step_ = std::min(printed_step_, record.step() - 1);
      validated_step_ = std::min(validated_step_, record.step() - 1);
      history_end_ = std::min(history_end_, record.step());
    }
    generation_ = record.generation();
    next_step_ = record.step() + 1;
    records_.push_back(record);
    if (seen_++ % stride_ == 0 && std::isfinite(record.loss())) losses_.push_back(record.loss());
  }
  if (records_.size() > 2 * kMaxHistory)
    records_.erase(records_.begin(), records_.end() - kMaxHistory);
  if (losses_.size() > kMaxHistory) {
    for (size_t i = 0; 2 * i < losses_.size(); ++i) losses_[i] = losses_[2 * i];
    losses_.resize((losses_.size() + 1) / 2);
    stride_ *= 2;
  }
}

std::string WatchView::Draw(const std::vector<std::string>& lines) {
  std::string out;
  if (drawn_lines_ > 0) absl::StrAppend(&out, "\x1b[", drawn_lines_, "A");
  absl::StrAppend(&out, "\r\x1b[J");
  for (const std::string& line : lines) absl::StrAppend(&out, line, "\n");
  drawn_lines_ = lines.size();
  return out;
}

std::string WatchView::Update(const WatchReply& reply, absl::Time now) {
  Take(reply);
  if (options_.terminal) {
    if (now - last_output_ < options_.frame_every) return "";
    last_output_ = now;
    return Draw(WatchFrame(status_, records_, losses_, options_.width, options_.unicode));
  }
  std::string out;
  if (reply.has_status()) out = NewWarnings();
  if (reply.has_status() && !IsEnd(status_.state())) out += StateLine();  // an end: see Finish
  absl::StrAppend(&out, ValidationLines());
  // What was done before the watching began comes in pages: the newest of it alone has a line,
  // since the totals beside it are today's.
  const bool caught_up = history_end_ >= 0 && next_step_ >= history_end_;
  if (caught_up && !records_.empty() && records_.back().step() > printed_step_ &&
      now - last_output_ >= options_.line_every) {
    last_output_ = now;
    printed_step_ = records_.back().step();
    absl::StrAppend(&out, WatchLine(status_, records_.back()), "\n");
  }
  return out;
}

// A line of each validation pass, however soon after the last line: there are few. Of a page of
// old ones the last kMaxValidationLines, without today's totals.
std::string WatchView::ValidationLines() {
  std::vector<std::string> lines;
  auto record = records_.rbegin();
  for (; record != records_.rend() && record->step() > printed_step_; ++record) {
    if (!record->has_validation_loss() || lines.size() == kMaxValidationLines) continue;
    const bool newest = record->step() + 1 >= history_end_;
    lines.push_back(absl::StrCat(WatchLine(status_, *record, newest), "\n"));
    if (lines.size() == 1) validated_step_ = std::max(validated_step_, record->step());
  }
  printed_step_ = std::max(printed_step_, validated_step_);
  std::reverse(lines.begin(), lines.end());
  return absl::StrJoin(lines, "");
}

std::string WatchView::Remark(const std::string& text) {
  drawn_lines_ = 0;  // the next frame stands below the remark
  return absl::StrCat(text, "\n");
}

// Those that the status before did not have. Figures in them change: a warning is known by how it
// begins.
std::string WatchView::NewWarnings() {
  std::string out;
  std::set<std::string> kinds;
  for (const std::string& warning : status_.warnings()) {
    const std::string kind = warning.substr(0, warning.find(':'));
    kinds.insert(kind);
    if (warned_.count(kind) == 0) absl::StrAppend(&out, "warning: ", Printable(warning), "\n");
  }
  for (const std::string& kind : warned_) {
    if (kinds.count(kind) == 0) absl::StrAppend(&out, "no longer: ", Printable(kind), "\n");
  }
  warned_ = std::move(kinds);
  return out;
}

// The state and its reason, if it is not the last one printed.
std::string WatchView::StateLine() {
  if (state_printed_ && status_.state() == printed_state_ && status_.reason() == printed_reason_)
    return "";
  state_printed_ = true;
  printed_state_ = status_.state();
  printed_reason_ = status_.reason();
  return absl::StrCat(Printable(status_.name()), " ", StateName(status_.state()),
                      status_.reason().empty() ? "" : ": ", Printable(status_.reason()), "\n");
}

// The end itself, with its cause, is told once, by the summary that follows.
std::string WatchView::Finish() {
  if (options_.terminal) {
    JobStatus status = status_;
    if (IsEnd(status.state())) status.clear_reason();
    const std::string out =
        Draw(WatchFrame(status, records_, losses_, options_.width, options_.unicode));
    drawn_lines_ = 0;
    return out;
  }
  std::string out;
  if (!records_.empty() && records_.back().step() > printed_step_) {
    printed_step_ = records_.back().step();
    out = absl::StrCat(WatchLine(status_, records_.back()), "\n");
  }
  return out;
}

}  // namespace isthmus::cli
