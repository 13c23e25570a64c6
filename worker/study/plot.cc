#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "worker/study/table.h"

namespace isthmus::study {
namespace {

constexpr double kWidth = 900, kHeight = 560, kLeft = 70, kRight = 250, kTop = 50, kBottom = 60;
constexpr const char* kColours[] = {
    "#1b6ca8", "#c0392b", "#2e8b57", "#8e44ad", "#d35400", "#16a085", "#7f8c8d", "#b8860b",
    "#2c3e50", "#e377c2", "#a0522d", "#00bcd4", "#9acd32", "#ff7f50", "#483d8b", "#000000"};

std::string Escaped(const std::string& text) {
  return absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}});
}

std::string Text(double x, double y, const std::string& text, const std::string& more = "") {
  return absl::StrFormat("<text x=\"%.1f\" y=\"%.1f\"%s>%s</text>\n", x, y, more, Escaped(text));
}

std::string Line(double x1, double y1, double x2, double y2, const char* style) {
  return absl::StrFormat("<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" %s/>\n", x1, y1, x2,
                         y2, style);
}

// Early boundaries as squares, late ones as triangles, all as circles.
std::string Mark(const std::string& where, double x, double y, const char* colour) {
  if (where == "early") {
    return absl::StrFormat("<rect x=\"%.1f\" y=\"%.1f\" width=\"8\" height=\"8\" fill=\"%s\"/>\n",
                           x - 4, y - 4, colour);
  }
  if (where == "late") {
    return absl::StrFormat("<path d=\"M%.1f %.1fl5 9h-10z\" fill=\"%s\"/>\n", x, y - 5, colour);
  }
  return absl::StrFormat("<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4.5\" fill=\"%s\"/>\n", x, y, colour);
}

class Plot {
 public:
  explicit Plot(std::vector<Row> rows) : rows_(std::move(rows)) {
    for (const Row& r : rows_) {
      low_x_ = std::min(low_x_, Log(r));
      high_x_ = std::max(high_x_, Log(r));
      low_y_ = std::min(low_y_, r.loss);
      high_y_ = std::max(high_y_, r.loss);
      if (names_.empty() || std::find(names_.begin(), names_.end(), r.setting) == names_.end())
        names_.push_back(r.setting);
    }
    const double pad = std::max(1e-3, 0.06 * (high_y_ - low_y_));
    low_y_ -= pad;
    high_y_ += pad;
    low_x_ -= 0.1;
    high_x_ += 0.1;
  }

  std::string Svg(const std::string& title) {
    std::string out = absl::StrFormat(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" "
        "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"%.0f\" height=\"%.0f\" "
        "fill=\"white\"/>\n",
        kWidth, kHeight, kWidth, kHeight);
    absl::StrAppend(&out, Text(kLeft, 24, title, " font-size=\"15\""), Axes());
    for (const Row& r : rows_) {
      if (r.setting == "none")
        absl::StrAppend(&out, Line(kLeft, Y(r.loss), kWidth - kRight, Y(r.loss),
                                   "stroke=\"#888\" stroke-dasharray=\"5 4\""));
      absl::StrAppend(&out, Mark(r.where, X(Log(r)), Y(r.loss), Colour(r.setting)));
    }
    for (size_t i = 0; i < names_.size(); ++i) {
      const double y = kTop + 14 + 18 * static_cast<double>(i);
      absl::StrAppend(&out, Mark("all", kWidth - kRight + 18, y - 4, Colour(names_[i])),
                      Text(kWidth - kRight + 30, y, names_[i]));
    }
    return out + "</svg>\n";
  }

 private:
  static double Log(const Row& r) { return std::log10(std::max(1.0, r.wire_bytes)); }
  double X(double log) const {
    return kLeft + (log - low_x_) / (high_x_ - low_x_) * (kWidth - kLeft - kRight);
  }
  double Y(double loss) const {
    return kHeight - kBottom - (loss - low_y_) / (high_y_ - low_y_) * (kHeight - kTop - kBottom);
  }
  const char* Colour(const std::string& name) const {
    const auto at = std::find(names_.begin(), names_.end(), name) - names_.begin();
    return kColours[at % std::size(kColours)];
  }

  std::string Axes() const {
    const double bottom = kHeight - kBottom, right = kWidth - kRight;
    std::string out = absl::StrCat(Line(kLeft, bottom, right, bottom, "stroke=\"black\""),
                                   Line(kLeft, kTop, kLeft, bottom, "stroke=\"black\""));
    for (double e = std::floor(low_x_); e <= high_x_; ++e) {
      for (double m : {1.0, 2.0, 5.0}) {
        const double x = e + std::log10(m);
        if (x < low_x_ || x > high_x_) continue;
        const double bytes = std::pow(10, x);
        const std::string name = bytes >= 1e6 ? absl::StrFormat("%.0f MB", bytes / 1e6)
                                              : absl::StrFormat("%.0f kB", bytes / 1e3);
        absl::StrAppend(&out, Line(X(x), bottom, X(x), bottom + 5, "stroke=\"black\""),
                        Text(X(x), bottom + 20, name, " text-anchor=\"middle\""));
      }
    }
    for (int i = 0; i <= 5; ++i) {
      const double loss = low_y_ + (high_y_ - low_y_) * i / 5;
      absl::StrAppend(
          &out, Line(kLeft - 5, Y(loss), kLeft, Y(loss), "stroke=\"black\""),
          Text(kLeft - 8, Y(loss) + 4, absl::StrFormat("%.3f", loss), " text-anchor=\"end\""));
    }
    absl::StrAppend(&out,
                    Text((kLeft + right) / 2, kHeight - 18, "bytes on the wire a step",
                         " text-anchor=\"middle\""),
                    Text(kLeft, kTop - 8, "loss (square: early, triangle: late, circle: all)"));
    return out;
  }

  const std::vector<Row> rows_;
  std::vector<std::string> names_;
  double low_x_ = 1e9, high_x_ = -1e9, low_y_ = 1e300, high_y_ = -1e300;
};

}  // namespace

std::string RenderSvg(const std::vector<Row>& rows, const std::string& title) {
  std::vector<Row> drawn;
  for (const Row& r : rows) {
    if (r.note.empty() && std::isfinite(r.loss)) drawn.push_back(r);
  }
  if (drawn.empty()) drawn.push_back({"none", "all", 0, 0});
  return Plot(std::move(drawn)).Svg(title);
}

}  // namespace isthmus::study
