#include "worker/multilevel/operators.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"

namespace isthmus::multilevel {
namespace {

// What a direction of a tensor stands for.
enum class Kind { kOne, kVocabulary, kContext, kResidual, kHeads, kQkv, kMlp };

constexpr int64_t kMlpFactor = 4;

bool FollowsWidth(Kind kind) { return kind >= Kind::kResidual; }

int64_t SizeOf(Kind kind, const Shape& s) {
  switch (kind) {
    case Kind::kOne:
      return 1;
    case Kind::kVocabulary:
      return s.vocabulary;
    case Kind::kContext:
      return s.context;
    case Kind::kResidual:
    case Kind::kHeads:
      return s.hidden;
    case Kind::kQkv:
      return 3 * s.hidden;
    case Kind::kMlp:
      return kMlpFactor * s.hidden;
  }
  return 0;
}

struct TensorKind {
  const char* name;
  Kind rows, columns;
};

constexpr TensorKind kOutside[] = {{"transformer.ln_f.bias", Kind::kOne, Kind::kResidual},
                                   {"transformer.ln_f.weight", Kind::kOne, Kind::kResidual},
                                   {"transformer.wpe.weight", Kind::kContext, Kind::kResidual},
                                   {"transformer.wte.weight", Kind::kVocabulary, Kind::kResidual}};
constexpr size_t kNorms = 2;  // the first of them

constexpr TensorKind kInLayer[] = {{"ln_1.weight", Kind::kOne, Kind::kResidual},
                                   {"ln_1.bias", Kind::kOne, Kind::kResidual},
                                   {"attn.c_attn.weight", Kind::kResidual, Kind::kQkv},
                                   {"attn.c_attn.bias", Kind::kOne, Kind::kQkv},
                                   {"attn.c_proj.weight", Kind::kHeads, Kind::kResidual},
                                   {"attn.c_proj.bias", Kind::kOne, Kind::kResidual},
                                   {"ln_2.weight", Kind::kOne, Kind::kResidual},
                                   {"ln_2.bias", Kind::kOne, Kind::kResidual},
                                   {"mlp.c_fc.weight", Kind::kResidual, Kind::kMlp},
                                   {"mlp.c_fc.bias", Kind::kOne, Kind::kMlp},
                                   {"mlp.c_proj.weight", Kind::kMlp, Kind::kResidual},
                                   {"mlp.c_proj.bias", Kind::kOne, Kind::kResidual}};

std::string LayerName(int64_t layer, const char* name) {
  return absl::StrCat("transformer.h.", layer, ".", name);
}

// From one shape to another, up or down.
class Mixer {
 public:
  Mixer(const Shape& source, const Shape& result, const Mapping& mapping)
      : source_(source), result_(result), mapping_(mapping), up_(result.hidden > source.hidden) {}

  std::vector<Mix> All() const {
    std::vector<Mix> out;
    const double width = static_cast<double>(mapping_.width_factor);
    const double whole = up_ ? 1 : 1 / width;  // outputs: copied up, averaged down
    const double shared = up_ ? 1 / width : 1;
    for (size_t i = 0; i < std::size(kOutside); ++i) {
      const bool divided = (i < kNorms) == (mapping_.tied == Tied::kFinalNorm);
      out.push_back(One(kOutside[i], kOutside[i].name, {kOutside[i].name}));
      out.back().scale = divided ? shared : whole;
    }
    const Axis layers{result_.layers, source_.layers, 1, 1, mapping_.depth};
    for (int64_t layer = 0; layer < result_.layers; ++layer) {
      std::vector<int64_t> from;
      layers.SourcesOf(layer, &from);
      for (const TensorKind& kind : kInLayer) {
        std::vector<std::string> sources;
        for (const int64_t s : from) sources.push_back(LayerName(s, kind.name));
        out.push_back(One(kind, LayerName(layer, kind.name), std::move(sources)));
        const bool inputs = FollowsWidth(kind.rows);
        out.back().scale = up_ ? (inputs ? shared : 1) : whole;
        out.back().scale /= static_cast<double>(from.size());
      }
    }
    std::sort(out.begin(), out.end(), [](const Mix& a, const Mix& b) { return a.name < b.name; });
    return out;
  }

