#include "worker/sync/equal_weights.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/cure.h"
#include "base/hash.h"
#include "base/status.h"

namespace isthmus::worker {
namespace {

constexpr int64_t kPiece = int64_t{1} << 20;  // elements: 4 MiB

}  // namespace

absl::StatusOr<uint64_t> HashWeights(GroupPlan::Tensors set, bool embeds, Stage* stage) {
  const std::vector<StageTensor> tensors = stage->Tensors();
  const int64_t tied = stage->Elements(GroupPlan::TIED);
  Hasher hasher;
  std::vector<float> piece;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t elements = tensors[i].elements();
    if (!tensors[i].weight()) continue;
    // The embedding is the first parameter of a first stage, and the one copy on a last stage.
    if (set == GroupPlan::TIED && (elements != tied || tensors[i].copy == embeds)) continue;
    for (int64_t at = 0; at < elements; at += kPiece) {
      piece.resize(std::min(kPiece, elements - at));
      RETURN_IF_ERROR(stage->ReadTensor(static_cast<int>(i), at, absl::MakeSpan(piece)));
      hasher.Update(piece.data(), piece.size() * sizeof(float));
    }
    if (set == GroupPlan::TIED) break;
  }
  return std::max<uint64_t>(1, hasher.Digest());
}

EqualWeights::EqualWeights(const SessionPlan& plan, bool on_device)
    : plan_(plan), on_device_(on_device), shows_(!plan.groups().empty() && !plan.deals()) {}

absl::Status EqualWeights::Take(int64_t step, Stage* stage) {
  own_ = tied_ = 0;
  heard_.clear();
  if (!shows_) return absl::OkStatus();
  const bool due = taken_ < 0 || plan_.job().compression().check_buffers() ||
                   (!on_device_ && step - taken_ >= kEvery);
  if (!due) return absl::OkStatus();
  for (const int g : plan_.groups()) {
    const GroupPlan::Tensors set = plan_.plan().groups(g).tensors();
    uint64_t& hash = set == GroupPlan::TIED ? tied_ : own_;
    if (hash != 0) continue;
    ASSIGN_OR_RETURN(hash, HashWeights(set, plan_.embeds(), stage));
  }
  taken_ = step;
  return absl::OkStatus();
}

uint64_t EqualWeights::hash(int group) const {
  return plan_.plan().groups(group).tensors() == GroupPlan::TIED ? tied_ : own_;
}

void EqualWeights::Heard(int group, int rank, uint64_t hash) {
  if (hash != 0) heard_[group].push_back({rank, hash});
}

absl::Status EqualWeights::Compare(int group) {
  std::vector<Shown> all = std::move(heard_[group]);
  heard_.erase(group);
  if (hash(group) == 0 || all.empty()) return absl::OkStatus();
  all.push_back({plan_.rank(), hash(group)});
  std::sort(all.begin(), all.end(), [](const Shown& a, const Shown& b) { return a.rank < b.rank; });
  const auto holders = [&all](const Shown& of) {
    return std::count_if(all.begin(), all.end(),
                         [&of](const Shown& s) { return s.hash == of.hash; });
  };
  // Of as many, those of the lowest rank: checkpoints are of its replica.
  const Shown usual =
      *std::max_element(all.begin(), all.end(),
                        [&](const Shown& a, const Shown& b) { return holders(a) < holders(b); });
  for (const Shown& shown : all) {
    if (shown.hash != usual.hash) return Differ(group, shown, usual);
  }
  equal_at_[group] = taken_;
  return absl::OkStatus();
}

absl::Status EqualWeights::Differ(int group, const Shown& odd, const Shown& usual) const {
  const bool tied = plan_.plan().groups(group).tensors() == GroupPlan::TIED;
  const std::string who = plan_.Describe(odd.rank);
  std::string cure;
  if (const auto found = equal_at_.find(group); found != equal_at_.end()) {
    cure = absl::StrCat("They were equal before step ", found->second,
                        ". Resume the job from a checkpoint of step ", found->second,
                        " or before: all replicas take its weights, and ", who,
                        " loses its own; if it comes again, check that the memory of that host is "
                        "sound");
  } else {
    cure = absl::StrCat(
        "They differed as the session began. Resume the job from its last "
        "checkpoint, of which all replicas take the weights; if it comes again, "
        "check that ",
        who, " runs the same version of isthmusd as the others");
  }
  return WithCure(absl::FailedPreconditionError(
      absl::StrCat(tied ? "the token embedding" : "the weights", " of ", who, " before step ",
                   taken_, " are not those of ", plan_.Describe(usual.rank), " (hash ",
                   absl::Hex(odd.hash), " and ", absl::Hex(usual.hash), "), though all of group ",
                   plan_.plan().groups(group).id(), " must hold the same. ", cure)));
}

}  // namespace isthmus::worker
