#include "daemon/health.h"

#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"

namespace isthmus::daemon {

std::thread Health::Spawn(const std::string& name, std::function<void()> body) {
  return std::thread([this, name, body = std::move(body)] {
    std::string what = "ended early";
    try {
      body();
    } catch (const std::exception& exception) {
      what = absl::StrCat("threw: ", exception.what());
    } catch (...) {
      what = "threw something that is no exception";
    }
    bool ending = false;
    {
      MutexLock lock(&mutex_);
      ending = ending_;
    }
    if (!ending || what != "ended early") Fault(name, what);
  });
}

void Health::Fault(const std::string& name, const std::string& what) {
  LogError("internal thread ", name, " ", what, "; restart this daemon");
  MutexLock lock(&mutex_);
  faults_.emplace(name, what);
}

void Health::Ending() {
  MutexLock lock(&mutex_);
  ending_ = true;
}

bool Health::ok() const {
  MutexLock lock(&mutex_);
  return faults_.empty();
}

std::string Health::Report() const {
  MutexLock lock(&mutex_);
  if (faults_.empty()) return "ok\n";
  std::string report;
  for (const auto& [name, what] : faults_)
    absl::StrAppend(&report, "internal thread ", name, " ", what, "\n");
  return report;
}

std::string CoordinatorLine(const std::string& address, bool connected,
                            absl::Duration heartbeat_age) {
  const std::string sent =
      heartbeat_age == absl::InfiniteDuration()
          ? "no heartbeat sent yet"
          : absl::StrCat("last heartbeat sent ", absl::ToInt64Seconds(heartbeat_age), " s ago");
  return absl::StrCat("coordinator ", address, ": ",
                      connected ? "connection open" : "no connection", ", ", sent, "\n");
}

}  // namespace isthmus::daemon
