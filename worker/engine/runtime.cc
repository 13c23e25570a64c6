#include "worker/engine/runtime.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <torch/version.h>

#include <cstdlib>
#include <exception>
#include <new>
#include <stdexcept>

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
  // As large as cuBLAS takes it by itself on a recent card, but fixed, which recipe.deterministic
  // needs. LibTorch reads it before its first product.
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  return c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index));
}

absl::StatusOr<Precision> ParsePrecision(const RecipeSpec& recipe) {
  const std::string& text = recipe.precision();
  if (text.empty() || text == "fp32") return Precision::kFp32;
  if (text == "tf32") return Precision::kTf32;
  if (text == "bf16") return Precision::kBf16;
  return absl::InvalidArgumentError(
      absl::StrCat("recipe.precision '", text, "' is not known; it must be fp32, tf32 or bf16"));
}

void UseArithmetic(Precision precision, bool deterministic) {
  at::Context& context = at::globalContext();
  context.setAllowTF32CuBLAS(precision == Precision::kTf32);
  // An operator that cannot promise the same sums in the same order is an error then.
  if (context.deterministicAlgorithms() != deterministic)
    context.setDeterministicAlgorithms(deterministic, /*warn_only=*/false);
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 2)
  context.setDeterministicFillUninitializedMemory(false);  // every element is written
  context.setAllowBF16ReductionCuBLAS(false);              // sums of split products are fp32
#endif
}

void SetThreads(int threads) {
  if (threads <= 0) return;
  at::set_num_threads(threads);
  using SetNumThreads = void (*)(int);
  if (auto set = reinterpret_cast<SetNumThreads>(dlsym(RTLD_DEFAULT, "openblas_set_num_threads")))
    set(threads);
}

void ThrowIf(const char* error, const char* what) {
  if (error != nullptr) throw std::runtime_error(absl::StrCat(what, ": ", error));
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
