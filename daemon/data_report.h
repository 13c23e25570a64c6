// What lies under --data-dir, for the coordinator: names and sizes at once, and what the contents
// look like (worker/data/file_look.h) as soon as they were read. A file is read again only when its
// size or its times change. Thread: any; Look by one thread at a time.
#ifndef ISTHMUS_DAEMON_DATA_REPORT_H_
#define ISTHMUS_DAEMON_DATA_REPORT_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "proto/control.pb.h"
#include "proto/plan.pb.h"

namespace isthmus::daemon {

// Files under `directory`, sub-directories two levels deep (links are followed), sorted; at most
// `limit`. `complete`: there are not more. Directories that may not be read count as empty. What
// has a name that is not UTF-8 can't be named by a job and is left out, its name in `unnamed`.
std::vector<DataFile> ListDataFiles(const std::string& directory, int limit, bool* complete,
                                    std::vector<std::string>* unnamed);

class DataReport {
 public:
  static constexpr int64_t kFileBytes = 16 << 20;    // read of one file
  static constexpr int64_t kRoundBytes = 256 << 20;  // read in one Look, but for the last file

  explicit DataReport(std::string directory) : directory_(std::move(directory)) {}

  // What is there now, with what is known of it.
  DataListing List();

  // Reads files that are new or changed. False: some are left for the next call, or `stop` was set.
  bool Look(const std::atomic<bool>& stop);

 private:
  struct Stamp {
    int64_t inode = 0, bytes = 0, changed_ns = 0;
    bool operator==(const Stamp& o) const {
      return inode == o.inode && bytes == o.bytes && changed_ns == o.changed_ns;
    }
  };
  struct Seen {
    Stamp stamp;
    DataFile file;
  };
  Stamp StampOf(const std::string& file) const;
  bool Known(const std::string& file, const Stamp& stamp);
  void Complain(const std::vector<std::string>& unnamed);

  const std::string directory_;
  Mutex mutex_;
  std::map<std::string, Seen> seen_ ABSL_GUARDED_BY(mutex_);     // of the last listing
  std::set<std::string> complained_of_ ABSL_GUARDED_BY(mutex_);  // names that are left out
};

}  // namespace isthmus::daemon

#endif  // ISTHMUS_DAEMON_DATA_REPORT_H_
