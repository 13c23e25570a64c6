#include "worker/engine/tensor_file.h"

#include <ATen/ops/from_blob.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/log.h"
#include "base/safetensors.h"
#include "base/status.h"
#include "proto/model/tensor_names.h"
#include "worker/engine/runtime.h"

namespace isthmus::engine {
namespace {

constexpr char kPrefix[] = "transformer.";

}  // namespace

absl::StatusOr<std::string> WriteTensors(const NamedTensors& tensors) {
  std::vector<at::Tensor> host;  // keeps what the items point to
  std::vector<SafetensorsItem> items;
  for (const auto& [name, tensor] : tensors) {
    host.push_back(tensor.cpu().contiguous());
    const at::Tensor& t = host.back();
    items.push_back({name, "F32", t.sizes().vec(),
                     absl::string_view(static_cast<const char*>(t.data_ptr()), t.nbytes())});
  }
  return WriteSafetensors(std::move(items), {{"format", "pt"}});
}

absl::Status ReadTensors(absl::string_view bytes, const NamedTensors& targets,
                         absl::string_view what) {
  ASSIGN_OR_RETURN(const auto entries, ParseSafetensors(bytes));
  std::vector<const SafetensorsEntry*> found;  // null: it stays as it is
  for (const auto& [name, tensor] : targets) {
    auto it = entries.find(name);
    if (it == entries.end()) it = entries.find(std::string(absl::StripPrefix(name, kPrefix)));
    const std::vector<int64_t> shape = tensor.sizes().vec();
    const bool same = it != entries.end() && it->second.shape == shape;
    if (!same && IsOwnTensor(name)) {
      const bool moment = !absl::EndsWith(name, ".weight");
      if (!moment)
        LogWarning(what, ": ", name, " of [", absl::StrJoin(shape, ", "),
                   "] is not in the checkpoint: this autoencoder starts anew");
      found.push_back(nullptr);
      continue;
    }
    if (it == entries.end())
      return absl::NotFoundError(absl::StrCat(what, ": tensor ", name, " is missing"));
    if (it->second.shape != shape) {
      return absl::InvalidArgumentError(
          absl::StrCat(what, ": tensor ", name, " is [", absl::StrJoin(it->second.shape, ", "),
                       "] but the job's model needs [", absl::StrJoin(shape, ", "), "]"));
    }
    const std::string& type = it->second.dtype;
    if (type != "F32" && type != "F16" && type != "BF16") {
      return absl::InvalidArgumentError(absl::StrCat(what, ": tensor ", name, " has type ", type,
                                                     "; convert it to F32, F16 or BF16"));
    }
    found.push_back(&it->second);
  }
  return Guarded(absl::StrCat("import of the ", what), [&]() -> absl::Status {
    for (size_t i = 0; i < targets.size(); ++i) {
      if (found[i] == nullptr) continue;
      ASSIGN_OR_RETURN(std::vector<float> values, ToFloats(*found[i]));
      at::Tensor target = targets[i].second;
      target.copy_(
          at::from_blob(values.data(), target.sizes(), at::TensorOptions().dtype(at::kFloat)));
    }
    return absl::OkStatus();
  });
}

}  // namespace isthmus::engine