 private:
  Axis AxisOf(Kind kind) const {
    Axis axis{SizeOf(kind, result_), SizeOf(kind, source_)};
    if (!FollowsWidth(kind)) return axis;
    axis.groups = mapping_.width;
    axis.parts = kind == Kind::kQkv ? 3 : 1;
    axis.block = axis.result / axis.parts / result_.heads;
    return axis;
  }
  Mix One(const TensorKind& kind, std::string name, std::vector<std::string> sources) const {
    Mix mix;
    mix.name = std::move(name);
    mix.sources = std::move(sources);
    mix.rows = AxisOf(kind.rows);
    mix.columns = AxisOf(kind.columns);
    if (kind.rows != Kind::kOne) mix.shape.push_back(mix.rows.result);
    mix.shape.push_back(mix.columns.result);
    return mix;
  }

  const Shape source_, result_;
  const Mapping mapping_;
  const bool up_;
};

absl::Status CheckFactors(const Mapping& m) {
  if (m.width_factor >= 1 && m.depth_factor >= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("factors are 1 and more, not ", m.width_factor,
                                                 " (width) and ", m.depth_factor, " (depth)"));
}

}  // namespace

bool Shape::operator==(const Shape& o) const {
  return std::tie(layers, hidden, heads, vocabulary, context) ==
         std::tie(o.layers, o.hidden, o.heads, o.vocabulary, o.context);
}

int64_t Parameters(const Shape& shape) {
  int64_t sum = 0;
  for (const TensorKind& kind : kOutside)
    sum += SizeOf(kind.rows, shape) * SizeOf(kind.columns, shape);
  for (const TensorKind& kind : kInLayer)
    sum += shape.layers * SizeOf(kind.rows, shape) * SizeOf(kind.columns, shape);
  return sum;
}

absl::StatusOr<Shape> Coalesced(const Shape& large, const Mapping& mapping) {
  RETURN_IF_ERROR(CheckFactors(mapping));
  if (large.heads % mapping.width_factor != 0)
    return absl::InvalidArgumentError(absl::StrCat(
        "the width factor ", mapping.width_factor, " does not divide the ", large.heads,
        " heads (width ", large.hidden, "); heads stay whole, of ", large.hidden / large.heads));
  if (large.layers % mapping.depth_factor != 0)
    return absl::InvalidArgumentError(absl::StrCat("the depth factor ", mapping.depth_factor,
                                                   " does not divide the ", large.layers,
                                                   " layers"));
  Shape small = large;
  small.layers /= mapping.depth_factor;
  small.heads /= mapping.width_factor;
  small.hidden /= mapping.width_factor;
  return small;
}

absl::StatusOr<Shape> Decoalesced(const Shape& small, const Mapping& mapping) {
  RETURN_IF_ERROR(CheckFactors(mapping));
  if (mapping.width_factor > std::min(kMaxHidden / small.hidden, kMaxHeads / small.heads))
    return absl::InvalidArgumentError(
        absl::StrCat("the width factor ", mapping.width_factor, " makes more of ", small.hidden,
                     " channels and ", small.heads, " heads than the most there may be, ",
                     kMaxHidden, " and ", kMaxHeads));
  if (mapping.depth_factor > kMaxLayers / small.layers)
    return absl::InvalidArgumentError(
        absl::StrCat("the depth factor ", mapping.depth_factor, " makes more of ", small.layers,
                     " layers than the most there may be, ", kMaxLayers));
  Shape large = small;
  large.layers *= mapping.depth_factor;
  large.heads *= mapping.width_factor;
  large.hidden *= mapping.width_factor;
  return large;
}

void Axis::SourcesOf(int64_t i, std::vector<int64_t>* out) const {
  const int64_t part = i / (result / parts), within = i % (result / parts);
  const int64_t unit = within / block, offset = within % block;
  const int64_t base = part * (source / parts) + offset;
  if (source <= result) {
    const int64_t units = source / parts / block, factor = result / source;
    out->push_back(base + (groups == Groups::kStrided ? unit % units : unit / factor) * block);
    return;
  }
  const int64_t units = result / parts / block, factor = source / result;
  for (int64_t m = 0; m < factor; ++m)
    out->push_back(base +
                   (groups == Groups::kStrided ? unit + m * units : unit * factor + m) * block);
}

std::vector<Mix> CoalesceMixes(const Shape& large, const Mapping& mapping) {
  const absl::StatusOr<Shape> small = Coalesced(large, mapping);
  ISTHMUS_CHECK(small.ok());
  return Mixer(large, *small, mapping).All();
}

std::vector<Mix> DecoalesceMixes(const Shape& small, const Mapping& mapping) {
  const absl::StatusOr<Shape> large = Decoalesced(small, mapping);
  ISTHMUS_CHECK(large.ok());
  return Mixer(small, *large, mapping).All();
}

std::vector<Mix> SameMixes(const Shape& shape) { return CoalesceMixes(shape, {1, 1}); }

absl::Status CheckFinite(const std::string& tensor, int64_t row, absl::Span<const float> values) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isfinite(values[i])) continue;
    const int64_t element = row * static_cast<int64_t>(values.size()) + static_cast<int64_t>(i);
    return absl::InvalidArgumentError(
        absl::StrCat(tensor, ": element ", element, " is ", values[i], ": no model to go on from"));
  }
  return absl::OkStatus();
}

