#include "coordinator/core/fetch_line.h"

#include "absl/strings/str_cat.h"

namespace isthmus::coordinator {

absl::StatusOr<uint64_t> FetchLine::Enter(Kind kind) {
  const int limit = kind == kExport ? kMaxExports : kMaxFetches;
  int of_kind = 0;
  for (const auto& [ticket, entry] : entries_) of_kind += entry.kind == kind;
  if (of_kind >= limit + kMaxFetchesWaiting) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the coordinator serves ", limit, kind == kExport ? " exports" : " fetches of daemons",
        " at once, and ", of_kind - limit, " more wait already, its limit: try again later"));
  }
  entries_[++last_] = {kind, false, absl::InfinitePast()};
  return last_;
}

int FetchLine::Before(uint64_t ticket, absl::Time now) {
  auto it = entries_.find(ticket);
  if (it == entries_.end() || it->second.runs) return 0;
  const int limit = it->second.kind == kExport ? kMaxExports : kMaxFetches;
  int before = 0;
  for (const auto& [other, entry] : entries_)
    before += entry.kind == it->second.kind && (entry.runs || other < ticket);
  if (before >= limit) return before - limit + 1;
  it->second.runs = true;
  it->second.moved = now;
  return 0;
}

void FetchLine::Progress(uint64_t ticket, absl::Time now) {
  auto it = entries_.find(ticket);
  if (it != entries_.end()) it->second.moved = now;
}

void FetchLine::Leave(uint64_t ticket) { entries_.erase(ticket); }

std::vector<uint64_t> FetchLine::Stalled(absl::Time now) const {
  std::vector<uint64_t> stalled;
  for (const auto& [ticket, entry] : entries_) {
    if (entry.runs && now - entry.moved > stall_) stalled.push_back(ticket);
  }
  return stalled;
}

}  // namespace isthmus::coordinator
