// What a small GPT over words of a text comes to with codecs on what ranks reduce:
//   exchange_bench tied TEXT        the tied embedding's exchange, two stages (coordinator/TIED.md)
//   exchange_bench gradients TEXT   what four replicas exchange (coordinator/REPLICAS.md)
//   exchange_bench bytes            what an exchange of 50257 x 768 takes, without training
// --only N runs one setting alone, so that several may run beside each other; --codec runs one
// that is not in the list.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cstdio>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/number_flag.h"
#include "base/rng.h"
#include "compress/codec.h"
#include "proto/codec/codec_pair.h"
#include "proto/codec/codec_text.h"
#include "tests/rank/gpt_world.h"

namespace isthmus::worker {
namespace {

struct Setting {
  std::string optimizer = "adamw";
  std::string codec;
  int local_steps = 1;
  double outer_learning_rate = 1;
  double outer_momentum = 0.5;  // of a short run
};

const Setting kTied[] = {
    {"adamw", "none"},
    {"adamw", "bf16"},
    {"adamw", "quant(8, token, symmetric)"},
    {"adamw", "ef(quant(8, token, symmetric))"},
    {"adamw", "quant(4, token, symmetric)"},
    {"adamw", "ef(quant(4, token, symmetric))"},
    {"adamw", "ef(lowrank(8))"},
};

const Setting kGradients[] = {
    {"adamw", "none"},
    {"adamw", "quant(4, token, symmetric)"},
    {"adamw", "ef(quant(4, token, symmetric))"},
    {"adamw", "ef(cocktail(0.2, 0.2, 4))"},
    {"adamw", "ef(topk(0.02, values=quant(4, token, symmetric)))"},
    {"quantized_adam", "none"},
    {"quantized_adam", "ef(quant(4, token, symmetric))"},
    {"quantized_adam", "ef(quant(2, token, symmetric))"},
    {"quantized_adam", "ef(cocktail(0.2, 0.2, 4))"},
    {"quantized_adam", "ef(topk(0.02, values=quant(4, token, symmetric)))"},
    {"adamw", "none", 8},
    {"adamw", "ef(quant(4, token, symmetric))", 16},
    {"adamw", "ef(quant(4, token, symmetric))", 32},
};

struct Options {
  std::string text;
  std::string what = "tied";
  int steps = 400;
  int seeds = 3;
  int vocabulary = 4096;
  double learning_rate = 2e-3;
  int only = -1;
  Setting own;  // in place of the list, if it has a codec
};

// The words of a text, the rarer ones as one.
class WordCorpus : public Corpus {
 public:
  WordCorpus(const std::string& text, int64_t vocabulary, int64_t context, int64_t validation)
      : context_(context), validation_(validation) {
    std::vector<std::string> words;
    for (size_t at = 0; at < text.size();) {
      size_t end = at;
      while (end < text.size() && std::isalpha(static_cast<unsigned char>(text[end]))) ++end;
      if (end == at) ++end;
      words.push_back(text.substr(at, end - at));
      at = end;
    }
    std::map<std::string, int64_t> counts;
    for (const std::string& word : words) ++counts[word];
    std::vector<std::pair<int64_t, std::string>> order;
    for (const auto& [word, count] : counts) order.emplace_back(-count, word);
    std::sort(order.begin(), order.end());
    std::map<std::string, uint32_t> ids;
    for (size_t i = 0; i < order.size() && static_cast<int64_t>(i) + 1 < vocabulary; ++i)
      ids[order[i].second] = static_cast<uint32_t>(i + 1);
    for (const std::string& word : words) {
      const auto id = ids.find(word);
      tokens_.push_back(id == ids.end() ? 0 : id->second);
    }
  }
  int64_t train_samples() const override { return samples() - validation_; }
  int64_t validation_samples() const override { return validation_; }
  int64_t context() const override { return context_; }
  absl::Status Read(uint32_t id, uint32_t* tokens, uint32_t* targets) const override {
    const auto from = tokens_.begin() + static_cast<std::ptrdiff_t>(id * context_);
    if (tokens != nullptr) std::copy_n(from, context_, tokens);
    if (targets != nullptr) std::copy_n(from + 1, context_, targets);
    return absl::OkStatus();
  }
  uint64_t fingerprint() const override { return 1; }

