// What the engine's files share of LibTorch's run time: devices, threads, and the fence that turns
// its exceptions into Status. Includes LibTorch: for worker/engine alone. Thread: any, except
// SetThreads, which is for the thread that computes.
#ifndef ISTHMUS_WORKER_ENGINE_RUNTIME_H_
#define ISTHMUS_WORKER_ENGINE_RUNTIME_H_

#include <c10/core/Device.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/log.h"
#include "proto/job.pb.h"

namespace isthmus::engine {

// Of matrix products on a GPU (recipe.precision). Weights, moments and sums are fp32 in each.
enum class Precision { kFp32, kTf32, kBf16 };

// A recipe of a coordinator that did not know the field has none: fp32. InvalidArgument: another
// word.
absl::StatusOr<Precision> ParsePrecision(const RecipeSpec& recipe);

// LibTorch's switches for what a stage on a GPU is about to compute. They are the process's: each
// call of a stage sets its own.
void UseArithmetic(Precision precision, bool deterministic);

// "cpu", "cuda" or "cuda:N". FailedPrecondition where this LibTorch or this host has no such
// device.
absl::StatusOr<c10::Device> ParseDevice(const std::string& text);

// Threads of LibTorch's loops and of OpenBLAS (which LibTorch's own setting does not reach). 0
// leaves both as they are.
void SetThreads(int threads);

// The exception being handled, as a Status: "`what`: message". ResourceExhausted when memory ran
// out, else Internal.
absl::Status CaughtStatus(absl::string_view what);

// For the calls of cuda/: throws where `error` is not null.
void ThrowIf(const char* error, const char* what);

// f() with the fence around it. F returns Status or StatusOr.
template <typename F>
auto Guarded(absl::string_view what, F f) -> decltype(f()) {
  try {
    return f();
  } catch (...) {
    return CaughtStatus(what);
  }
}

// f(), of no result, with the fence around it. What it throws is logged.
template <typename F>
void Logged(absl::string_view what, F f) {
  const absl::Status status = Guarded(what, [&] {
    f();
    return absl::OkStatus();
  });
  if (!status.ok()) LogError(status.ToString());
}

}  // namespace isthmus::engine

#endif  // ISTHMUS_WORKER_ENGINE_RUNTIME_H_
