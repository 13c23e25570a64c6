#include "daemon/flags.h"

#include <sys/stat.h>

#include <algorithm>
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
#include "base/bit_rate.h"
#include "base/rpc/channel.h"
#include "base/rpc/listening.h"
#include "base/status.h"
#include "base/utf8.h"

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

absl::Status CheckName(const std::string& name) {
  if (name.size() > kMaxNameBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("--name: has ", name.size(), " bytes; at most ", kMaxNameBytes));
  }
  if (!IsUtf8(name)) return absl::InvalidArgumentError("--name: must be UTF-8");
  if (std::any_of(name.begin(), name.end(), [](unsigned char c) { return absl::ascii_iscntrl(c); }))
    return absl::InvalidArgumentError("--name: must not have line breaks or control characters");
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

}  // namespace

absl::Status ApplyByteFlags(const ByteFlags& bytes, DaemonOptions* options) {
  RETURN_IF_ERROR(ApplyBytes("--memory", bytes.memory, kLeastMemoryBytes, &options->memory_bytes));
  return ApplyBytes("--disk", bytes.disk, 1, &options->disk_bytes);
}

absl::Status ApplyUplink(const std::string& text, DaemonOptions* options) {
  if (text.empty()) return absl::OkStatus();
  const auto rate = ParseBitRate(text);
  if (!rate.ok() || *rate < kMinUplink || *rate > kMaxUplink) {
    return Bad("--uplink", text,
               "must be what this host can send, from 500kbit to 100Gbit a second, for example "
               "20Mbit");
  }
  options->uplink_bits_per_s = *rate;
  return absl::OkStatus();
}

absl::Status ApplyTlsDir(DaemonOptions* options) {
  options->dialling.loopback_only = !options->insecure;
  if (options->tls_dir.empty()) return absl::OkStatus();
  auto loaded = rpc::TlsIdentity::Load(options->tls_dir, {tls::Role::kWorker});
  if (!loaded.ok()) return Annotate(loaded.status(), "--tls-dir");
  const std::string& name = (*loaded)->who().name;
  if (!options->name.empty() && options->name != name) {
    return Bad(
        "--name", options->name,
        absl::StrCat("the certificate in --tls-dir is that of node ", name, ": leave --name out"));
  }
  options->name = name;
  options->tls = *std::move(loaded);
  options->dialling.tls = options->tls;
  return absl::OkStatus();
}

absl::Status CheckFlags(const DaemonOptions& options) {
  RETURN_IF_ERROR(CheckDialled("--coordinator", options.coordinator));
  RETURN_IF_ERROR(rpc::CheckAddress("--listen", options.listen));
  const rpc::Secured secured = {!options.tls_dir.empty(), options.insecure};
  RETURN_IF_ERROR(rpc::CheckListening(options.listen, secured, tls::Role::kWorker));
  RETURN_IF_ERROR(
      rpc::CheckDialling("--coordinator", options.coordinator, secured, tls::Role::kWorker));
  if (!options.advertise.empty()) RETURN_IF_ERROR(CheckDialled("--advertise", options.advertise));
  if (options.advertise.empty() && rpc::IsLoopback(options.listen) &&
      !rpc::IsLoopback(options.coordinator)) {
    return Bad("--listen", options.listen,
               absl::StrCat("the coordinator ", options.coordinator,
                            " is another machine, and daemons there can't reach this one: give "
                            "--listen 0.0.0.0:7071, or the HOST:PORT that they reach by "
                            "--advertise"));
  }
  if (!options.http.empty()) RETURN_IF_ERROR(rpc::CheckAddress("--http", options.http));
  RETURN_IF_ERROR(CheckName(options.name));
  return CheckDevice(options.device);
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

}  // namespace isthmus::daemon
