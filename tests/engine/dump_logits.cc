// dump_logits DIR [untied]: trains a small GPT for a few steps in three stages, writes its export
// to DIR (model.safetensors, config.json) and what the engine computes with it to
// DIR/expected.safetensors (tokens, logits). check_export.py reads them without any of our code.
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>

#include "base/rng.h"
#include "base/safetensors.h"
#include "proto/job/job_defaults.h"
#include "proto/model/gpt2_config.h"
#include "tests/engine/pipeline.h"
#include "worker/engine/blocks.h"
#include "worker/engine/gpt2_parameters.h"

namespace isthmus::engine {
namespace {

constexpr int64_t kSamples = 2, kPositions = 13;

absl::string_view Bytes(const at::Tensor& t) {
  return {static_cast<const char*>(t.data_ptr()), static_cast<size_t>(t.nbytes())};
}

void Save(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

at::Tensor RunModel(const ModelSpec& model, const std::string& weights, const at::Tensor& tokens) {
  const auto parsed = ParseSafetensors(weights).value();
  std::vector<at::Tensor> p;
  for (const ParameterSpec& spec : StageParameters(model, 0, model.layers())) {
    std::vector<float> values = ToFloats(parsed.at(spec.name)).value();
    p.push_back(at::from_blob(values.data(), spec.shape, at::kFloat).clone());
  }
  at::Tensor x = Embed(tokens, p[0], p[1]);
  size_t i = 2;
  for (int layer = 0; layer < model.layers(); ++layer, i += kBlockTensors) {
    const BlockWeights w{p[i],     p[i + 1], p[i + 2], p[i + 3], p[i + 4],  p[i + 5],
                         p[i + 6], p[i + 7], p[i + 8], p[i + 9], p[i + 10], p[i + 11]};
    x = Block(x, w, {model.heads()}, CausalMask(kPositions, at::kFloat), NormEpsilon(model));
  }
  return Logits(HeadNorm(x, p[i], p[i + 1], NormEpsilon(model)), IsTied(model) ? p[0] : p[i + 2])
      .view({kSamples, kPositions, model.vocabulary()})
      .contiguous();
}

int Main(const std::string& directory, bool tied) {
  const c10::AutoGradMode no_gradients(false);
  JobSpec job = TinyJob(3, 48, 3);
  job.mutable_model()->set_norm_epsilon(1e-3);  // another one than the default shows in the logits
  job.mutable_model()->set_tied(tied);
  Pipeline pipeline(MakePlan(job, {1, 1, 1}));
  for (int step = 0; step < 10; ++step) pipeline.Step(step);
  const std::string weights = pipeline.ExportWeights();
  const at::Tensor tokens = at::empty({kSamples, kPositions}, at::kLong);
  for (int64_t i = 0; i < tokens.numel(); ++i)
    tokens.data_ptr<int64_t>()[i] = RandomBelow(3, 0, i, job.model().vocabulary());
  const at::Tensor logits = RunModel(job.model(), weights, tokens);
  Save(directory + "/model.safetensors", weights);
  Save(directory + "/config.json", Gpt2ConfigJson(job.model()));
  Save(directory + "/expected.safetensors",
       WriteSafetensors({{"tokens", "I64", tokens.sizes().vec(), Bytes(tokens)},
                         {"logits", "F32", logits.sizes().vec(), Bytes(logits)}},
                        {})
           .value());
  return 0;
}

}  // namespace
}  // namespace isthmus::engine

int main(int argc, char** argv) {
  const bool untied = argc == 3 && std::strcmp(argv[2], "untied") == 0;
  if (argc != 2 && !untied) {
    std::fprintf(stderr, "usage: dump_logits DIR [untied]\n");
    return 2;
  }
  return isthmus::engine::Main(argv[1], !untied);
}
