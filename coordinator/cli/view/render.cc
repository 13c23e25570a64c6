#include "coordinator/cli/view/render.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace isthmus::cli {
namespace {

bool Continues(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

// Bytes of the escape sequence that starts at text[i], 0 if none does.
size_t EscapeLength(absl::string_view text, size_t i) {
  if (i + 1 >= text.size() || text[i] != '\x1b' || text[i + 1] != '[') return 0;
  size_t end = i + 2;
  while (end < text.size() && !absl::ascii_isalpha(static_cast<unsigned char>(text[end]))) ++end;
  return std::min(end + 1, text.size()) - i;
}

std::string Scaled(double value, double step, const char* const* units, size_t count) {
  size_t unit = 0;
  while (unit + 1 < count && std::abs(value) >= step * 0.9995) {
    value /= step;
    ++unit;
  }
  const bool whole = unit == 0 || std::abs(value) >= 999.5;  // 1020 MiB, not 1.02e+03 MiB
  return whole ? absl::StrFormat("%.0f%s", value, units[unit])
               : absl::StrFormat("%.3g%s", value, units[unit]);
}

std::string Repeat(absl::string_view text, size_t times) {
  std::string out;
  for (size_t i = 0; i < times; ++i) absl::StrAppend(&out, text);
  return out;
}

}  // namespace

std::string Sparkline(const std::vector<double>& values, size_t width, bool unicode) {
  static constexpr const char* kBlocks[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  static constexpr const char* kAscii[] = {"_", ".", "-", "=", "+", "*", "#", "@"};
  std::vector<double> finite;
  std::copy_if(values.begin(), values.end(), std::back_inserter(finite),
               [](double v) { return std::isfinite(v); });
  if (finite.empty() || width == 0) return "";
  const size_t buckets = std::min(width, finite.size());
  std::vector<double> means(buckets, 0);
  for (size_t b = 0; b < buckets; ++b) {
    const size_t first = b * finite.size() / buckets;
    const size_t end = (b + 1) * finite.size() / buckets;
    for (size_t i = first; i < end; ++i) means[b] += finite[i] / static_cast<double>(end - first);
  }
  const auto [least, greatest] = std::minmax_element(means.begin(), means.end());
  const double span = *greatest - *least;
  std::string out;
  for (double mean : means) {
    const int level =
        span > 0 ? std::clamp(static_cast<int>((mean - *least) / span * 7.999), 0, 7) : 0;
    out += unicode ? kBlocks[level] : kAscii[level];
  }
  return out;
}

std::string ProgressBar(double fraction, size_t width, bool unicode) {
  static constexpr const char* kEighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  if (!(fraction > 0)) fraction = 0;
  fraction = std::min(fraction, 1.0);
  if (!unicode) {
    const size_t full = static_cast<size_t>(fraction * static_cast<double>(width));
    return absl::StrCat(std::string(full, '#'), std::string(width - full, '.'));
  }
  const size_t eighths = static_cast<size_t>(fraction * static_cast<double>(width) * 8);
  const size_t full = eighths / 8;
  const size_t part = eighths % 8;
  return absl::StrCat(Repeat("█", full), kEighths[part],
                      std::string(width - full - (part > 0 ? 1 : 0), ' '));
}

std::string FormatBytes(double bytes) {
  static constexpr const char* kUnits[] = {" B", " KiB", " MiB", " GiB", " TiB", " PiB"};
  if (!std::isfinite(bytes)) return "-";
  return Scaled(bytes, 1024, kUnits, std::size(kUnits));
}

std::string FormatBitRate(double bits_per_s) {
  static constexpr const char* kUnits[] = {" bit/s", " kbit/s", " Mbit/s", " Gbit/s", " Tbit/s"};
  if (!std::isfinite(bits_per_s) || bits_per_s <= 0) return "unknown";
  return Scaled(bits_per_s, 1000, kUnits, std::size(kUnits));
}

std::string FormatCount(double count) {
  static constexpr const char* kUnits[] = {"", "k", "M", "G", "T"};
  if (!std::isfinite(count)) return "-";
  return Scaled(count, 1000, kUnits, std::size(kUnits));
}

std::string FormatSeconds(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "-";
  if (seconds == 0) return "0 s";
  if (seconds < 0.0995) return absl::StrFormat("%.3g ms", seconds * 1e3);
  if (seconds < 9.95) return absl::StrFormat("%.2g s", seconds);
  const int64_t whole = std::llround(std::min(seconds, 1e12));
  if (whole < 60) return absl::StrCat(whole, " s");
  if (whole < 3600) return absl::StrFormat("%dm %02ds", whole / 60, whole % 60);
  if (whole < 86400) return absl::StrFormat("%dh %02dm", whole / 3600, whole % 3600 / 60);
  return absl::StrFormat("%dd %02dh", whole / 86400, whole % 86400 / 3600);
}

std::string FormatFixed(double value, int digits) {
  if (!std::isfinite(value)) return "-";
  return absl::StrFormat("%.*f", digits, value);
}

std::string FormatPercent(double share) { return absl::StrFormat("%.2f %%", 100 * share); }

size_t DisplayWidth(absl::string_view text) {
  size_t width = 0;
  for (size_t i = 0; i < text.size();) {
    const size_t escape = EscapeLength(text, i);
    if (escape == 0 && !Continues(text[i])) ++width;
    i += std::max<size_t>(escape, 1);
  }
  return width;
}

std::string Clip(absl::string_view text, size_t width) {
  size_t used = 0;
  size_t i = 0;
  while (i < text.size()) {
    const size_t escape = EscapeLength(text, i);
    if (escape == 0 && !Continues(text[i])) {
      if (used == width) break;
      ++used;
    }
    i += std::max<size_t>(escape, 1);
  }
  return std::string(text.substr(0, i));
}

Table::Table(std::vector<std::string> headers) : headers_(std::move(headers)) {
  for (std::string& header : headers_) {
    right_.push_back(!header.empty() && header[0] == '>');
    if (right_.back()) header.erase(0, 1);
  }
}

void Table::AddRow(std::vector<std::string> cells) {
  cells.resize(headers_.size());
  for (std::string& cell : cells) {
    cell = Printable(cell);
    std::replace(cell.begin(), cell.end(), '\n', ' ');
  }
  rows_.push_back(std::move(cells));
}

std::string Table::Render() const {
  std::vector<size_t> widths;
  for (const std::string& header : headers_) widths.push_back(DisplayWidth(header));
  for (const auto& row : rows_) {
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], DisplayWidth(row[c]));
  }
  std::string out;
  const auto add = [&](const std::vector<std::string>& row) {
    std::string line;
    for (size_t c = 0; c < row.size(); ++c) {
      const std::string pad(widths[c] - DisplayWidth(row[c]), ' ');
      absl::StrAppend(&line, c == 0 ? "" : "  ", right_[c] ? pad : "", row[c],
                      right_[c] ? "" : pad);
    }
    absl::StrAppend(&out, absl::StripTrailingAsciiWhitespace(line), "\n");
  };
  add(headers_);
  for (const auto& row : rows_) add(row);
  return out;
}

std::string Printable(absl::string_view text) {
  std::string out(text);
  for (size_t i = 0; i < out.size(); ++i) {
    const unsigned char c = static_cast<unsigned char>(out[i]);
    if ((c < 0x20 && c != '\n') || c == 0x7f) out[i] = '?';
    // U+0080 to U+009F are control characters too: 0xC2 0x80..0x9F.
    if (c == 0xC2 && i + 1 < out.size() && static_cast<unsigned char>(out[i + 1]) < 0xA0)
      out[i] = out[i + 1] = '?';
  }
  return out;
}

}  // namespace isthmus::cli
