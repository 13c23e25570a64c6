#include "worker/generate/command.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/command_line.h"
#include "base/machine_check.h"
#include "base/number_flag.h"
#include "base/status.h"
#include "proto/model/sampling_limits.h"
#include "worker/generate/sampler.h"
#include "worker/generate/tokenizer.h"

namespace isthmus::generate {
namespace {

constexpr char kFooter[] = R"(
Continues PROMPT with the GPT-2 in DIR, as `isthmus export` writes it, on the CPU. The same seed
gives the same text. `isthmus generate JOB PROMPT` exports a job's newest checkpoint first.

Example:
  isthmus-generate ./model "In the beginning" --tokens 100

Exit codes: 0 done; 1 failed at run time; 2 wrong usage, or a directory that holds no such model;
3 this machine lacks something (memory).)";

struct Flags {
  std::string dir;
  std::string prompt;
  GenerateOptions generate;
  int threads = 0;
  bool json = false;
};

void AddFlags(CLI::App* app, Flags* f) {
  SamplerOptions& s = f->generate.sampling;
  app->add_option("DIR", f->dir, "the model: config.json, model.safetensors, tokenizer files")
      ->required();
  app->add_option("PROMPT", f->prompt, "the beginning of the text; '' for none");
  Whole(app->add_option("--tokens", f->generate.tokens, "at most so many new ones"), 1,
        kMaxNewTokens)
      ->capture_default_str();
  Real(app->add_option("--temperature", s.temperature, "less keeps closer to the likeliest"),
       kMinTemperature, kMaxTemperature)
      ->capture_default_str();
  Whole(app->add_option("--top-k", s.top_k, "choose among so many likeliest tokens; 0: among all"),
        0, kMaxTopK)
      ->capture_default_str();
  Whole(app->add_option("--seed", s.seed, "of the choice"), 0)->capture_default_str();
  app->add_flag("--greedy", s.greedy, "always the likeliest token");
  Whole(app->add_option("--threads", f->threads,
                        "of the computation, at most this machine's processors; 0: all of them"),
        0, Processors())
      ->capture_default_str();
  app->add_flag("--json", f->json, "prompt, text and token ids as one JSON object");
  app->set_version_flag("--version", std::string("isthmus-generate ") + ISTHMUS_VERSION);
  app->footer(kFooter);
}

// What a text without a prompt begins with: the end of the one before it, or an empty line.
absl::StatusOr<std::vector<int32_t>> Prompt(const Flags& flags, const ModelConfig& config,
                                            const Tokenizer& tokenizer) {
  if (flags.prompt.empty() && config.end.has_value()) return std::vector<int32_t>{*config.end};
  return tokenizer.Encode(flags.prompt.empty() ? "\n" : flags.prompt);
}

absl::Status Run(const Flags& flags, const DecoderFactory& make_decoder, FILE* out) {
  ASSIGN_OR_RETURN(const ModelDir dir, ReadModelDir(flags.dir));
  ASSIGN_OR_RETURN(const Tokenizer tokenizer,
                   Tokenizer::Read(flags.dir, dir.config.model.vocabulary()));
  ASSIGN_OR_RETURN(std::vector<int32_t> prompt, Prompt(flags, dir.config, tokenizer));
  ASSIGN_OR_RETURN(const std::unique_ptr<Decoder> decoder, make_decoder(dir, flags.threads));
  GenerateOptions options = flags.generate;
  options.end = dir.config.end;
  std::vector<int32_t> ids;
  std::string text;
  const auto write = [&](const std::string& bytes) {
    return std::fwrite(bytes.data(), 1, bytes.size(), out) == bytes.size() && std::fflush(out) == 0;
  };
  if (!flags.json) write(flags.prompt);
  bool written = true;
  const absl::Status status = Generate(decoder.get(), std::move(prompt), options, [&](int32_t id) {
    ids.push_back(id);
    const std::string bytes = tokenizer.Decode(id);
    text += bytes;
    written = flags.json || write(bytes);
    return written;
  });
  if (status.ok() && flags.json) {
    nlohmann::ordered_json object;
    object["prompt"] = flags.prompt;
    object["text"] = text;
    object["tokens"] = ids;
    object["seed"] = options.sampling.seed;
    written = write(object.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
  } else if (written) {
    written = write("\n");
  }
  if (status.ok() && !written) return absl::DataLossError("can't write the text");
  return status;
}

}  // namespace

int RunCommand(int argc, const char* const* argv, const DecoderFactory& make_decoder, FILE* out,
               FILE* err) {
  Flags flags;
  CLI::App app("isthmus-generate: continues a text with a model that Isthmus trained.",
               "isthmus-generate");
  AddFlags(&app, &flags);
  if (const auto ended = ParseCommandLine(argc, argv, "isthmus-generate", &app, out, err))
    return *ended;
  const absl::Status status = Run(flags, make_decoder, out);
  if (status.ok()) return kOk;
  std::fprintf(err, "isthmus-generate: %s\n", std::string(status.message()).c_str());
  return CommandExitFor(status);
}

}  // namespace isthmus::generate
