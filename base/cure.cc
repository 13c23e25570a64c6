#include "base/cure.h"

#include "absl/strings/cord.h"

namespace isthmus {
namespace {

constexpr char kUrl[] = "isthmus/cure";

}  // namespace

absl::Status WithCure(absl::Status error) {
  error.SetPayload(kUrl, absl::Cord());
  return error;
}

bool TellsCure(const absl::Status& error) { return error.GetPayload(kUrl).has_value(); }

}  // namespace isthmus
