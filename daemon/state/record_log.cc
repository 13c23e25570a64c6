#include "daemon/state/record_log.h"

#include <cstring>
#include <utility>

#include "absl/strings/string_view.h"
#include "base/file/read_file.h"
#include "base/hash.h"
#include "base/log.h"

namespace isthmus::daemon {
namespace {

// Of a record on disk, little-endian as every host of ours: its bytes and their hash. Then they.
struct Head {
  uint64_t bytes = 0, hash = 0;
};

// Up to the first one that is torn.
void Parse(absl::string_view text, std::vector<StepRecord>* out) {
  Head head;
  while (text.size() >= sizeof(head)) {
    std::memcpy(&head, text.data(), sizeof(head));
    text.remove_prefix(sizeof(head));
    if (head.bytes > text.size()) return;
    const absl::string_view bytes = text.substr(0, head.bytes);
    StepRecord record;
    if (Hash64(bytes) != head.hash ||
        !record.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())))
      return;
    out->push_back(std::move(record));
    text.remove_prefix(bytes.size());
  }
}

}  // namespace

RecordLog::~RecordLog() {
  if (out_ != nullptr) std::fclose(out_);
}

std::vector<StepRecord> RecordLog::Load() const {
  std::vector<StepRecord> records;
  for (const std::string& path : {path_ + kOlder, path_}) {
    const absl::StatusOr<std::string> text = ReadSmallFile(path, 2 * kFileBytes);
    if (text.ok()) Parse(*text, &records);
  }
  return records;
}

void RecordLog::Add(const StepRecord& record) {
  const std::string bytes = record.SerializeAsString();
  Head head{bytes.size(), Hash64(bytes)};
  const auto size = static_cast<int64_t>(sizeof(head) + bytes.size());
  if (size > kFileBytes) return;
  if (out_ == nullptr || bytes_ + size > kFileBytes) {
    if (out_ != nullptr) std::fclose(out_);
    std::rename(path_.c_str(), (path_ + kOlder).c_str());  // of no use where there is none yet
    out_ = std::fopen(path_.c_str(), "wbe");
    bytes_ = 0;
  }
  std::string whole(sizeof(head), '\0');
  std::memcpy(whole.data(), &head, sizeof(head));
  whole += bytes;
  bytes_ += size;
  const bool written = out_ != nullptr &&
                       std::fwrite(whole.data(), 1, whole.size(), out_) == whole.size() &&
                       std::fflush(out_) == 0;
  if (written) return;
  if (out_ != nullptr && bytes_ > size) {  // nothing is read behind a torn record
    std::fclose(out_);
    out_ = nullptr;
  }
  if (warned_) return;
  warned_ = true;
  LogWarning(path_,
             " can't be written: should this daemon and the coordinator be killed at once, "
             "the last steps are missing in the job's log");
}

}  // namespace isthmus::daemon
