// Single-pass training with predictive deltas on its boundaries: a byte-level GPT of 6 layers,
// width 128, context 128, batch 12, cut after layers 2 and 4, every sample new, AdamW at 1e-3.
//
//   predict_trial TEXT [--steps=400] [--seeds=1,2,3] [--device=cpu] [--errors]
//                 [FORWARD/BACKWARD ...]
//
// prints for each pair of codecs the mean loss of the last 100 steps of each seed. With --errors it
// sends fp32 and instead runs every frame through pairs of encoder and decoder beside the links; it
// prints how far the decoders' tensors are from what was sent, relative to its norm, over the last
// 50 steps: of both directions, at both boundaries.
#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "base/log.h"
#include "base/number_flag.h"
#include "compress/codec.h"
#include "proto/codec/codec_text.h"
#include "tests/rank/gpt_world.h"
#include "worker/link/memory_link.h"

namespace isthmus::worker {
namespace {

constexpr int kLastLosses = 100, kLastErrors = 50;

const char* const kSettings[] = {
    "none/none",
    "quant(2, token)/quant(4, token)",
    "predict(quant(2, token))/quant(4, token)",
    "predict(quant(2, token), context=3)/quant(4, token)",
    "predict(quant(2, token), context=3)/predict(quant(4, token), context=2, next)",
    "quant(3, token)/quant(6, token)",
    "predict(quant(3, token))/quant(6, token)",
    "predict(quant(3, token), context=3)/quant(6, token)",
    "predict(quant(3, token), context=3)/predict(quant(6, token), context=2, next)",
    "quant(4, token)/quant(8, token)",
    "predict(quant(4, token))/quant(8, token)",
    "predict(quant(4, token), context=3)/quant(8, token)",
};
const char* const kForwardProbes[] = {
    "quant(2)",
    "quant(3)",
    "quant(2, token)",
    "quant(3, token)",
    "quant(4, token)",
    "predict(quant(2, token))",
    "predict(quant(2, token), rate=0.1)",
    "predict(quant(2, token), context=2)",
    "predict(quant(2, token), context=3)",
    "predict(quant(2, token), context=4)",
    "predict(quant(2), context=3)",
    "predict(quant(3, token))",
    "predict(quant(3, token), context=3)",
    "predict(quant(4, token), context=3)",
};
const char* const kBackwardProbes[] = {
    "quant(4)",
    "quant(4, group=32)",
    "quant(4, token)",
    "quant(4, token, symmetric)",
    "quant(4, token, stochastic)",
    "quant(4, token, rms)",
    "predict(quant(4, token))",
    "predict(quant(4, token), next)",
    "predict(quant(4, token), context=2, next)",
    "predict(quant(4, token), context=3, next)",
    "lowrank(32, values=quant(8, token))",
    "quant(2, token)",
    "predict(quant(2, token), context=2, next)",
    "quant(6, token)",
    "predict(quant(6, token), context=2, next)",
};

[[noreturn]] void Die(const std::string& what) {
  std::fprintf(stderr, "predict_trial: %s\n", what.c_str());
  std::exit(2);
}

template <typename T>
T OrDie(absl::StatusOr<T> value, const std::string& what) {
  if (!value.ok()) Die(what + ": " + std::string(value.status().message()));
  return *std::move(value);
}

// One codec on one direction of one boundary, beside the real one.
class Probe {
 public:
  Probe(const std::string& codec, const WorldShape& shape) : first_(shape.steps - kLastErrors) {
    compress::CodecOptions options;
    options.seed = shape.seed;
    options.positions = shape.context;
    options.hidden = shape.hidden;
    options.max_samples = shape.micro_batch;
    const CodecSpec spec = OrDie(ParseCodec(codec), codec);
    encoder_ = OrDie(compress::MakeEncoder(spec, options), codec);
    decoder_ = OrDie(compress::MakeDecoder(spec, options), codec);
  }

  void See(const compress::TensorView& x, const compress::FrameContext& context) {
    std::string payload;
    if (absl::Status s = encoder_->Encode(x, context, &payload); !s.ok())
      Die(std::string(s.message()));
    std::vector<float> y(static_cast<size_t>(x.dims.elements()));
    const absl::Status s =
        decoder_->Decode(payload, encoder_->version(), context,
                         {y.data(), compress::DType::kF32, compress::Device::kCpu, x.dims});
    if (!s.ok()) Die(std::string(s.message()));
    if (context.step < first_) return;
    const float* sent = static_cast<const float*>(x.data);
    for (size_t i = 0; i < y.size(); ++i) {
      error_ += (double{sent[i]} - y[i]) * (double{sent[i]} - y[i]);
      norm_ += double{sent[i]} * sent[i];
    }
  }

