#include "compress/state/codec_state.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/rng.h"
#include "base/status.h"
#include "proto/codec/codec_text.h"

namespace isthmus::compress {
namespace {

constexpr char kMagic[8] = {'I', 'S', 'T', 'H', 'C', 'S', 'T', '1'};

// What a state makes sense with. Not the caps: the planner fits them to what a host has free, they
// are the same at both ends, and a state that is too large for them is refused where it is read.
uint64_t OptionsHash(const CodecOptions& o) {
  std::vector<uint64_t> fields = {
      o.seed, static_cast<uint64_t>(o.positions), static_cast<uint64_t>(o.hidden),
      static_cast<uint64_t>(o.predictor_bytes), static_cast<uint64_t>(o.distinct_samples)};
  for (const TensorDims& d : o.shapes)
    fields.insert(fields.end(),
                  {static_cast<uint64_t>(d.positions), static_cast<uint64_t>(d.hidden)});
  return Hash64(fields.data(), fields.size() * sizeof fields[0]);
}

template <typename Codec>
constexpr uint8_t SideOf() {
  return std::is_same<Codec, Encoder>::value ? 'E' : 'D';
}

void WriteHeader(uint8_t side, const CodecSpec& spec, const CodecOptions& options,
                 const StateStamp& stamp, StateWriter* to) {
  to->Bytes(kMagic, sizeof kMagic);
  to->Put(side);
  to->Put(Hash64(FormatCodec(spec)));
  to->Put(OptionsHash(options));
  to->Put(stamp.place);
  to->Put(stamp.step);
  to->Put(stamp.generation);
}

absl::Status ReadHeader(uint8_t side, const CodecSpec& spec, const CodecOptions& options,
                        StateReader* from, StateStamp* stamp) {
  char magic[sizeof kMagic];
  from->Bytes(magic, sizeof magic, "header");
  const uint8_t found_side = from->Get<uint8_t>("header");
  const uint64_t codec = from->Get<uint64_t>("header"), set = from->Get<uint64_t>("header");
  StateStamp found;
  found.place = from->Get<uint64_t>("header");
  found.step = from->Get<int64_t>("header");
  found.generation = from->Get<uint64_t>("header");
  RETURN_IF_ERROR(from->status());
  if (std::memcmp(magic, kMagic, sizeof magic) != 0)
    return absl::InvalidArgumentError("not a codec's state, or of another version of the format");
  if (found_side != side)
    return absl::FailedPreconditionError("the state is of the other end of the link");
  if (codec != Hash64(FormatCodec(spec)))
    return absl::FailedPreconditionError(
        absl::StrCat("the state is of another codec than ", FormatCodec(spec)));
  if (set != OptionsHash(options))
    return absl::FailedPreconditionError(
        "the state is of other sizes (boundary, means, number of samples) or of another seed");
  if (found.place != stamp->place)
    return absl::FailedPreconditionError("the state is of another boundary of the model");
  if (found.step != stamp->step)
    return absl::FailedPreconditionError(
        absl::StrCat("the state is of step ", found.step, ", not of ", stamp->step));
  *stamp = found;
  return absl::OkStatus();
}

template <typename Codec>
absl::Status Save(Codec* codec, const CodecSpec& spec, const CodecOptions& options,
                  const StateStamp& stamp, StateSink* sink) {
  StateWriter writer(sink);
  WriteHeader(SideOf<Codec>(), spec, options, stamp, &writer);
  RETURN_IF_ERROR(codec->SaveState(&writer));
  return writer.Finish();
}

absl::StatusOr<std::unique_ptr<Encoder>> Make(const CodecSpec& spec, const CodecOptions& options,
                                              Encoder*) {
  return MakeEncoder(spec, options);
}
absl::StatusOr<std::unique_ptr<Decoder>> Make(const CodecSpec& spec, const CodecOptions& options,
                                              Decoder*) {
  return MakeDecoder(spec, options);
}

template <typename Codec>
absl::StatusOr<LoadedCodec<Codec>> Load(const CodecSpec& spec, const CodecOptions& options,
                                        uint64_t place, int64_t step, StateSource* source) {
  LoadedCodec<Codec> loaded;
  loaded.stamp.place = place;
  loaded.stamp.step = step;
  StateReader reader(source);
  RETURN_IF_ERROR(ReadHeader(SideOf<Codec>(), spec, options, &reader, &loaded.stamp));
  ASSIGN_OR_RETURN(loaded.codec, Make(spec, options, static_cast<Codec*>(nullptr)));
  RETURN_IF_ERROR(loaded.codec->LoadState(&reader));
  RETURN_IF_ERROR(reader.Finish());
  return loaded;
}

template <typename Codec>
absl::StatusOr<uint64_t> Agreement(const LoadedCodec<Codec>& loaded) {
  ASSIGN_OR_RETURN(const uint64_t state, loaded.codec->StateHash());
  const uint64_t fields[] = {loaded.stamp.place, static_cast<uint64_t>(loaded.stamp.step),
                             loaded.stamp.generation, loaded.codec->version(), state};
  return std::max<uint64_t>(Hash64(fields, sizeof fields), 1);
}

}  // namespace

bool KeepsState(const CodecSpec& spec) {
  if (spec.zstd()) return true;  // when it tries
  switch (spec.kind()) {
    case CodecSpec::NONE:
    case CodecSpec::BF16:
    case CodecSpec::FP16:
    case CodecSpec::SIGN:
      return false;
    case CodecSpec::QUANT:
      return spec.stochastic();  // its draws are numbered
    case CodecSpec::TOP_K:
    case CodecSpec::AUTOENCODER:
    case CodecSpec::KEPT:
      return KeepsState(ValuesOf(spec));
    default:
      return true;
  }
}

absl::Status SaveState(Encoder* encoder, const CodecSpec& spec, const CodecOptions& options,
                       const StateStamp& stamp, StateSink* sink) {
  return Save(encoder, spec, options, stamp, sink);
}

absl::Status SaveState(Decoder* decoder, const CodecSpec& spec, const CodecOptions& options,
                       const StateStamp& stamp, StateSink* sink) {
  return Save(decoder, spec, options, stamp, sink);
}

absl::StatusOr<LoadedCodec<Encoder>> LoadEncoder(const CodecSpec& spec, const CodecOptions& options,
                                                 uint64_t place, int64_t step,
                                                 StateSource* source) {
  return Load<Encoder>(spec, options, place, step, source);
}

absl::StatusOr<LoadedCodec<Decoder>> LoadDecoder(const CodecSpec& spec, const CodecOptions& options,
                                                 uint64_t place, int64_t step,
                                                 StateSource* source) {
  return Load<Decoder>(spec, options, place, step, source);
}

absl::StatusOr<uint64_t> AgreementHash(const LoadedCodec<Encoder>& loaded) {
  return Agreement(loaded);
}
absl::StatusOr<uint64_t> AgreementHash(const LoadedCodec<Decoder>& loaded) {
  return Agreement(loaded);
}

}  // namespace isthmus::compress
