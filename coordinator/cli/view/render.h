// Text on a terminal: sparklines, bars, tables, numbers with units. Knows nothing of jobs.
// Thread: pure functions and values.
#ifndef ISTHMUS_COORDINATOR_CLI_VIEW_RENDER_H_
#define ISTHMUS_COORDINATOR_CLI_VIEW_RENDER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace isthmus::cli {

// One character a bucket of neighbouring values (their mean), scaled between the least and the
// greatest; at most `width` characters. Non-finite values are left out. Without `unicode`:
// "_.-=+*#%@" in rising order.
std::string Sparkline(const std::vector<double>& values, size_t width, bool unicode);

// `fraction` is clamped to [0, 1].
std::string ProgressBar(double fraction, size_t width, bool unicode);

std::string FormatBytes(double bytes);              // "34.1 MiB"
std::string FormatBitRate(double bits_per_s);       // "20.0 Mbit/s"; "unknown" for 0
std::string FormatCount(double count);              // "4.31k"
std::string FormatSeconds(double seconds);          // "1m 12s", "0.35 s", "12 ms", "2h 05m"
std::string FormatFixed(double value, int digits);  // "2.613"; "-" if not finite
std::string FormatPercent(double share);            // "93.42 %"

size_t DisplayWidth(
    absl::string_view text);  // code points, escape sequences of colours and cursor not counted
std::string Clip(absl::string_view text,
                 size_t width);  // to a terminal's width, on whole code points

// Columns two spaces apart; numbers right-aligned by the caller's choice. Control characters in
// cells become '?'.
class Table {
 public:
  // A header that starts with '>' is right-aligned (without the '>').
  explicit Table(std::vector<std::string> headers);
  void AddRow(std::vector<std::string> cells);
  bool empty() const { return rows_.empty(); }
  std::string Render() const;  // lines, each ending in '\n'

 private:
  std::vector<std::string> headers_;
  std::vector<bool> right_;
  std::vector<std::vector<std::string>> rows_;
};

// What other hosts say, made harmless for a terminal: control characters (escape sequences) become
// '?', newlines stay.
std::string Printable(absl::string_view text);

}  // namespace isthmus::cli

#endif  // ISTHMUS_COORDINATOR_CLI_VIEW_RENDER_H_
