#include "daemon/data_report.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/utf8.h"
#include "proto/data/data_files.h"
#include "worker/data/file_look.h"

namespace isthmus::daemon {
namespace {

namespace fs = std::filesystem;

constexpr int kDataDepth = 2;  // directories below the data directory
constexpr int kMaxDirectories = 4096;
constexpr size_t kMaxComplaints = 100;  // names that are left out, each in the log once

// One line of any bytes.
std::string Printable(const std::string& name) {
  std::string out = ToUtf8(name);
  for (char& c : out) {
    if (static_cast<unsigned char>(c) < 0x20) c = '?';
  }
  return out;
}

DataFile Describe(const std::string& name, const worker::WatchedFile& file,
                  const worker::FileLook& look) {
  DataFile out;
  out.set_path(name);
  out.set_bytes(file.bytes());
  out.set_format(look.format);
  out.set_highest_id(look.highest_id);
  out.set_contents(look.contents);
  out.set_problem(look.problem);
  out.set_tokens(look.tokens);
  return out;
}

}  // namespace

std::vector<DataFile> ListDataFiles(const std::string& directory, int limit, bool* complete,
                                    std::vector<std::string>* unnamed) {
  std::vector<DataFile> files;
  std::vector<std::pair<fs::path, int>> directories = {{directory, 0}};
  std::error_code error;
  *complete = fs::is_directory(directory, error);
  // By levels: where the limit is met, what lies near the top is listed.
  for (size_t i = 0; i < directories.size(); ++i) {
    const auto [path, depth] = directories[i];
    const auto options = fs::directory_options::skip_permission_denied;
    fs::directory_iterator at(path, options, error);
    for (; !error && at != fs::directory_iterator(); at.increment(error)) {
      const std::string name = at->path().lexically_relative(directory).generic_string();
      std::error_code ignored;
      if (!IsUtf8(name)) {
        unnamed->push_back(name);
      } else if (at->is_directory(ignored)) {
        const bool enter = depth < kDataDepth && directories.size() < kMaxDirectories;
        if (enter) directories.emplace_back(at->path(), depth + 1);
        *complete = *complete && enter;
      } else if (at->is_regular_file(ignored)) {
        const auto bytes = at->file_size(ignored);
        if (ignored) continue;
        if (static_cast<int>(files.size()) >= limit) {
          *complete = false;
          break;
        }
        DataFile& file = files.emplace_back();
        file.set_path(name);
        file.set_bytes(static_cast<int64_t>(bytes));
      }
    }
    if (error) *complete = false;
  }
  std::sort(files.begin(), files.end(),
            [](const DataFile& a, const DataFile& b) { return a.path() < b.path(); });
  return files;
}

DataReport::Stamp DataReport::StampOf(const std::string& file) const {
  struct stat info;
  if (::stat(absl::StrCat(directory_, "/", file).c_str(), &info) != 0) return {};
  return {static_cast<int64_t>(info.st_ino), static_cast<int64_t>(info.st_size),
          info.st_ctim.tv_sec * int64_t{1000000000} + info.st_ctim.tv_nsec};
}

bool DataReport::Known(const std::string& file, const Stamp& stamp) {
  MutexLock lock(&mutex_);
  const auto seen = seen_.find(file);
  return seen != seen_.end() && seen->second.stamp == stamp;
}

void DataReport::Complain(const std::vector<std::string>& unnamed) {
  MutexLock lock(&mutex_);
  for (const std::string& name : unnamed) {
    if (complained_of_.size() >= kMaxComplaints || !complained_of_.insert(name).second) continue;
    LogWarning("--data-dir ", Printable(directory_), ": '", Printable(name),
               "' is left out, its name is not UTF-8: give it another one if jobs are to read it");
  }
}

DataListing DataReport::List() {
  DataListing listing;
  bool complete = false;
  std::vector<std::string> unnamed;
  std::vector<DataFile> files = ListDataFiles(directory_, kMaxDataFiles, &complete, &unnamed);
  Complain(unnamed);
  listing.set_complete(complete);
  for (DataFile& file : files) {
    const Stamp stamp = StampOf(file.path());
    MutexLock lock(&mutex_);
    const auto seen = seen_.find(file.path());
    if (seen != seen_.end() && seen->second.stamp == stamp) {
      *listing.add_files() = seen->second.file;
    } else {
      *listing.add_files() = std::move(file);
    }
  }
  return listing;
}

bool DataReport::Look(const std::atomic<bool>& stop) {
  bool complete = false;
  std::vector<std::string> unnamed;
  const std::vector<DataFile> files = ListDataFiles(directory_, kMaxDataFiles, &complete, &unnamed);
  std::set<std::string> names;
  int64_t budget = kRoundBytes;
  for (const DataFile& file : files) {
    names.insert(file.path());
    const Stamp stamp = StampOf(file.path());
    if (Known(file.path(), stamp)) continue;
    if (budget <= 0 || stop) return false;
    Seen seen{stamp, file};
    const auto opened = worker::WatchedFile::Open(absl::StrCat(directory_, "/", file.path()));
    if (absl::IsPermissionDenied(opened.status())) {
      seen.file.set_format(kFormatUnreadable);
      seen.file.set_problem(ToUtf8(opened.status().message()));
    } else {
      if (!opened.ok()) continue;
      budget -= std::min((*opened)->bytes(), kFileBytes);
      const auto look = worker::LookAt(**opened, kFileBytes);
      if (!look.ok()) continue;  // it changes right now, or the disk fails: next time
      seen.file = Describe(file.path(), **opened, *look);
    }
    MutexLock lock(&mutex_);
    seen_[file.path()] = std::move(seen);
  }
  MutexLock lock(&mutex_);
  for (auto it = seen_.begin(); it != seen_.end();)
    it = names.count(it->first) > 0 ? std::next(it) : seen_.erase(it);
  return true;
}

}  // namespace isthmus::daemon
