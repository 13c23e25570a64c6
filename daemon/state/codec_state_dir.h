// worker::CodecStateStore in files of this daemon: <root>/<job>/<name>-<step>, whole or not there
// (a file of another name, fsync, rename). Format of a file: compress/FORMATS.md.
//
// Bounded by names: kKeptSteps of each name (one more of names that the daemon held once, then
// none), kKeptJobs jobs (the newest; others go when a session begins), `max_bytes` of all files,
// and nothing is written that would leave less than kFreeBytes on the file system. At max_bytes
// others make room: files larger than that, what is older than the job's newest states, other
// jobs'. Thread: any, but no Begin while a session of the same job runs.
#ifndef ISTHMUS_DAEMON_STATE_CODEC_STATE_DIR_H_
#define ISTHMUS_DAEMON_STATE_CODEC_STATE_DIR_H_

#include <cstdint>
#include <memory>
#include <string>

#include "worker/link/codec_state_store.h"

namespace isthmus::daemon {

class CodecStateDir : public worker::CodecStateStore {
 public:
  static constexpr size_t kKeptSteps = 2;  // a checkpoint may yet fail: then the one before counts
  static constexpr size_t kKeptJobs = 4;
  static constexpr int64_t kFreeBytes = int64_t{64} << 20;

  // `root` need not be there yet. max_bytes: of all files, within 8 MiB a writer; 0: no bound of
  // its own.
  explicit CodecStateDir(std::string root, int64_t max_bytes = 0)
      : root_(std::move(root)), max_bytes_(max_bytes) {}

  void Begin(const std::string& job_id, int64_t step) override;
  void RemoveJob(const std::string& job_id) const;  // everything of one that was removed
  // ResourceExhausted: the file system is nearly full, or what must stay takes max_bytes.
  // FailedPrecondition: a file in the place of a directory. InvalidArgument: not a name for a file.
  absl::StatusOr<std::unique_ptr<Writer>> Create(const worker::CodecStateKey& key) override;
  absl::StatusOr<std::unique_ptr<compress::StateSource>> Open(
      const worker::CodecStateKey& key) override;

 private:
  absl::StatusOr<std::string> PathOf(const worker::CodecStateKey& key) const;
  void RemoveOldJobs(const std::string& job_id) const;

  std::string root_;
  int64_t max_bytes_;
};

}  // namespace isthmus::daemon

#endif  // ISTHMUS_DAEMON_STATE_CODEC_STATE_DIR_H_
