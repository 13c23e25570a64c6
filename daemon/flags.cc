#include "daemon/flags.h"

#include <sys/stat.h>

#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/rpc/channel.h"
#include "base/status.h"

namespace isthmus::daemon {
namespace {

constexpr double kLeastMemoryBytes = 64 << 20;  // below it not even the smallest stage fits
constexpr double kMostBytes = 1LL << 50;        // 1 PiB: more is a typing error
constexpr size_t kMaxNameBytes = 255;           // as the coordinator has it
constexpr int kMaxDeviceDigits = 3;

absl::Status Bad(absl::string_view flag, absl::string_view value, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(flag, " '", value, "': ", why));
}

// Bytes of "4GiB", "512m", "1000000"; every unit is a power of 1024. Negative: not an amount.
double BytesOf(const std::string& text) {
  if (text.empty() || !absl::ascii_isdigit(static_cast<unsigned char>(text.front()))) return -1;
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  std::string unit = absl::AsciiStrToLower(absl::StripAsciiWhitespace(end));
  if (unit.empty() || unit == "b") return number;
  const size_t power = std::string("kmgtpe").find(unit.front());
  const std::string rest = unit.substr(1);
  if (power == std::string::npos || (rest != "" && rest != "b" && rest != "i" && rest != "ib"))
    return -1;
  return number * std::pow(1024.0, static_cast<double>(power + 1));
}

absl::Status ApplyBytes(absl::string_view flag, const std::string& text, double least,
                        int64_t* bytes) {
  if (text.empty()) return absl::OkStatus();
  const double value = BytesOf(text);
  if (!(value >= 0)) return Bad(flag, text, "must be bytes, for example 4GiB or 500000000");
  if (value < least) {
    return Bad(flag, text,
               absl::StrCat("must be at least ", static_cast<int64_t>(least), " bytes"));
  }
  if (value > kMostBytes) return Bad(flag, text, "must be at most 1PiB");
  *bytes = static_cast<int64_t>(value);
  return absl::OkStatus();
}

// One code point of UTF-8 at the head of `text`: its bytes, 0 if it is malformed.
size_t CodePointBytes(absl::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  if (lead < 0x80) return 1;
  if (lead < 0xc2 || lead > 0xf4) return 0;
  const size_t bytes = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  if (text.size() < bytes) return 0;
  for (size_t i = 1; i < bytes; ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xc0) != 0x80) return 0;
  }
  const auto second = static_cast<unsigned char>(text[1]);
  if ((lead == 0xe0 && second < 0xa0) || (lead == 0xed && second > 0x9f) ||
      (lead == 0xf0 && second < 0x90) || (lead == 0xf4 && second > 0x8f)) {
    return 0;  // longer than needed, a surrogate, or past the last code point
  }
  return bytes;
}

absl::Status CheckName(const std::string& name) {
  if (name.size() > kMaxNameBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("--name: has ", name.size(), " bytes; at most ", kMaxNameBytes));
  }
  for (absl::string_view rest = name; !rest.empty();) {
    const size_t bytes = CodePointBytes(rest);
    if (bytes == 0) return absl::InvalidArgumentError("--name: must be UTF-8");
    if (absl::ascii_iscntrl(static_cast<unsigned char>(rest[0])))
      return absl::InvalidArgumentError("--name: must not have line breaks or control characters");
    rest.remove_prefix(bytes);
  }
  return absl::OkStatus();
}

absl::Status CheckDevice(const std::string& device) {
  absl::string_view rest = device;
  if (rest == "cpu" || rest == "cuda") return absl::OkStatus();
  const bool good = absl::ConsumePrefix(&rest, "cuda:") && !rest.empty() &&
                    rest.size() <= kMaxDeviceDigits &&
                    rest.find_first_not_of("0123456789") == absl::string_view::npos;
  return good ? absl::OkStatus() : Bad("--device", device, "must be cpu, cuda or cuda:N");
}

absl::Status CheckDialled(const std::string& flag, const std::string& address) {
  RETURN_IF_ERROR(rpc::CheckAddress(flag, address));
  const std::string port = address.substr(address.rfind(':') + 1);
  if (port.find_first_not_of('0') == std::string::npos)
    return Bad(flag, address, "port 0 can't be dialled; give the port that is listened on");
  return absl::OkStatus();
}

absl::Status CheckDataDir(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) {
    return Bad("--data-dir", path,
               absl::StrCat(std::strerror(errno),
                            "; it must be a directory, where the jobs' data "
                            "paths start (it may be empty)"));
  }
  return S_ISDIR(info.st_mode) ? absl::OkStatus()
                               : Bad("--data-dir", path, "is a file; give the directory it is in");
}

}  // namespace

absl::Status ApplyByteFlags(const ByteFlags& bytes, DaemonOptions* options) {
  RETURN_IF_ERROR(ApplyBytes("--memory", bytes.memory, kLeastMemoryBytes, &options->memory_bytes));
  return ApplyBytes("--disk", bytes.disk, 1, &options->disk_bytes);
}

absl::Status CheckFlags(const DaemonOptions& options) {
  RETURN_IF_ERROR(CheckDialled("--coordinator", options.coordinator));
  RETURN_IF_ERROR(rpc::CheckAddress("--listen", options.listen));
  if (!options.advertise.empty()) RETURN_IF_ERROR(CheckDialled("--advertise", options.advertise));
  if (!options.http.empty()) RETURN_IF_ERROR(rpc::CheckAddress("--http", options.http));
  RETURN_IF_ERROR(CheckName(options.name));
  RETURN_IF_ERROR(CheckDevice(options.device));
  return CheckDataDir(options.data_dir);
}

}  // namespace isthmus::daemon
