#include "deploy/testnet/run_dir.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace isthmus::testnet {
namespace {

absl::Status SystemError(absl::string_view what) { return absl::ErrnoToStatus(errno, what); }

}  // namespace

std::string FormatWanInfo(const WanInfo& info) {
  nlohmann::ordered_json json;
  json["pid"] = info.pid;
  json["mtu"] = info.mtu;
  json["seed"] = info.seed;
  json["scheduling"] = info.scheduling;
  json["nodes"] = nlohmann::ordered_json::array();
  for (const WanNode& node : info.nodes) {
    json["nodes"].push_back(
        {{"name", node.name}, {"address", node.address}, {"ns_path", node.ns_path}});
  }
  return json.dump(2) + "\n";
}

absl::StatusOr<WanInfo> ParseWanInfo(absl::string_view text, absl::string_view path) {
  try {
    const nlohmann::json json = nlohmann::json::parse(text);
    WanInfo info;
    info.pid = json.at("pid").get<int>();
    info.mtu = json.at("mtu").get<int>();
    info.seed = json.at("seed").get<uint64_t>();
    info.scheduling = json.at("scheduling").get<std::string>();
    for (const auto& node : json.at("nodes")) {
      info.nodes.push_back({node.at("name").get<std::string>(),
                            node.at("address").get<std::string>(),
                            node.at("ns_path").get<std::string>()});
    }
    return info;
  } catch (const nlohmann::json::exception& error) {
    return absl::DataLossError(absl::StrCat(path, " is not an emulator's file: ", error.what()));
  }
}

absl::StatusOr<RunDir> RunDir::Take(const std::string& path) {
  RunDir dir;
  if (path.empty()) {
    const char* base = std::getenv("TMPDIR");
    std::string made =
        absl::StrCat(base != nullptr && *base != '\0' ? base : "/tmp", "/isthmus-wan.XXXXXX");
    if (mkdtemp(made.data()) == nullptr) return SystemError(absl::StrCat("mkdtemp ", made));
    dir.path_ = made;
    dir.ours_ = true;
  } else {
    std::error_code error;
    std::filesystem::create_directories(path, error);
    if (error) return absl::ErrnoToStatus(error.value(), absl::StrCat("can't make ", path));
    dir.path_ = std::filesystem::absolute(path, error).string();
  }
  dir.lock_ = UniqueFd(open(dir.File("lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!dir.lock_.ok()) return SystemError(absl::StrCat("open ", dir.File("lock")));
  if (flock(dir.lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    return absl::AlreadyExistsError(absl::StrCat("an emulator is running in ", dir.path_,
                                                 ": end it or give another --run-dir"));
  }
  // What an emulator that was killed left.
  unlink(dir.File("wan.json").c_str());
  unlink(dir.File("control.sock").c_str());
  return dir;
}

std::string RunDir::File(absl::string_view name) const { return absl::StrCat(path_, "/", name); }

absl::Status RunDir::WriteFile(absl::string_view name, absl::string_view text) const {
  const std::string final_path = File(name);
  const std::string temporary = absl::StrCat(final_path, ".tmp");
  std::ofstream out(temporary, std::ios::binary | std::ios::trunc);
  out << text;
  out.close();
  if (!out) return SystemError(absl::StrCat("write ", temporary));
  if (rename(temporary.c_str(), final_path.c_str()) != 0) {
    return SystemError(absl::StrCat("rename to ", final_path));
  }
  return absl::OkStatus();
}

void RunDir::Remove() {
  unlink(File("wan.json").c_str());
  unlink(File("control.sock").c_str());
  if (!ours_) return;
  unlink(File("wan-stats.json").c_str());
  unlink(File("lock").c_str());
  rmdir(path_.c_str());
}

absl::StatusOr<std::string> ResolveRunDir(const std::string& run_dir) {
  if (!run_dir.empty()) return run_dir;
  const char* from_environment = std::getenv("ISTHMUS_WAN_DIR");
  if (from_environment == nullptr || *from_environment == '\0') {
    return absl::InvalidArgumentError(
        "which emulator? Give --run-dir DIR (the directory of its `ready` line) or set "
        "ISTHMUS_WAN_DIR");
  }
  return std::string(from_environment);
}

absl::StatusOr<WanInfo> ReadWanInfo(const std::string& run_dir) {
  ASSIGN_OR_RETURN(const std::string dir, ResolveRunDir(run_dir));
  const std::string path = absl::StrCat(dir, "/wan.json");
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    return absl::NotFoundError(absl::StrCat("no ", path, ": no emulator is ready there"));
  }
  const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  UniqueFd lock(open(absl::StrCat(dir, "/lock").c_str(), O_RDONLY | O_CLOEXEC));
  if (lock.ok() && flock(lock.get(), LOCK_SH | LOCK_NB) == 0) {
    return absl::UnavailableError(
        absl::StrCat("the emulator of ", dir, " has ended: start it again"));
  }
  return ParseWanInfo(text, path);
}

}  // namespace isthmus::testnet
