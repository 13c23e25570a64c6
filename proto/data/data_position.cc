#include "proto/data/data_position.h"

#include <algorithm>

namespace isthmus {

DataPosition Advance(const DataPosition& from, int64_t train_samples, int64_t batch,
                     int64_t steps) {
  DataPosition at = from;
  at.set_samples(from.samples() + steps * batch);
  if (batch <= 0 || train_samples < batch) return at;
  const int64_t here = std::max<int64_t>(0, train_samples - from.offset()) / batch;
  if (steps <= here) {
    at.set_offset(from.offset() + steps * batch);
    return at;
  }
  const int64_t later = steps - here - 1;  // whole steps after the first one of the next epoch
  const int64_t in_epoch = train_samples / batch;
  at.set_epoch(from.epoch() + 1 + later / in_epoch);
  at.set_offset((later % in_epoch + 1) * batch);
  return at;
}

DataPosition NextStep(const DataPosition& at, int64_t train_samples, int64_t batch) {
  return at.offset() + batch <= train_samples ? at : NewPass(at);
}

DataPosition StartOfData(const Plan& plan, int64_t train_samples) {
  if (plan.has_data()) return plan.data();
  return Advance(DataPosition(), train_samples, plan.job().recipe().global_batch(),
                 plan.start_step());
}

int64_t SamplesBefore(const Plan& plan, int64_t step) {
  const int64_t batch = plan.job().recipe().global_batch();
  if (!plan.has_data()) return step * batch;
  return plan.data().samples() + (step - plan.start_step()) * batch;
}

DataPosition NewPass(const DataPosition& at) {
  DataPosition next = at;
  next.set_epoch(at.epoch() + 1);
  next.set_offset(0);
  return next;
}

}  // namespace isthmus
