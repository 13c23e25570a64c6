// Saved states of codecs. Input: one byte that picks the codec, one byte for the boundary's shape,
// then what stands between the header of a state and its trailer. Both ends load it, with a right
// trailer; any result is right but a crash, a read or write out of bounds, or an endless loop, also
// in the frame that a loaded codec takes next.
#include "compress/state/codec_state.h"
#include "tests/compress/string_state.h"
#include "tests/fuzz/decoder_fuzz.h"

namespace isthmus::compress {
namespace {

constexpr const char* kTexts[] = {
    "delta(quant(3))",
    "delta(lowrank(2), cold=predict(quant(4), context=2))",
    "predict(quant(3, token), context=3)",
    "ef(lowrank(1))",
    "lep(topk(0.2))",
    "lowrank(2, values=quant(8)) | zstd",
    "randomk(0.5, values=topk(0.3, global))",
    "delta(quant(3), buffer=4)",
};
constexpr size_t kCount = sizeof(kTexts) / sizeof(kTexts[0]);
constexpr size_t kHeaderBytes = 49, kTrailerBytes = 16;

// The header of `codec`, the bytes given, and the trailer that makes them whole.
template <typename Codec>
std::string Whole(Codec* codec, const FuzzCase& c, absl::string_view body) {
  const std::string fresh = Saved(codec, c.spec, c.options);
  if (fresh.size() < kHeaderBytes + kTrailerBytes) abort();
  StringSink sink;
  StateWriter writer(&sink);
  writer.Bytes(fresh.data(), kHeaderBytes);
  writer.Bytes(body.data(), body.size());
  if (!writer.Finish().ok()) abort();
  return sink.text;
}

void Fuzz(const uint8_t* data, size_t size) {
  if (size < 2) return;
  FuzzCase c(*ParseCodec(kTexts[data[0] % kCount]), data[1]);
  const absl::string_view body(reinterpret_cast<const char*>(data) + 2, size - 2);
  std::unique_ptr<Encoder> encoder = *MakeEncoder(c.spec, c.options);
  std::unique_ptr<Decoder> decoder = *MakeDecoder(c.spec, c.options);
  StringSource of_encoder(Whole(encoder.get(), c, body)), of_decoder(Whole(decoder.get(), c, body));
  auto e = LoadEncoder(c.spec, c.options, Stamp().place, Stamp().step, &of_encoder);
  auto d = LoadDecoder(c.spec, c.options, Stamp().place, Stamp().step, &of_decoder);
  std::string payload;
  if (e.ok()) encoder = std::move(e->codec);
  if (!encoder->Encode(c.in(), c.context, &payload).ok()) abort();
  if (d.ok()) decoder = std::move(d->codec);
  decoder->Decode(payload, decoder->version() + 1, c.context, c.out()).IgnoreError();
}

}  // namespace
}  // namespace isthmus::compress

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  isthmus::compress::Fuzz(data, size);
  return 0;
}

// The state of each codec after two frames.
extern "C" void WriteSeeds(const char* directory) {
  using namespace isthmus::compress;  // NOLINT
  for (size_t t = 0; t < kCount; ++t) {
    const uint8_t shape = 0xa6;  // 2 samples of 2 x 11
    FuzzCase c(*isthmus::ParseCodec(kTexts[t]), shape);
    std::unique_ptr<Encoder> encoder = *MakeEncoder(c.spec, c.options);
    std::string payload;
    for (int frame = 0; frame < 2; ++frame) {
      if (!encoder->Encode(c.in(), c.context, &payload).ok()) abort();
    }
    const std::string state = Saved(encoder.get(), c.spec, c.options);
    std::ofstream file(std::string(directory) + "/" + std::to_string(t), std::ios::binary);
    file << static_cast<char>(t) << static_cast<char>(shape)
         << state.substr(kHeaderBytes, state.size() - kHeaderBytes - kTrailerBytes);
  }
}
