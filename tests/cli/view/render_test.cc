#include "coordinator/cli/view/render.h"

#include <cmath>
#include <limits>

#include "gtest/gtest.h"

namespace isthmus::cli {
namespace {

TEST(Render, Sparkline) {
  EXPECT_EQ(Sparkline({1, 2, 3, 4, 5, 6, 7, 8}, 8, true), "▁▂▃▄▅▆▇█");
  EXPECT_EQ(Sparkline({5.5, 4, 3, 2}, 4, false), "@+-_");
  EXPECT_EQ(Sparkline({3, 3, 3}, 10, true), "▁▁▁");
  EXPECT_EQ(Sparkline({0, 0, 10, 10}, 2, true), "▁█");  // means of neighbours
  EXPECT_EQ(Sparkline({1, NAN, 2, std::numeric_limits<double>::infinity()}, 10, true), "▁█");
  EXPECT_EQ(Sparkline({}, 10, true), "");
  EXPECT_EQ(Sparkline({1}, 0, true), "");
  EXPECT_EQ(DisplayWidth(Sparkline(std::vector<double>(1000, 1.0), 30, true)), 30u);
}

TEST(Render, ProgressBar) {
  EXPECT_EQ(ProgressBar(0, 4, true), "    ");
  EXPECT_EQ(ProgressBar(1, 4, true), "████");
  EXPECT_EQ(ProgressBar(0.5, 4, true), "██  ");
  EXPECT_EQ(ProgressBar(0.53125, 4, true), "██▏ ");
  EXPECT_EQ(ProgressBar(7, 3, false), "###");
  EXPECT_EQ(ProgressBar(NAN, 3, false), "...");
  for (int i = 0; i <= 100; ++i)
    EXPECT_EQ(DisplayWidth(ProgressBar(i / 100.0, 17, true)), 17u) << i;
}

TEST(Render, Numbers) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(1020.0 * 1024 * 1024), "1020 MiB");
  EXPECT_EQ(FormatBytes(1536), "1.5 KiB");
  EXPECT_EQ(FormatBytes(35757916), "34.1 MiB");
  EXPECT_EQ(FormatBytes(1048575), "1 MiB");
  EXPECT_EQ(FormatBitRate(20e6), "20 Mbit/s");
  EXPECT_EQ(FormatBitRate(0), "unknown");
  EXPECT_EQ(FormatCount(4312), "4.31k");
  EXPECT_EQ(FormatCount(999), "999");
  EXPECT_EQ(FormatSeconds(0), "0 s");
  EXPECT_EQ(FormatSeconds(0.0123), "12.3 ms");
  EXPECT_EQ(FormatSeconds(0.35), "0.35 s");
  EXPECT_EQ(FormatSeconds(59.6), "1m 00s");
  EXPECT_EQ(FormatSeconds(72), "1m 12s");
  EXPECT_EQ(FormatSeconds(7500), "2h 05m");
  EXPECT_EQ(FormatSeconds(200000), "2d 07h");
  EXPECT_EQ(FormatSeconds(NAN), "-");
  EXPECT_EQ(FormatSeconds(1e300), FormatSeconds(1e12));
  EXPECT_EQ(FormatFixed(2.6125, 2), "2.61");
  EXPECT_EQ(FormatFixed(INFINITY, 2), "-");
}

TEST(Render, WidthAndClip) {
  EXPECT_EQ(DisplayWidth("abc"), 3u);
  EXPECT_EQ(DisplayWidth("▁█"), 2u);
  EXPECT_EQ(DisplayWidth("\x1b[31mred\x1b[0m"), 3u);
  EXPECT_EQ(Clip("▁▂▃▄", 2), "▁▂");
  EXPECT_EQ(Clip("abc", 10), "abc");
  EXPECT_EQ(Clip("abc", 0), "");
}

TEST(Render, TableAlignsByDisplayWidth) {
  Table table({"NAME", ">N"});
  table.AddRow({"größe", "1"});
  table.AddRow({"b", "100"});
  table.AddRow({"short row"});
  EXPECT_EQ(table.Render(),
            "NAME         N\n"
            "größe        1\n"
            "b          100\n"
            "short row\n");
}

TEST(Render, WhatOthersSayCanNotMoveTheCursor) {
  EXPECT_EQ(Printable("a\x1b[2Jb\tc\nd\x7f"), "a?[2Jb?c\nd?");
  EXPECT_EQ(Printable("\xC2\x9b"
                      "x"),
            "??x");
  EXPECT_EQ(Printable("größe"), "größe");
  Table table({"A"});
  table.AddRow({"x\ny\x1b"});
  EXPECT_EQ(table.Render(), "A\nx y?\n");
}

}  // namespace
}  // namespace isthmus::cli
