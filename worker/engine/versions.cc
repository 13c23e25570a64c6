#include "worker/engine/versions.h"

#include <utility>

namespace isthmus::engine {
namespace {

void Take(const Version& from, Version* to) {
  if (to->flat != nullptr) return to->flat->Take(*from.flat);
  for (size_t i = 0; i < from.parameters.size(); ++i)
    to->parameters[i].value.detach().copy_(from.parameters[i].value.detach());
}

// `to` holds the weights before the update that made `newest`.
void Forecast(const Version& newest, double look_ahead, Version* to) {
  if (to->flat != nullptr) return to->flat->Forecast(*newest.flat, look_ahead);
  for (size_t i = 0; i < newest.parameters.size(); ++i)
    Extrapolate(newest.parameters[i].value.detach(), look_ahead, to->parameters[i].value.detach());
}

}  // namespace

void Versions::Copy(int version) {
  Version &from = versions_[0], &to = versions_[version];
  to.parameters = from.parameters;
  if (from.flat != nullptr) {
    to.flat = std::make_unique<FlatParameters>(*from.flat, &to.parameters);
    return;
  }
  for (Parameter& p : to.parameters) {
    p.value = p.value.detach().clone().requires_grad_(true);
    p.operand = p.value;
  }
}

void Versions::BeginOverlapped() {
  for (const int version : {1, 2}) {
    if (ending_ == 0) {
      Copy(version);
    } else {
      Take(newest(), &versions_[version]);
    }
  }
  if (ending_ == 0) ending_ = 1;
}

void Versions::Update(const AdamWOptions& options, const AdamWStep& step, double look_ahead) {
  const bool forecast = ending_ != 0 && look_ahead > 0;
  if (forecast) Take(newest(), &ending());  // until they have changed
  if (newest().flat != nullptr) {
    newest().flat->Update(options, step, *ending().flat);
  } else {
    for (size_t i = 0; i < newest().parameters.size(); ++i) {
      Parameter& p = newest().parameters[i];
      AdamWUpdate(options, p.spec.dealt() ? step.OfDealt() : step, p.spec.decay,
                  ending().parameters[i].value.grad(), p.value.detach(), &p.state);
    }
  }
  if (forecast) {
    Forecast(newest(), look_ahead, &ending());
  } else {
    TakeNewest();
  }
}

void Versions::TakeNewest() {
  if (ending_ != 0) Take(newest(), &ending());
}

int Versions::EndStep() {
  if (ending().flat != nullptr) {
    ending().flat->ClearGradients();
  } else {
    for (Parameter& p : ending().parameters) p.value.mutable_grad() = at::Tensor();
  }
  const int ended = ending_;
  if (ending_ != 0) ending_ = 3 - ending_;
  return ended;
}

}  // namespace isthmus::engine
