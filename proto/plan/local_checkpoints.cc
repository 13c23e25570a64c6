#include "proto/plan/local_checkpoints.h"

#include <algorithm>

#include "proto/codec/codec_text.h"
#include "proto/plan/agreements.h"
#include "proto/plan/overlap.h"

namespace isthmus {

std::string WhyNoLocal(const Plan& plan) {
  if (plan.job().checkpoint().local() == 0) return "";
  if (AgreementsDiffer(plan))
    return "replicas agree on the whole model at once only where it is validated or stored";
  if (plan.job().checkpoint().local() != kPacedLocal) return "";
  if (Overlaps(plan.job()))
    return "steps that overlap would have to be drained for each, which alters them; "
           "checkpoint.local N does so after every N steps";
  const auto remembers = [](const LinkPlan& link) {
    return IsStateful(link.forward()) || IsStateful(link.backward());
  };
  if (std::any_of(plan.links().begin(), plan.links().end(), remembers))
    return "what the codecs of the boundaries remember would be lost with each interruption: it is "
           "kept with stored checkpoints alone; checkpoint.local N makes them all the same";
  return "";
}

int64_t LocalEvery(const Plan& plan) {
  const int64_t asked = plan.job().checkpoint().local();
  if (!WhyNoLocal(plan).empty()) return 0;
  return asked == kPacedLocal ? 1 : asked;
}

bool PacesLocal(const Plan& plan) {
  return plan.job().checkpoint().local() == kPacedLocal && LocalEvery(plan) > 0;
}

}  // namespace isthmus
