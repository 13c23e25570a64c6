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

namespace isthmus::engine {

// "cpu", "cuda" or "cuda:N". FailedPrecondition where this LibTorch or this host has no such
// device.
absl::StatusOr<c10::Device> ParseDevice(const std::string& text);

// Threads of LibTorch's loops and of OpenBLAS (which LibTorch's own setting does not reach). 0
// leaves both as they are.
void SetThreads(int threads);

// The exception being handled, as a Status: "`what`: message". ResourceExhausted when memory ran
// out, else Internal.
absl::Status CaughtStatus(absl::string_view what);

// f() with the fence around it. F returns Status or StatusOr.
template <typename F>
auto Guarded(absl::string_view what, F f) -> decltype(f()) {
  try {
    return f();
  } catch (...) {
    return CaughtStatus(what);
  }
}

}  // namespace isthmus::engine

#endif  // ISTHMUS_WORKER_ENGINE_RUNTIME_H_
