#include "coordinator/core/records.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "proto/codec/codec_text.h"
#include "proto/job/job_state.h"
#include "proto/plan/groups.h"

namespace isthmus::coordinator {
namespace {

JobRecord Merge(const std::map<int, StepRecord>& stages) {
  JobRecord out;
  out.set_committed(true);
  for (const auto& [stage, r] : stages) {
    out.set_step(r.step());
    out.set_generation(r.generation());
    if (r.has_loss()) out.set_loss(out.loss() + r.loss());  // each replica its share of the batch
    if (r.has_validation_loss()) {
      out.set_has_validation_loss(true);
      out.set_validation_loss(r.validation_loss());
      if (r.has_validation_accuracy()) out.set_validation_accuracy(r.validation_accuracy());
    }
    out.set_tokens(std::max(out.tokens(), r.tokens()));
    out.set_step_s(std::max(out.step_s(), r.step_s()));
    out.set_compute_s(std::max(out.compute_s(), r.compute_s()));
    out.set_encode_s(out.encode_s() + r.encode_s());
    out.set_decode_s(out.decode_s() + r.decode_s());
    out.set_send_wait_s(out.send_wait_s() + r.send_wait_s());
    out.set_recv_wait_s(out.recv_wait_s() + r.recv_wait_s());
    out.set_sync_s(out.sync_s() + r.sync_s());
    out.set_gradient_norm(std::max(out.gradient_norm(), r.gradient_norm()));
    out.set_learning_rate(std::max(out.learning_rate(), r.learning_rate()));
    out.set_committed(out.committed() && r.committed());
    out.set_key_frames(out.key_frames() + r.key_frames());
    out.mutable_lazy_errors()->MergeFrom(r.lazy_errors());
    for (const DirectionBytes& d : r.directions()) {
      out.set_raw_bytes(out.raw_bytes() + d.raw_bytes());
      out.set_wire_bytes(out.wire_bytes() + d.wire_bytes());
    }
  }
  if (out.step_s() > 0) out.set_tokens_per_s(out.tokens() / out.step_s());
  return out;
}

}  // namespace

absl::Status CheckStepRecord(const StepRecord& r) {
  for (double v : {r.step_s(), r.compute_s(), r.encode_s(), r.decode_s(), r.send_wait_s(),
                   r.recv_wait_s(), r.sync_s()}) {
    if (!std::isfinite(v) || v < 0)
      return absl::InvalidArgumentError(absl::StrCat("step record ", r.step(), ": a time is ", v));
  }
  if (r.directions_size() > kMaxDirections) {
    return absl::InvalidArgumentError(absl::StrCat("step record ", r.step(), ": ",
                                                   r.directions_size(), " directions; at most ",
                                                   kMaxDirections));
  }
  for (const DirectionBytes& d : r.directions()) {
    if (d.raw_bytes() < 0 || d.wire_bytes() < 0)
      return absl::InvalidArgumentError(absl::StrCat("step record ", r.step(), ": negative bytes"));
    if (d.train_frames_in() < 0 || d.train_bytes_in() < 0 || !std::isfinite(d.train_s_in()) ||
        d.train_s_in() < 0) {
      return absl::InvalidArgumentError(absl::StrCat("step record ", r.step(), ": trains of ",
                                                     d.train_bytes_in(), " bytes in ",
                                                     d.train_s_in(), " s"));
    }
    if (d.late_buffer_reads() < 0 || d.late_buffer_reads_in() < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("step record ", r.step(), ": negative buffer reads"));
    }
  }
  if (r.groups_size() > kMaxDirections) {
    return absl::InvalidArgumentError(absl::StrCat("step record ", r.step(), ": ", r.groups_size(),
                                                   " groups; at most ", kMaxDirections));
  }
  for (const GroupRecord& g : r.groups()) {
    const bool times = std::isfinite(g.reduce_s()) && std::isfinite(g.wait_s());
    if (!times || g.reduce_s() < 0 || g.wait_s() < 0 || g.raw_bytes() < 0 || g.wire_bytes() < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("step record ", r.step(), ": a figure of group ", g.group_id().substr(0, 64),
                       " is negative or not finite"));
    }
  }
  if (r.lazy_errors_size() > kMaxDirections)
    return absl::InvalidArgumentError(
        absl::StrCat("step record ", r.step(), ": ", r.lazy_errors_size(), " lazy errors"));
  for (const LazyError& e : r.lazy_errors()) {
    for (double v : {e.cosine(), e.error_mean(), e.difference_mean(), e.relative_error()}) {
      if (!std::isfinite(v))
        return absl::InvalidArgumentError(
            absl::StrCat("step record ", r.step(), ": a lazy error is ", v));
    }
  }
  if (r.step() < 0 || r.tokens() < 0 || r.key_frames() < 0) {
    return absl::InvalidArgumentError(absl::StrCat("step record ", r.step(), ": a negative count"));
  }
  return absl::OkStatus();
}

RecordMerger::RecordMerger(uint64_t generation, int stages, int64_t next_step)
    : generation_(generation), stages_(stages), next_step_(next_step) {}

