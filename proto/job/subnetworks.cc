#include "proto/job/subnetworks.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/number_text.h"
#include "base/suggest.h"
#include "proto/codec/codec_text.h"
#include "proto/job/field_error.h"
#include "proto/model/family.h"
#include "proto/plan/deal.h"

namespace isthmus {

namespace {

// Each replica has something of every layer.
absl::Status CheckReplicas(const JobSpec& job) {
  const StrategySpec& s = job.strategy();
  const bool mlp = IsMlp(job.model());
  const int most = mlp ? std::min(job.model().hidden(), 256) : job.model().heads();
  const char* field = mlp ? "model.hidden" : "model.heads";
  const std::string one = mlp ? "unit of each layer" : "head of each layer";
  if (most == 1)
    return NotAllowed(
        "strategy.subnetworks", s.subnetworks(),
        absl::StrCat("none with ", field, " 1: each of two replicas or more needs a ", one));
  if (most < 1 || (s.replicas() >= 2 && s.replicas() <= most)) return absl::OkStatus();
  return NotAllowed(
      "strategy.replicas", s.replicas(),
      absl::StrCat(RangeText(2, most),
                   " with strategy.subnetworks: the slice of each replica has at least "
                   "one ",
                   one, " (", field, ")"));
}

}  // namespace

std::vector<absl::Status> SubnetworkErrors(const JobSpec& job) {
  std::vector<absl::Status> errors;
  const auto refuse = [&](absl::string_view field, const auto& value, absl::string_view allowed) {
    errors.push_back(NotAllowed(field, value, allowed));
  };
  const StrategySpec& s = job.strategy();
  const std::string& kind = s.subnetworks();
  if (kind == kBlocks) {
    refuse("strategy.subnetworks", kind,
           "'none' or 'units': this version does not deal whole layers yet");
    return errors;
  }
  const bool none = kind.empty() || kind == kNoSubnetworks;
  if (!none && kind != kUnits) {
    const std::string meant = DidYouMean(kind, {kNoSubnetworks, kUnits});
    refuse("strategy.subnetworks", kind,
           absl::StrCat("'none' or 'units'", meant.empty() ? "" : "; ", meant));
    return errors;
  }
  if (none) {
    if (s.whole_layers() != 0)
      refuse("strategy.whole_layers", s.whole_layers(),
             "0 without strategy.subnetworks: then every layer is whole");
    return errors;
  }
  const int layers = job.model().layers();
  const bool mlp = IsMlp(job.model());
  if (absl::Status wrong = CheckReplicas(job); !wrong.ok()) errors.push_back(std::move(wrong));
  if (mlp && s.stages() != 1)
    refuse(
        "strategy.stages", s.stages(),
        "1 with strategy.subnetworks and model.family mlp: a daemon has its slice of all layers");
  if (mlp && s.whole_layers() != 0)
    refuse("strategy.whole_layers", s.whole_layers(),
           "0 with model.family mlp: every layer is dealt");
  if (s.local_steps() < 2)
    refuse("strategy.local_steps", s.local_steps(),
           "2 or more with strategy.subnetworks: the steps between two deals, such as 50");
  const int whole = std::max(0, (layers - 1) / 2);
  if (!mlp && layers > 0 && (s.whole_layers() < 0 || 2 * int64_t{s.whole_layers()} >= layers)) {
    refuse("strategy.whole_layers", s.whole_layers(),
           absl::StrCat(RangeText(0, whole), " with model.layers ", layers,
                        ": at least one layer is left to deal"));
  }
  if (s.fragments() != 1)
    refuse("strategy.fragments", s.fragments(),
           "1 with strategy.subnetworks: a deal is of all layers at once");
  if (s.fragment_delay() != 0)
    refuse("strategy.fragment_delay", s.fragment_delay(),
           "0 with strategy.subnetworks: nothing is trained while slices change hands");
  const std::string& codec = job.compression().gradients();
  const absl::StatusOr<CodecSpec> spec = codec == "auto" ? CodecSpec() : ParseCodec(codec);
  if (spec.ok() && !CarriesWeights(*spec))
    refuse(
        "compression.gradients", codec,
        "auto, none, bf16 or fp16 with strategy.subnetworks: it carries weights, too, and what it "
        "loses of them is lost");
  return errors;
}

}  // namespace isthmus
