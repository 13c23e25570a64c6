#include "worker/study/journal.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "nlohmann/json.hpp"

namespace isthmus::study {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMaxBytes = int64_t{256} << 20;

absl::Status System(const std::string& what) {
  return absl::ResourceExhaustedError(absl::StrCat(what, ": ", std::strerror(errno)));
}

Json ToJson(const std::vector<FrameCost>& frames) {
  Json list = Json::array();
  for (const FrameCost& f : frames)
    list.push_back(
        {{"wire_bytes", f.wire_bytes}, {"encode_s", f.encode_s}, {"decode_s", f.decode_s}});
  return list;
}

std::vector<FrameCost> ToFrames(const Json& list) {
  std::vector<FrameCost> frames;
  for (const Json& f : list) {
    frames.push_back({f.at("wire_bytes").get<double>(), f.at("encode_s").get<double>(),
                      f.at("decode_s").get<double>()});
  }
  return frames;
}

CellRecord ToRecord(const Json& json) {
  CellRecord r;
  json.at("cell").get_to(r.key);
  json.at("setting").get_to(r.setting);
  json.at("boundaries").get_to(r.where);
  json.at("seed").get_to(r.seed);
  json.at("loss").get_to(r.loss);
  json.at("validation_loss").get_to(r.validation);
  json.at("steps").get_to(r.steps);
  json.at("raw_bytes").get_to(r.raw_bytes);
  json.at("wire_bytes").get_to(r.wire_bytes);
  json.at("encode_s").get_to(r.encode_s);
  json.at("decode_s").get_to(r.decode_s);
  json.at("seconds").get_to(r.seconds);
  r.wire.up = ToFrames(json.at("up"));
  r.wire.down = ToFrames(json.at("down"));
  json.at("tied_bytes").get_to(r.wire.tied_bytes);
  for (const Json& e : json.at("energies")) {
    r.energies.push_back({e.at("what").get<std::string>(), e.at("where").get<std::string>(),
                          e.at("share").get<double>()});
  }
  return r;
}

}  // namespace

std::string ToJsonLine(const CellRecord& r) {
  Json energies = Json::array();
  for (const EnergyShare& e : r.energies)
    energies.push_back({{"what", e.what}, {"where", e.where}, {"share", e.share}});
  const Json json = {{"cell", r.key},
                     {"setting", r.setting},
                     {"boundaries", r.where},
                     {"seed", r.seed},
                     {"loss", r.loss},
                     {"validation_loss", r.validation},
                     {"steps", r.steps},
                     {"raw_bytes", r.raw_bytes},
                     {"wire_bytes", r.wire_bytes},
                     {"encode_s", r.encode_s},
                     {"decode_s", r.decode_s},
                     {"seconds", r.seconds},
                     {"up", ToJson(r.wire.up)},
                     {"down", ToJson(r.wire.down)},
                     {"tied_bytes", r.wire.tied_bytes},
                     {"energies", energies}};
  return json.dump();
}

absl::StatusOr<CellRecord> FromJsonLine(const std::string& line) {
  try {
    return ToRecord(Json::parse(line));
  } catch (const Json::exception& error) {
    return absl::InvalidArgumentError(error.what());
  }
}

absl::StatusOr<std::unique_ptr<Journal>> Journal::Open(const std::string& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error)
    return absl::ResourceExhaustedError(
        absl::StrCat("can't make the directory ", directory, ": ", error.message()));
  const std::string path = directory + "/cells.jsonl";
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) return System(absl::StrCat("can't open ", path));
  std::unique_ptr<Journal> journal(new Journal(path, fd));
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    return absl::AlreadyExistsError(absl::StrCat("another study writes to ", directory,
                                                 ": wait for its end or name another --out"));
  }
  RETURN_IF_ERROR(journal->Load());
  return journal;
}

Journal::~Journal() { close(fd_); }

absl::Status Journal::Load() {
  std::error_code error;
  const bool regular = std::filesystem::is_regular_file(path_, error);
  const int64_t bytes =
      regular ? static_cast<int64_t>(std::filesystem::file_size(path_, error)) : 0;
  if (!regular || error || bytes > kMaxBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        path_, " can't be a study's: ",
        regular ? absl::StrCat(bytes, " bytes") : "it is no regular file", "; name another --out"));
  }
  std::ifstream in(path_, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  size_t start = 0;
  int number = 0;
  for (size_t end; (end = text.find('\n', start)) != std::string::npos; start = end + 1) {
    ++number;
    const absl::Status status = Take(text.substr(start, end - start));
    if (!status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(path_, ":", number,
                                                     ": not a line of a study (", status.message(),
                                                     "): delete the line or name another --out"));
    }
  }
  if (start < text.size() && ftruncate(fd_, static_cast<off_t>(start)) != 0)
    return System(absl::StrCat("can't drop the torn last line of ", path_));
  return absl::OkStatus();
}

absl::Status Journal::Take(const std::string& line) {
  const Json json = Json::parse(line, nullptr, false);
  if (json.is_object() && json.contains("compute")) {
    try {
      ComputeCost& cost = computes_[json.at("compute").get<std::string>()];
      json.at("forward_s").get_to(cost.forward_s);
      json.at("backward_s").get_to(cost.backward_s);
      return absl::OkStatus();
    } catch (const Json::exception& error) {
      return absl::InvalidArgumentError(error.what());
    }
  }
  ASSIGN_OR_RETURN(CellRecord record, FromJsonLine(line));
  records_[record.key] = std::move(record);
  return absl::OkStatus();
}

const CellRecord* Journal::Find(const std::string& key) const {
  const auto found = records_.find(key);
  return found == records_.end() ? nullptr : &found->second;
}

const ComputeCost* Journal::Compute(const std::string& key) const {
  const auto found = computes_.find(key);
  return found == computes_.end() ? nullptr : &found->second;
}

absl::Status Journal::Append(const CellRecord& record) {
  RETURN_IF_ERROR(WriteLine(ToJsonLine(record)));
  records_[record.key] = record;
  return absl::OkStatus();
}

absl::Status Journal::AppendCompute(const std::string& key, const ComputeCost& cost) {
  const Json json = {
      {"compute", key}, {"forward_s", cost.forward_s}, {"backward_s", cost.backward_s}};
  RETURN_IF_ERROR(WriteLine(json.dump()));
  computes_[key] = cost;
  return absl::OkStatus();
}

absl::Status Journal::WriteLine(const std::string& line) {
  const std::string text = line + "\n";
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = write(fd_, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      return Annotate(System(absl::StrCat("can't write ", path_)),
                      "the cells before are kept; make room, and the same command goes on");
    }
    done += static_cast<size_t>(n);
  }
  return fdatasync(fd_) == 0 ? absl::OkStatus() : System(absl::StrCat("can't sync ", path_));
}

}  // namespace isthmus::study