absl::Status ApplyMix(const Mix& mix, const ReadRow& read, const TakeRow& take) {
  std::vector<int64_t> columns, ends;  // the sources of each column, one after the other
  for (int64_t c = 0; c < mix.columns.result; ++c) {
    mix.columns.SourcesOf(c, &columns);
    ends.push_back(static_cast<int64_t>(columns.size()));
  }
  std::vector<float> row(mix.columns.source), out(mix.columns.result);
  std::vector<double> sum(mix.columns.source);
  std::vector<int64_t> rows;
  for (int64_t r = 0; r < mix.rows.result; ++r) {
    rows.clear();
    mix.rows.SourcesOf(r, &rows);
    std::fill(sum.begin(), sum.end(), -0.0);  // to which any zero adds with its sign
    for (const std::string& source : mix.sources) {
      for (const int64_t from : rows) {
        RETURN_IF_ERROR(read(source, from, absl::MakeSpan(row)));
        for (size_t i = 0; i < row.size(); ++i) sum[i] += row[i];
      }
    }
    int64_t next = 0;
    for (int64_t c = 0; c < mix.columns.result; ++c) {
      double value = -0.0;
      for (; next < ends[c]; ++next) value += sum[columns[next]];
      out[c] = static_cast<float>(value * mix.scale);
    }
    RETURN_IF_ERROR(CheckFinite(absl::StrCat(mix.name, " of the result"), r, out));
    RETURN_IF_ERROR(take(out));
  }
  return absl::OkStatus();
}

absl::Status Interpolate(const Mix& same, double alpha, const ReadRow& before, const ReadRow& other,
                         const TakeRow& take) {
  ISTHMUS_CHECK(alpha >= 0 && alpha <= 1);
  std::vector<float> a(same.columns.result), b(a.size());
  for (int64_t r = 0; r < same.rows.result; ++r) {
    RETURN_IF_ERROR(before(same.name, r, absl::MakeSpan(a)));
    RETURN_IF_ERROR(other(same.name, r, absl::MakeSpan(b)));
    if (alpha == 1) a = b;  // 0 x a + b would lose the sign of a zero
    for (size_t i = 0; i < a.size() && alpha > 0 && alpha < 1; ++i)
      a[i] = static_cast<float>((1 - alpha) * a[i] + alpha * b[i]);
    RETURN_IF_ERROR(take(a));
  }
  return absl::OkStatus();
}

}  // namespace isthmus::multilevel
