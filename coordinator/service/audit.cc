#include "coordinator/service/audit.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/file/durable_file.h"
#include "base/file/read_file.h"
#include "base/log.h"
#include "base/status.h"
#include "base/utf8.h"

namespace isthmus::coordinator {
namespace {

constexpr size_t kMaxFieldBytes = 400;

std::string LineOf(const AuditEntry& entry) {
  const auto text = [](const std::string& field) {
    return ToUtf8(field.substr(0, kMaxFieldBytes));
  };
  nlohmann::ordered_json line;
  line["unix_ms"] = entry.unix_ms();
  line["who"] = text(entry.who());
  line["role"] = text(entry.role());
  line["peer"] = text(entry.peer());
  line["call"] = text(entry.call());
  line["what"] = text(entry.what());
  line["outcome"] = text(entry.outcome());
  return line.dump() + "\n";
}

// False: no entry, as of a line that a power cut left half written.
bool ParseLine(absl::string_view text, AuditEntry* entry) {
  const auto line = nlohmann::json::parse(text.begin(), text.end(), nullptr, false);
  if (!line.is_object()) return false;
  try {
    entry->set_unix_ms(line.at("unix_ms").get<int64_t>());
    entry->set_who(line.at("who").get<std::string>());
    entry->set_role(line.at("role").get<std::string>());
    entry->set_peer(line.at("peer").get<std::string>());
    entry->set_call(line.at("call").get<std::string>());
    entry->set_what(line.at("what").get<std::string>());
    entry->set_outcome(line.at("outcome").get<std::string>());
  } catch (const nlohmann::json::exception&) {
    return false;
  }
  return true;
}

// The file at its end. FailedPrecondition: something else has that name.
absl::StatusOr<int> OpenAtEnd(const std::string& file) {
  // O_NONBLOCK: a FIFO would wait for its reader.
  const int fd = ::open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0600);
  const int error = errno;
  struct stat info = {};
  const bool known = fd >= 0 ? ::fstat(fd, &info) == 0 : ::stat(file.c_str(), &info) == 0;
  if (known && !S_ISREG(info.st_mode)) {
    if (fd >= 0) ::close(fd);
    return absl::FailedPreconditionError(
        absl::StrCat(file, " is ", S_ISDIR(info.st_mode) ? "a directory" : "no regular file",
                     ": move it away, and it is made anew"));
  }
  if (fd < 0) return absl::ErrnoToStatus(error, absl::StrCat("opening ", file));
  return fd;
}

absl::Status Append(const std::string& file, const std::string& line) {
  struct stat info = {};
  if (::stat(file.c_str(), &info) == 0 && info.st_size >= kAuditBytes &&
      std::rename(file.c_str(), absl::StrCat(file, ".1").c_str()) != 0)
    return absl::ErrnoToStatus(errno, absl::StrCat("renaming ", file));
  ASSIGN_OR_RETURN(const int fd, OpenAtEnd(file));
  const absl::Status written = WriteFully(fd, line, file);
  ::close(fd);
  return written;
}

}  // namespace

void Audit::Check() const {
  const absl::StatusOr<int> fd = OpenAtEnd(file_);
  absl::Status usable = fd.status();
  if (fd.ok()) {
    struct statvfs disk = {};
    if (::fstatvfs(*fd, &disk) == 0 && disk.f_bavail == 0)
      usable = absl::ResourceExhaustedError(absl::StrCat(file_, ": its disk is full: free some"));
    ::close(*fd);
  }
  if (!usable.ok())
    LogWarning("audit: who changes what will not be written down: ", usable.message());
}

void Audit::Add(AuditEntry entry) {
  if (entry.unix_ms() == 0) entry.set_unix_ms(absl::ToUnixMillis(absl::Now()));
  MutexLock lock(&mutex_);
  const absl::Status written = Append(file_, LineOf(entry));
  if (!written.ok())
    LogWarning("audit: ", entry.call(), " is not written down: ", written.message());
}

void Audit::AddRefused(AuditEntry entry, absl::Time now) {
  {
    MutexLock lock(&mutex_);
    if (refused_.size() >= kMaxRefused) refused_.clear();
    const auto [it, first] =
        refused_.insert({absl::StrCat(entry.who(), " ", entry.call()), Refused{now, 0}});
    Refused& refused = it->second;
    if (!first && now - refused.told < absl::Minutes(1)) {
      ++refused.left_out;
      return;
    }
    if (refused.left_out > 0)
      entry.set_outcome(
          absl::StrCat(entry.outcome(), " (and ", refused.left_out, " times before)"));
    refused = {now, 0};
  }
  Add(std::move(entry));
}

absl::StatusOr<AuditReply> Audit::Last(int count) const {
  std::string text;
  {
    MutexLock lock(&mutex_);
    for (const char* suffix : {".1", ""}) {
      const auto part = ReadSmallFile(file_ + suffix, 2 * kAuditBytes);
      if (absl::IsNotFound(part.status())) continue;
      RETURN_IF_ERROR(part.status());
      absl::StrAppend(&text, *part, "\n");  // a power cut may have left half a line
    }
  }
  std::vector<AuditEntry> all;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    if (AuditEntry entry; ParseLine(line, &entry)) all.push_back(std::move(entry));
  }
  const size_t last = static_cast<size_t>(std::clamp(count, 0, kMaxAuditEntries));
  const size_t first = all.size() - std::min(all.size(), last);
  AuditReply reply;
  for (size_t i = first; i < all.size(); ++i) *reply.add_entries() = std::move(all[i]);
  return reply;
}

}  // namespace isthmus::coordinator
