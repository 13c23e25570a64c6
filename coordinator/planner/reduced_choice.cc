#include "coordinator/planner/reduced_choice.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "coordinator/core/format.h"
#include "coordinator/planner/codec_choice.h"
#include "proto/codec/codec_text.h"
#include "proto/job/job_defaults.h"
#include "proto/job/subnetworks.h"

namespace isthmus::coordinator {
namespace {

struct Candidate {
  std::string text;
  double price = 0;  // of the step time
};

// Symmetric levels: others cut the largest gradients. No error feedback by itself: Adam's second
// moment takes what comes late for noise; a frozen one does not.
std::vector<Candidate> Candidates(const JobSpec& job, double four_bit_loss) {
  std::vector<Candidate> candidates = {{"bf16"}, {"none"}};
  if (TrainsSubnetworks(job)) return candidates;  // it carries weights, too
  for (const int bits : {8, 4}) {
    if (bits < job.compression().min_bits()) continue;
    const std::string quant = absl::StrCat("quant(", bits, ", token, symmetric)");
    candidates.push_back({Freezes(job) ? absl::StrCat("ef(", quant, ")") : quant,
                          kQuantisedPrice + (bits < 8 ? kStepsForLoss * four_bit_loss : 0)});
  }
  return candidates;
}

}  // namespace

bool Freezes(const JobSpec& job) { return job.recipe().optimizer() == kQuantizedAdam; }

absl::StatusOr<CodecSpec> ChooseReduced(const JobSpec& job, const std::string& wanted,
                                        double four_bit_loss, double step_s,
                                        const std::function<double(const CodecSpec&)>& seconds_of,
                                        std::string* why) {
  if (wanted != "auto") return ParseCodec(wanted);
  std::vector<std::string> words;
  std::string best;
  double least = 0;
  for (const Candidate& candidate : Candidates(job, four_bit_loss)) {
    ASSIGN_OR_RETURN(const CodecSpec codec, ParseCodec(candidate.text));
    const double seconds = seconds_of(codec);
    words.push_back(absl::StrCat(FormatSeconds(seconds), " with ", candidate.text));
    const double cost = seconds + candidate.price * step_s;
    if (!best.empty() && cost >= least) continue;
    best = candidate.text;
    least = cost;
  }
  *why = absl::StrCat(absl::StrJoin(words, ", "), " -> ", best);
  return ParseCodec(best);
}

void WithFeedback(CodecSpec* codec, std::string* why) {
  if (codec->kind() != CodecSpec::LOW_RANK) return;
  CodecSpec with;
  with.set_kind(CodecSpec::FEEDBACK);
  *with.mutable_inner() = *codec;
  *why = absl::StrCat(FormatCodec(*codec),
                      " by matrix, with error feedback, as PowerSGD has it -> ", FormatCodec(with));
  *codec = std::move(with);
}

}  // namespace isthmus::coordinator