absl::StatusOr<std::optional<MergedStep>> RecordMerger::Add(const StepRecord& record) {
  RETURN_IF_ERROR(CheckStepRecord(record));
  if (record.generation() != generation_) {
    return absl::InvalidArgumentError(absl::StrCat("step record of generation ",
                                                   record.generation(),
                                                   "; the job runs generation ", generation_));
  }
  if (record.rank() < 0 || record.rank() >= stages_) {
    return absl::InvalidArgumentError(
        absl::StrCat("step record of rank ", record.rank(), "; the plan has ", stages_));
  }
  const int64_t step = record.step();
  if (step < next_step_ || ahead_.count(step) > 0)
    return std::optional<MergedStep>();  // sent again
  auto& stages = pending_[step];
  stages.emplace(record.rank(), record);
  if (static_cast<int>(stages.size()) == stages_) {
    MergedStep merged;
    merged.record = Merge(stages);
    for (auto& [stage, r] : stages) merged.stages.push_back(std::move(r));
    pending_.erase(step);
    MarkDone(step);
    return std::optional<MergedStep>(std::move(merged));
  }
  if (static_cast<int>(pending_.size()) > kMaxPendingSteps) {
    const int64_t oldest = pending_.begin()->first;
    pending_.erase(pending_.begin());
    MarkDone(oldest);
  }
  return std::optional<MergedStep>();
}

std::vector<MergedStep> RecordMerger::TakeRest(int64_t before, const Plan& plan) {
  std::vector<MergedStep> rest;
  const double batch = plan.job().recipe().global_batch();
  for (auto it = pending_.begin(); it != pending_.end() && it->first < before;) {
    double told = 0;  // samples whose loss is known
    for (const auto& [rank, r] : it->second) {
      if (r.has_loss()) told += ShareOf(plan, plan.ranks(rank).replica()).count();
    }
    if (told > 0) {
      MergedStep merged;
      merged.record = Merge(it->second);
      merged.record.set_loss(merged.record.loss() * batch / told);
      for (auto& [rank, r] : it->second) merged.stages.push_back(std::move(r));
      rest.push_back(std::move(merged));
    }
    it = pending_.erase(it);
  }
  return rest;
}

void RecordMerger::MarkDone(int64_t step) {
  ahead_.insert(step);
  if (static_cast<int>(ahead_.size()) > kMaxAhead) next_step_ = *ahead_.begin();
  while (!ahead_.empty() && *ahead_.begin() <= next_step_) {
    next_step_ = std::max(next_step_, *ahead_.begin() + 1);
    ahead_.erase(ahead_.begin());
  }
  pending_.erase(pending_.begin(), pending_.lower_bound(next_step_));
}

bool SameCut(const Plan& a, const Plan& b) {
  return std::equal(a.ranks().begin(), a.ranks().end(), b.ranks().begin(), b.ranks().end(),
                    [](const RankPlan& x, const RankPlan& y) {
                      return x.first_layer() == y.first_layer() && x.end_layer() == y.end_layer();
                    });
}

namespace {

constexpr char kOthers[] = "others";

// The row of a direction and what codes it now, made where there is none.
BoundaryTotals* RowOf(const DirectionBytes& d, const std::string& codec,
                      const std::string& with_validations, int64_t start_step,
                      std::vector<BoundaryTotals>* totals) {
  int rows = 0;
  BoundaryTotals* others = nullptr;
  for (BoundaryTotals& t : *totals) {
    if (t.link_id() != d.link_id() || t.forward() != d.forward()) continue;
    if (t.codec() == codec || t.codec() == with_validations) return &t;
    if (t.codec() == kOthers) others = &t;
    ++rows;
  }
  if (others != nullptr) return others;
  BoundaryTotals& row = totals->emplace_back();
  row.set_link_id(d.link_id());
  row.set_forward(d.forward());
  row.set_from_step(start_step);
  row.set_codec(rows < kMaxCodecRows ? codec : kOthers);
  return &row;
}

}  // namespace

void AddBytes(const StepRecord& record, const Plan& plan, bool validated,
              std::vector<BoundaryTotals>* totals) {
  for (const DirectionBytes& d : record.directions()) {
    const auto link = std::find_if(plan.links().begin(), plan.links().end(),
                                   [&](const LinkPlan& l) { return l.id() == d.link_id(); });
    if (link == plan.links().end()) continue;
    const std::string codec = DirectionCodecs(plan, *link, d.forward()),
                      evaluation = FormatCodec(link->evaluation());
    const bool evaluates = link->kind() == LinkPlan::BOUNDARY && d.forward() && evaluation != codec;
    const std::string with_validations =
        evaluates ? absl::StrCat(codec, kWithValidations, evaluation) : codec;
    BoundaryTotals* row = RowOf(d, codec, with_validations, plan.start_step(), totals);
    if (validated && row->codec() == codec) row->set_codec(with_validations);
    row->set_from_node(plan.ranks(d.forward() ? link->lower() : link->upper()).node_name());
    row->set_to_node(plan.ranks(d.forward() ? link->upper() : link->lower()).node_name());
    row->set_raw_bytes(row->raw_bytes() + d.raw_bytes());
    row->set_wire_bytes(row->wire_bytes() + d.wire_bytes());
  }
  std::stable_sort(totals->begin(), totals->end(),
                   [](const BoundaryTotals& a, const BoundaryTotals& b) {
                     if (a.link_id().size() != b.link_id().size())
                       return a.link_id().size() < b.link_id().size();
                     if (a.link_id() != b.link_id()) return a.link_id() < b.link_id();
                     return a.forward() > b.forward();
                   });
}

}  // namespace isthmus::coordinator
