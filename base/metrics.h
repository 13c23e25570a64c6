// Handles to Prometheus metrics. One registry a process (the one singleton beside the logger). The
// only door to prometheus-cpp. Label values are bounded by the caller: a family refuses its
// (kMaxSeries + 1)-th label set and counts it in isthmus_metric_series_refused_total. Thread: any.
#ifndef ISTHMUS_BASE_METRICS_H_
#define ISTHMUS_BASE_METRICS_H_

#include <map>
#include <string>

namespace isthmus {

constexpr int kMaxSeries = 512;  // label sets a family

using MetricLabels = std::map<std::string, std::string>;

// Counters (name ends in _total) and gauges, made at first use. `help` of the first use counts.
void CounterAdd(const std::string& name, const std::string& help, const MetricLabels& labels,
                double amount);
void GaugeSet(const std::string& name, const std::string& help, const MetricLabels& labels,
              double value);
void GaugeRemove(const std::string& name,
                 const MetricLabels& labels);  // forget one label set (a lost node, an ended job)

// The text exposition format, with process_resident_memory_bytes and process_start_time_seconds
// refreshed.
std::string RenderMetrics();
constexpr char kMetricsContentType[] = "text/plain; version=0.0.4; charset=utf-8";

}  // namespace isthmus

#endif  // ISTHMUS_BASE_METRICS_H_