  double relative_error() const { return std::sqrt(error_ / norm_); }

 private:
  const int64_t first_;
  std::unique_ptr<compress::Encoder> encoder_;
  std::unique_ptr<compress::Decoder> decoder_;
  double error_ = 0, norm_ = 0;
};

// The probes of one direction of one boundary. Thread: the one that receives there.
struct Probes {
  std::vector<std::unique_ptr<Probe>> probes;

  Probes(absl::Span<const char* const> codecs, const WorldShape& shape) {
    for (const char* codec : codecs) probes.push_back(std::make_unique<Probe>(codec, shape));
  }

  void See(const Frame& frame, const std::vector<uint32_t>& tokens) {
    const FrameHeader& h = frame.header;
    const compress::TensorView x{frame.payload.data(),
                                 compress::DType::kF32,
                                 compress::Device::kCpu,
                                 {h.shape(0), h.shape(1), h.shape(2)}};
    compress::FrameContext context;
    context.sample_ids = {h.sample_ids().data(), static_cast<size_t>(h.sample_ids_size())};
    context.step = h.step();
    context.micro = h.micro();
    context.token_ids = tokens;
    for (const auto& probe : probes) probe->See(x, context);
  }
};

class TapLink : public Link {
 public:
  TapLink(std::unique_ptr<Link> link, const Corpus& corpus, Probes* probes)
      : link_(std::move(link)), corpus_(corpus), probes_(probes) {}
  absl::Status Send(Frame frame, absl::Duration timeout) override {
    return link_->Send(std::move(frame), timeout);
  }
  absl::StatusOr<Frame> Receive(int64_t max_payload_bytes, absl::Duration timeout) override {
    absl::StatusOr<Frame> frame = link_->Receive(max_payload_bytes, timeout);
    if (frame.ok() && (frame->header.kind() == FrameHeader::ACTIVATION ||
                       frame->header.kind() == FrameHeader::GRADIENT)) {
      std::vector<uint32_t> tokens;
      std::vector<uint32_t> row(static_cast<size_t>(corpus_.context()));
      for (uint32_t id : frame->header.sample_ids()) {
        if (absl::Status read = corpus_.Read(id, row.data(), nullptr); !read.ok()) return read;
        tokens.insert(tokens.end(), row.begin(), row.end());
      }
      probes_->See(*frame, tokens);
    }
    return frame;
  }
  void Cancel(absl::Status why) override { link_->Cancel(std::move(why)); }
  absl::Status Finish(absl::Duration timeout) override { return link_->Finish(timeout); }
  bool peer_exchanges_codec_state() const override { return link_->peer_exchanges_codec_state(); }
  int64_t wire_bytes_sent() const override { return link_->wire_bytes_sent(); }

 private:
  const std::unique_ptr<Link> link_;
  const Corpus& corpus_;
  Probes* const probes_;
};

class TapOpener : public LinkOpener {
 public:
  TapOpener(const WorldShape& shape, const Corpus& corpus) : corpus_(corpus) {
    for (int b = 0; b + 1 < shape.stages; ++b) {
      forward.emplace_back(kForwardProbes, shape);
      backward.emplace_back(kBackwardProbes, shape);
    }
  }
  absl::StatusOr<std::unique_ptr<Link>> Open(const Plan& plan, const LinkPlan& link, int my_stage,
                                             absl::Duration timeout) override {
    absl::StatusOr<std::unique_ptr<Link>> made = hub_.Open(plan, link, my_stage, timeout);
    if (!made.ok() || link.kind() == LinkPlan::GROUP) return made;
    std::vector<Probes>& side = link.upper() == my_stage ? forward : backward;
    return std::make_unique<TapLink>(*std::move(made), corpus_,
                                     &side[static_cast<size_t>(link.lower())]);
  }
  std::vector<Probes> forward, backward;

