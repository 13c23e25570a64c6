#include "worker/engine/runtime.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <exception>
#include <new>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace isthmus::engine {

absl::StatusOr<c10::Device> ParseDevice(const std::string& text) {
  if (text.empty() || text == "cpu") return c10::Device(c10::DeviceType::CPU);
  absl::string_view rest = text;
  int index = 0;
  if (!absl::ConsumePrefix(&rest, "cuda") ||
      !(rest.empty() || (absl::ConsumePrefix(&rest, ":") && absl::SimpleAtoi(rest, &index) &&
                         index >= 0 && index < 128))) {
    return absl::InvalidArgumentError(
        absl::StrCat("device '", text, "' is not known; it must be cpu or cuda:N"));
  }
  if (!at::globalContext().hasCUDA()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "device ", text,
        ": this LibTorch has no CUDA or this host no GPU that it can use; use --device cpu"));
  }
  // The same sums in the same order, so that a run repeats itself. Operators that cannot promise it
  // warn and run.
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  return c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index));
}

void SetThreads(int threads) {
  if (threads <= 0) return;
  at::set_num_threads(threads);
  using SetNumThreads = void (*)(int);
  if (auto set = reinterpret_cast<SetNumThreads>(dlsym(RTLD_DEFAULT, "openblas_set_num_threads")))
    set(threads);
}

absl::Status CaughtStatus(absl::string_view what) {
  std::string message;
  try {
    throw;
  } catch (const c10::Error& e) {
    message = e.what_without_backtrace();
  } catch (const std::bad_alloc&) {
    message = "out of memory";
  } catch (const std::exception& e) {
    message = e.what();
  } catch (...) {
    message = "unknown exception";
  }
  const bool memory = absl::StrContains(message, "out of memory") ||
                      absl::StrContains(message, "t allocate memory");
  message = absl::StrCat(what, ": ", message.substr(0, 2000));
  return memory ? absl::ResourceExhaustedError(absl::StrCat(
                      message, "; give this node fewer layers or a smaller recipe.micro_batch"))
                : absl::InternalError(message);
}

}  // namespace isthmus::engine
