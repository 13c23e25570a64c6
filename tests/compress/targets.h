// Runs what Highway dispatches once for each instruction set that this processor has, and not only
// for the best. Thread: one at a time, since the choice is the process's.
#ifndef ISTHMUS_TESTS_COMPRESS_TARGETS_H_
#define ISTHMUS_TESTS_COMPRESS_TARGETS_H_

#include "gtest/gtest.h"
#include "hwy/highway.h"

namespace isthmus::compress {

template <class F>
void ForEachTarget(const F& f) {
  const int64_t all = hwy::SupportedTargets() & HWY_TARGETS;
  ASSERT_NE(all, 0);
  for (int64_t left = all; left != 0; left &= left - 1) {
    const int64_t target = left & -left;
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::GetChosenTarget().Update(target);
    f();
  }
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace isthmus::compress

#endif  // ISTHMUS_TESTS_COMPRESS_TARGETS_H_