 private:
  MemoryLinkHub hub_;
  const Corpus& corpus_;
};

WorldShape TrialShape(int steps) {
  WorldShape shape = SmallGpt();
  shape.stages = 3;
  shape.layers = 6;
  shape.hidden = 128;
  shape.heads = 4;
  shape.context = 128;
  shape.global_batch = shape.micro_batch = 12;
  shape.learning_rate = 1e-3;
  shape.constant_rate = true;
  shape.eval_samples = 0;
  shape.steps = steps;
  return shape;
}

void PrintErrors(const char* direction, absl::Span<const char* const> codecs,
                 const std::vector<std::vector<Probes>>& seeds) {
  std::printf("%-46s %s\n", direction, "after layer 2  after layer 4");
  for (size_t c = 0; c < codecs.size(); ++c) {
    std::printf("%-46s", codecs[c]);
    for (size_t b = 0; b < seeds[0].size(); ++b) {
      double mean = 0;
      for (const auto& s : seeds) mean += s[b].probes[c]->relative_error() / seeds.size();
      std::printf(" %14.4f", mean);
    }
    std::printf("\n");
  }
}

struct Options {
  int steps = 400;
  bool errors = false;
  std::vector<int> seeds = {1, 2, 3};
  std::string device = "cpu";
  std::string path;
  std::vector<std::string> settings;
};

void Errors(WorldShape shape, const Corpus& corpus, const Options& o) {
  std::vector<std::vector<Probes>> forward, backward;
  for (int seed : o.seeds) {
    shape.seed = static_cast<uint64_t>(seed);
    TapOpener links(shape, corpus);
    std::printf("seed %d: loss %.4f\n", seed,
                MeanOfLast(RunGpt(shape, corpus, &links, o.device).losses, kLastLosses));
    std::fflush(stdout);
    forward.push_back(std::move(links.forward));
    backward.push_back(std::move(links.backward));
  }
  PrintErrors("relative error of activations", kForwardProbes, forward);
  PrintErrors("relative error of gradients", kBackwardProbes, backward);
}

void Losses(WorldShape shape, const Corpus& corpus, const Options& o) {
  std::printf("%-62s %8s %8s  %s\n", "forward/backward", "loss", "MB/step", "of each seed");
  for (const std::string& setting : o.settings) {
    const std::vector<std::string> codecs = absl::StrSplit(setting, '/');
    if (codecs.size() != 2) Die("'" + setting + "' is not FORWARD/BACKWARD");
    shape.forward = FormatCodec(OrDie(ParseCodec(codecs[0]), setting));
    shape.backward = FormatCodec(OrDie(ParseCodec(codecs[1]), setting));
    double loss = 0;
    int64_t bytes = 0;
    std::string each;
    for (int seed : o.seeds) {
      shape.seed = static_cast<uint64_t>(seed);
      const GptRun run = RunGpt(shape, corpus, nullptr, o.device);
      const double last = MeanOfLast(run.losses, kLastLosses);
      loss += last / static_cast<double>(o.seeds.size());
      bytes += run.wire_bytes / static_cast<int64_t>(o.seeds.size());
      char text[32];
      std::snprintf(text, sizeof text, " %.4f", last);
      each += text;
    }
    std::printf("%-62s %8.4f %8.3f %s\n", setting.c_str(), loss,
                static_cast<double>(bytes) / 1e6 / shape.steps, each.c_str());
    std::fflush(stdout);
  }
}

void AddFlags(CLI::App* app, Options* o) {
  app->add_option("TEXT", o->path, "the text to train on")->required()->check(CLI::ExistingFile);
  app->add_option("FORWARD/BACKWARD", o->settings, "pairs of codecs [a table of twelve]");
  Whole(app->add_option("--steps", o->steps, "steps of each run"), 1, 1'000'000)
      ->capture_default_str();
  Whole(app->add_option("--seeds", o->seeds, "a run of each, such as 1,2,3")->delimiter(','), 0,
        INT32_MAX);
  app->add_option("--device", o->device, "cpu, cuda or cuda:N")->capture_default_str();
  app->add_flag("--errors", o->errors,
                "how far decoders are from what was sent, instead of losses");
}

int Main(int argc, char** argv) {
  Options o;
  CLI::App app(
      "Single-pass training of a byte-level GPT with predictive deltas on its boundaries; prints "
      "the mean loss of the last 100 steps of each seed.",
      "predict_trial");
  AddFlags(&app, &o);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (o.settings.empty()) o.settings.assign(std::begin(kSettings), std::end(kSettings));
  std::ifstream file(o.path, std::ios::binary);
  if (!file) Die("'" + o.path + "' can't be read");
  std::stringstream text;
  text << file.rdbuf();
  const WorldShape shape = TrialShape(o.steps);
  const TextCorpus corpus(text.str(), shape.context, 0);
  if (corpus.train_samples() < int64_t{o.steps} * shape.global_batch)
    Die(o.path + " is too short for that many steps of new samples");
  o.errors ? Errors(shape, corpus, o) : Losses(shape, corpus, o);
  return 0;
}

}  // namespace
}  // namespace isthmus::worker

int main(int argc, char** argv) { return isthmus::worker::Main(argc, argv); }
