// What a data file holds, by its first bytes and by blocks spread over it: the one piece of
// detection that the daemon's report to the planner and the session that reads the file share.
// Thread: pure functions of the file.
#ifndef ISTHMUS_WORKER_DATA_FILE_LOOK_H_
#define ISTHMUS_WORKER_DATA_FILE_LOOK_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "worker/data/watched_file.h"

namespace isthmus::worker {

struct FileLook {
  std::string format;      // proto/data/data_files.h
  int64_t offset = 0;      // of the first token: after a header
  int64_t tokens = 0;      // of the width that `format` says
  int64_t highest_id = 0;  // in the blocks that were read
  uint64_t contents = 0;   // hash of the size and of those blocks
  // Why it can't be read as token ids (or, with a format that is not a plain one, at all):
  // "offset N: " and words that end in what to do. Empty: nothing speaks against it.
  std::string problem;
};

constexpr int64_t kLookBlockBytes = 64 << 10;
// Fewer 16-bit words than this say nothing about how likely they are to be token ids, nor how wide
// these are: without a header they are taken as 16-bit ids.
constexpr int64_t kLookWords = 64;

// Reads at most `max_bytes`, in blocks of kLookBlockBytes, the first and the last among them. The
// errors are those of WatchedFile::Read.
absl::StatusOr<FileLook> LookAt(const WatchedFile& file, int64_t max_bytes);

}  // namespace isthmus::worker

#endif  // ISTHMUS_WORKER_DATA_FILE_LOOK_H_