 private:
  int64_t samples() const { return (static_cast<int64_t>(tokens_.size()) - 1) / context_; }
  std::vector<uint32_t> tokens_;
  const int64_t context_, validation_;
};

struct Ran {
  double loss = 0, validation = 0;  // of the last twentieth of the steps; at the end
  double whole = 0, half = 0;       // bytes a step of the run, and of its second half, in groups
};

Ran RunOne(const WorldShape& shape, const Corpus& corpus) {
  MemoryStore store;
  World world(MakePlan(shape), GptOptions(&store, &corpus));
  Ran ran;
  for (const absl::Status& status : world.Run()) {
    if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str()), std::exit(1);
  }
  ran.loss = MeanOfLast(world.Losses(), std::max(1, shape.steps / 20));
  for (int r = 0; r < world.plan().ranks_size(); ++r) {
    for (const StepRecord& record : world.observer(r).records()) {
      if (record.has_validation_loss()) ran.validation = record.validation_loss();
      for (const DirectionBytes& d : record.directions()) {
        if (d.link_id()[0] != 'g' && d.link_id() != "tied") continue;
        const auto bytes = static_cast<double>(d.wire_bytes());
        ran.whole += bytes / shape.steps;
        if (record.step() >= shape.steps / 2) ran.half += bytes / (shape.steps - shape.steps / 2);
      }
    }
  }
  return ran;
}

WorldShape ShapeOf(const Options& o, const Setting& setting) {
  WorldShape shape = SmallGpt();
  shape.hidden = 64;
  shape.context = 32;
  shape.vocabulary = o.vocabulary;
  shape.steps = o.steps;
  shape.global_batch = 16;
  shape.micro_batch = 4;
  shape.learning_rate = o.learning_rate;
  shape.eval_samples = 128;
  shape.optimizer = setting.optimizer;
  if (o.what == "tied") {
    shape.tied = setting.codec;
    return shape;
  }
  shape.stages = 1;
  shape.replicas = {4, 4, 4, 4};
  shape.gradients = setting.codec;
  shape.local_steps = setting.local_steps;
  shape.outer_learning_rate = setting.outer_learning_rate;
  shape.outer_momentum = setting.outer_momentum;
  return shape;
}

void Compare(const Options& o, const std::string& text) {
  const std::vector<Setting> settings =
      !o.own.codec.empty() ? std::vector<Setting>{o.own}
      : o.what == "tied"   ? std::vector<Setting>(std::begin(kTied), std::end(kTied))
                           : std::vector<Setting>(std::begin(kGradients), std::end(kGradients));
  std::printf(
      "| optimizer | local steps | codec | loss | validation | of each seed | bytes a step | of "
      "the "
      "second half |\n|---|---|---|---|---|---|---|---|\n");
  for (size_t i = 0; i < settings.size(); ++i) {
    if (o.only >= 0 && static_cast<int>(i) != o.only) continue;
    const WorldShape shape = ShapeOf(o, settings[i]);
    const WordCorpus corpus(text, o.vocabulary, shape.context, 128);
    Ran mean;
    std::string each;
    for (int seed = 1; seed <= o.seeds; ++seed) {
      WorldShape seeded = shape;
      seeded.seed = seed;
      const Ran ran = RunOne(seeded, corpus);
      mean.loss += ran.loss / o.seeds;
      mean.validation += ran.validation / o.seeds;
      mean.whole += ran.whole / o.seeds;
      mean.half += ran.half / o.seeds;
      char words[32];
      std::snprintf(words, sizeof words, "%s%.4f", seed > 1 ? ", " : "", ran.validation);
      each += words;
    }
    std::printf("| %s | %d | `%s` | %.4f | %.4f | %s | %.0f | %.0f |\n",
                settings[i].optimizer.c_str(), settings[i].local_steps, settings[i].codec.c_str(),
                mean.loss, mean.validation, each.c_str(), mean.whole, mean.half);
    std::fflush(stdout);
  }
}

// Encoded as it would be, each way.
void Bytes() {
  constexpr int64_t kRows = 50257, kWidth = 768;
  constexpr double kRate = 100e6;
  std::vector<float> gradient(kRows * kWidth);
  for (size_t i = 0; i < gradient.size(); ++i)
    gradient[i] = static_cast<float>(RandomUniform(1, 0, i) - 0.5);
  std::printf("| codec | MB each way | s at 100 Mbit/s |\n|---|---|---|\n");
  for (const char* text : {"none", "bf16", "quant(8, token, symmetric)",
                           "quant(4, token, symmetric)", "ef(lowrank(32))"}) {
    const CodecSpec codec = ParseCodec(text).value();
    const bool by_matrix = ByMatrix(codec);
    compress::CodecOptions options;
    options.positions = by_matrix ? kRows * kWidth : kRows;
    options.hidden = by_matrix ? 1 : kWidth;
    options.max_samples = 1;
    if (by_matrix) options.shapes = {{1, kRows, kWidth}};
    std::string payload;
    auto encoder = compress::MakeEncoder(codec, options).value();
    const absl::Status done = encoder->Encode(
        {gradient.data(), {}, {}, {1, options.positions, options.hidden}}, {}, &payload);
    if (!done.ok()) std::fprintf(stderr, "%s\n", done.ToString().c_str()), std::exit(1);
    const auto bytes = static_cast<double>(payload.size());
    std::printf("| `%s` | %.2f | %.2f |\n", text, bytes / 1e6, 8 * bytes / kRate);
    std::fflush(stdout);
  }
}

int Main(int argc, char** argv) {
  Options o;
  CLI::App app(
      "Trains a small GPT over words of a text with codecs on what ranks reduce, and prints the "
      "losses and the bytes of each.",
      "exchange_bench");
  app.add_option("WHAT", o.what, "tied, gradients or bytes")
      ->check(CLI::IsMember({"tied", "gradients", "bytes"}))
      ->required();
  app.add_option("TEXT", o.text, "a text, such as the Bible of deploy/fetch-data.sh");
  Whole(app.add_option("--steps", o.steps), 20, 1'000'000)->capture_default_str();
  Whole(app.add_option("--seeds", o.seeds, "runs of each codec"), 1, 1000)->capture_default_str();
  Whole(app.add_option("--vocabulary", o.vocabulary, "words"), 16, 65536)->capture_default_str();
  Real(app.add_option("--learning-rate", o.learning_rate), 1e-9, 1)->capture_default_str();
  Whole(app.add_option("--only", o.only, "number of one setting, from 0 on"), 0, 1000);
  app.add_option("--codec", o.own.codec, "one setting of this codec in place of the list");
  app.add_option("--optimizer", o.own.optimizer, "with --codec")
      ->check(CLI::IsMember({"adamw", "quantized_adam"}))
      ->capture_default_str();
  Whole(app.add_option("--local-steps", o.own.local_steps, "with --codec"), 1, 1000)
      ->capture_default_str();
  Real(app.add_option("--outer-learning-rate", o.own.outer_learning_rate, "with --codec"), 0, 10)
      ->capture_default_str();
  Real(app.add_option("--outer-momentum", o.own.outer_momentum, "with --codec"), 0, 0.999)
      ->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (o.what == "bytes") {
    Bytes();
    return 0;
  }
  if (o.text.empty()) {
    std::fprintf(stderr, "exchange_bench: %s needs TEXT, a file of 100 kB or more\n",
                 o.what.c_str());
    return 2;
  }
  std::ifstream in(o.text, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  if (!in || text.str().size() < 100'000) {
    std::fprintf(stderr, "exchange_bench: %s can't be read, or is under 100 kB\n", o.text.c_str());
    return 2;
  }
  Compare(o, text.str());
  return 0;
}

}  // namespace
}  // namespace isthmus::worker

int main(int argc, char** argv) { return isthmus::worker::Main(argc, argv); }
