// The newest step records of this daemon, on its disk: killed while they were on their way, it
// sends them again once it is back. The coordinator takes repeated ones as nothing. Written without
// a sync, since it is for a process that dies, not for a host. A disk that takes no more loses
// nothing else: the log says so once. Bounds: two files of kFileBytes. Thread: one at a time.
#ifndef ISTHMUS_DAEMON_STATE_RECORD_LOG_H_
#define ISTHMUS_DAEMON_STATE_RECORD_LOG_H_

#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "proto/control.pb.h"

namespace isthmus::daemon {

class RecordLog {
 public:
  static constexpr int64_t kFileBytes = 256 << 10;

  // `path`: of the newer file; the older one has kOlder behind it.
  explicit RecordLog(std::string path) : path_(std::move(path)) {}
  ~RecordLog();
  RecordLog(const RecordLog&) = delete;
  RecordLog& operator=(const RecordLog&) = delete;

  // Those that are there whole, in order. Before the first Add.
  std::vector<StepRecord> Load() const;
  void Add(const StepRecord& record);

 private:
  static constexpr char kOlder[] = ".1";

  const std::string path_;
  std::FILE* out_ = nullptr;
  int64_t bytes_ = 0;  // of the newer file
  bool warned_ = false;
};

}  // namespace isthmus::daemon

#endif  // ISTHMUS_DAEMON_STATE_RECORD_LOG_H_
