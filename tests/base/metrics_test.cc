#include "base/metrics.h"

#include <ctime>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace isthmus {
namespace {

bool HasLine(const std::string& text, const std::string& line) {
  std::istringstream lines(text);
  for (std::string each; std::getline(lines, each);) {
    if (each == line) return true;
  }
  return false;
}

double ValueOf(const std::string& text, const std::string& name) {
  std::istringstream lines(text);
  for (std::string each; std::getline(lines, each);) {
    if (each.rfind(name + " ", 0) == 0) return std::stod(each.substr(name.size() + 1));
  }
  return -1;
}

TEST(Metrics, CountersAddAndGaugesReplace) {
  CounterAdd("t_bytes_total", "Bytes.", {{"link", "b0"}, {"direction", "forward"}}, 3);
  CounterAdd("t_bytes_total", "ignored", {{"direction", "forward"}, {"link", "b0"}}, 4);
  CounterAdd("t_bytes_total", "ignored", {{"link", "b0"}, {"direction", "forward"}}, -1);
  GaugeSet("t_loss", "Loss.", {}, 5.5);
  GaugeSet("t_loss", "Loss.", {}, 2.5);
  const std::string text = RenderMetrics();
  EXPECT_TRUE(HasLine(text, "# HELP t_bytes_total Bytes.")) << text;
  EXPECT_TRUE(HasLine(text, "# TYPE t_bytes_total counter"));
  EXPECT_TRUE(HasLine(text, "t_bytes_total{direction=\"forward\",link=\"b0\"} 7")) << text;
  EXPECT_TRUE(HasLine(text, "t_loss 2.5"));
}

TEST(Metrics, AFullFamilyRefusesAndCounts) {
  for (int i = 0; i < kMaxSeries + 3; ++i)
    GaugeSet("t_many", "Many.", {{"i", std::to_string(i)}}, i);
  EXPECT_EQ(ValueOf(RenderMetrics(), "isthmus_metric_series_refused_total"), 3);
  GaugeRemove("t_many", {{"i", "0"}});
  GaugeRemove("t_many", {{"i", "0"}});
  GaugeRemove("t_never", {});
  GaugeSet("t_many", "Many.", {{"i", "new"}}, 9);
  const std::string text = RenderMetrics();
  EXPECT_TRUE(HasLine(text, "t_many{i=\"new\"} 9"));
  EXPECT_FALSE(HasLine(text, "t_many{i=\"0\"} 0"));
}

TEST(Metrics, DescribesTheProcess) {
  const std::string text = RenderMetrics();
  EXPECT_GT(ValueOf(text, "process_resident_memory_bytes"), 1e6);
  // Within a minute of now: the test has just started.
  EXPECT_NEAR(ValueOf(text, "process_start_time_seconds"), static_cast<double>(std::time(nullptr)),
              60);
}

TEST(Metrics, ThreadsMaySetRemoveAndRenderTogether) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < 200; ++i) {
        CounterAdd("t_race_total", "Race.", {}, 1);
        GaugeSet("t_race", "Race.", {{"t", std::to_string(i % 3)}}, i);
        GaugeRemove("t_race", {{"t", std::to_string(t)}});
        if (i % 50 == 0) RenderMetrics();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(ValueOf(RenderMetrics(), "t_race_total"), 800);
}

}  // namespace
}  // namespace isthmus
