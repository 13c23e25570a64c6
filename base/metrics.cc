#include "base/metrics.h"

#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include "base/log.h"
#include "base/mutex.h"
#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "prometheus/registry.h"
#include "prometheus/text_serializer.h"

namespace isthmus {
namespace {

template <typename Metric>
struct FamilyEntry {
  prometheus::Family<Metric>* family = nullptr;
  std::map<MetricLabels, Metric*> series;
};

class Registry {
 public:
  prometheus::Counter* Counter(const std::string& name, const std::string& help,
                               const MetricLabels& labels) {
    MutexLock lock(&mutex_);
    return CounterLocked(name, help, labels);
  }

  void SetGauge(const std::string& name, const std::string& help, const MetricLabels& labels,
                double value) {
    MutexLock lock(&mutex_);  // held over Set: GaugeRemove destroys the metric
    auto& entry = gauges_[name];
    if (entry.family == nullptr)
      entry.family = &prometheus::BuildGauge().Name(name).Help(help).Register(registry_);
    if (prometheus::Gauge* gauge = Series(name, &entry, labels)) gauge->Set(value);
  }

  void Remove(const std::string& name, const MetricLabels& labels) {
    MutexLock lock(&mutex_);
    const auto family = gauges_.find(name);
    if (family == gauges_.end()) return;
    const auto series = family->second.series.find(labels);
    if (series == family->second.series.end()) return;
    family->second.family->Remove(series->second);
    family->second.series.erase(series);
  }

  std::string Render() { return prometheus::TextSerializer().Serialize(registry_.Collect()); }

 private:
  prometheus::Counter* CounterLocked(const std::string& name, const std::string& help,
                                     const MetricLabels& labels)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    auto& entry = counters_[name];
    if (entry.family == nullptr)
      entry.family = &prometheus::BuildCounter().Name(name).Help(help).Register(registry_);
    return Series(name, &entry, labels);
  }

  template <typename Metric>
  Metric* Series(const std::string& name, FamilyEntry<Metric>* entry, const MetricLabels& labels)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto found = entry->series.find(labels);
    if (found != entry->series.end()) return found->second;
    if (entry->series.size() >= kMaxSeries) {
      CounterLocked("isthmus_metric_series_refused_total",
                    "Label sets refused because a family was full.", {})
          ->Increment();
      return nullptr;
    }
    Metric* metric = &entry->family->Add(labels);
    entry->series.emplace(labels, metric);
    return metric;
  }

  Mutex mutex_;
  prometheus::Registry registry_;
  std::map<std::string, FamilyEntry<prometheus::Counter>> counters_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, FamilyEntry<prometheus::Gauge>> gauges_ ABSL_GUARDED_BY(mutex_);
};

Registry& TheRegistry() {
  static auto* registry = new Registry;
  return *registry;
}

double ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  double pages = 0;
  double resident = 0;
  file >> pages >> resident;
  return resident * static_cast<double>(sysconf(_SC_PAGESIZE));
}

// Field `number` (1-based, after the command's closing parenthesis it is 3 on) of /proc/self/stat,
// as seconds.
double StatSeconds(int number) {
  std::ifstream file("/proc/self/stat");
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const size_t end = text.rfind(')');
  if (end == std::string::npos) return 0;
  const char* at = text.c_str() + end + 1;
  for (int field = 2; field < number; ++field) {
    while (*at == ' ') ++at;
    if (field + 1 == number)
      return std::strtod(at, nullptr) / static_cast<double>(sysconf(_SC_CLK_TCK));
    while (*at != '\0' && *at != ' ') ++at;
  }
  return 0;
}

// Start in seconds since 1970: now - uptime + start (which /proc counts from boot).
double StartTime() {
  double uptime = 0;
  std::ifstream("/proc/uptime") >> uptime;
  const double now =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  return now - uptime + StatSeconds(22);
}

}  // namespace

void CounterAdd(const std::string& name, const std::string& help, const MetricLabels& labels,
                double amount) {
  // Counters are never removed, so the handle stays good outside the lock.
  if (prometheus::Counter* counter = TheRegistry().Counter(name, help, labels))
    counter->Increment(amount);
}

void GaugeSet(const std::string& name, const std::string& help, const MetricLabels& labels,
              double value) {
  TheRegistry().SetGauge(name, help, labels, value);
}

void GaugeRemove(const std::string& name, const MetricLabels& labels) {
  TheRegistry().Remove(name, labels);
}

std::string RenderMetrics() {
  static const double start = StartTime();
  GaugeSet("process_resident_memory_bytes", "Resident memory of the process.", {}, ResidentBytes());
  GaugeSet("process_start_time_seconds", "Start of the process, seconds since 1970.", {}, start);
  return TheRegistry().Render();
}

}  // namespace isthmus
