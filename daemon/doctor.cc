#include "daemon/doctor.h"

#include <grpcpp/grpcpp.h>

#include <cmath>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/rpc/channel.h"
#include "base/tls/expiry.h"
#include "daemon/flags.h"
#include "daemon/resources.h"
#include "daemon/state/identity.h"

namespace isthmus::daemon {
namespace {

constexpr double kGiB = 1 << 30;

std::string HostPart(const std::string& address) { return address.substr(0, address.rfind(':')); }

Finding LookAtCoordinator(const DaemonOptions& options, absl::Duration patience) {
  Finding f{Finding::kOk, "coordinator", options.coordinator, ""};
  const rpc::ChannelOptions channel_options = rpc::ToCoordinator(options.dialling);
  const auto channel = rpc::MakeChannel(options.coordinator, channel_options);
  if (channel->WaitForConnected(rpc::DeadlineAfter(patience))) {
    f.text = absl::StrCat(options.coordinator, " answers");
    return f;
  }
  f.level = Finding::kFail;
  f.text =
      absl::StrCat(options.coordinator, " does not answer within ", absl::FormatDuration(patience));
  if (const std::string why = rpc::WhyNoConnection(options.coordinator, channel_options, patience);
      !why.empty()) {
    f.text = why;
    f.cure = "isthmus ca list shows the certificates; deploy/SECURITY.md";
    return f;
  }
  f.cure =
      "see that isthmus-coordinator runs there, that its --listen is not 127.0.0.1, and that its "
      "port is open to this host";
  return f;
}

Finding LookAtData(const std::string& folder) {
  Finding f{Finding::kOk, "--data-dir", folder, ""};
  std::error_code error;
  const absl::Status there = CheckDataDir(folder);
  const bool empty = there.ok() && std::filesystem::is_empty(folder, error);
  if (!there.ok()) {
    f.level = Finding::kFail;
    f.text = std::string(there.message());
    f.cure = "make it, or name another one";
  } else if (error) {
    f.level = Finding::kFail;
    f.text = absl::StrCat(folder, ": ", error.message());
    f.cure = "name a folder that this user may read";
  } else if (empty) {
    f.level = Finding::kWarn;
    f.text =
        absl::StrCat(folder, " is empty: this host can hold neither the first nor the last stage");
    f.cure = "put the corpus there, the same bytes on every host: deploy/fetch-data.sh, rsync";
  }
  return f;
}

// Of a daemon that joined the one it renews by itself.
Finding LookAtCertificate(const tls::Certificate& certificate) {
  Finding f{Finding::kOk, "certificate",
            absl::StrCat(tls::Words(certificate.who), " until ", tls::DayOf(certificate.until)),
            ""};
  const std::string ends = tls::ExpiryWarning(certificate, tls::Today());
  if (ends.empty()) return f;
  f.level = Finding::kWarn;
  f.text = ends;
  f.cure = "where it came by --join: see in the daemon's log why it is not renewed";
  return f;
}

Finding LookAtMemory(const DaemonOptions& options) {
  const int64_t bytes = options.memory_bytes > 0 ? options.memory_bytes : UsableMemoryBytes();
  Finding f{Finding::kOk, "memory",
            absl::StrCat(std::round(10 * static_cast<double>(bytes) / kGiB) / 10,
                         " GiB may be planned with"),
            ""};
  if (bytes >= int64_t{1} << 30) return f;
  f.level = Finding::kWarn;
  f.cure = "little for a stage: free some, or raise the container's limit";
  return f;
}

}  // namespace

Finding JudgeAdvertised(const std::string& address, bool loopback, bool asked_for) {
  Finding f{Finding::kOk, "address for others", address, ""};
  if (loopback) {
    f.level = Finding::kWarn;
    f.text = absl::StrCat(address, " is this host alone: daemons of other hosts can't reach it");
    f.cure = "give --advertise HOST:PORT, as the other daemons reach this host";
  } else if (!asked_for) {
    absl::StrAppend(&f.text, ", found out; behind NAT give --advertise HOST:PORT");
  }
  return f;
}

Finding JudgeBlas(double product_flops_per_s, int threads, const std::string& device,
                  const std::string& warning) {
  Finding f{warning.empty() ? Finding::kOk : Finding::kWarn, "matrix products",
            absl::StrCat(std::round(product_flops_per_s / 1e8) / 10, " GFLOP/s on ", device,
                         " with ", threads, " threads"),
            warning};
  return f;
}

std::vector<Finding> Examine(const DaemonOptions& options, absl::Duration patience) {
  std::vector<Finding> findings = {LookAtPort("--listen", options.listen)};
  if (!options.http.empty()) findings.push_back(LookAtPort("--http", options.http));
  bool loopback = false;
  std::string address = options.advertise;
  if (address.empty()) {
    address = absl::StrCat(AdvertisedHost(HostPart(options.listen), options.coordinator, &loopback),
                           ":", options.listen.substr(options.listen.rfind(':') + 1));
  } else {
    loopback = absl::StartsWith(address, "127.") || absl::StartsWith(address, "localhost:") ||
               absl::StartsWith(address, "[::1]:");
  }
  findings.push_back(JudgeAdvertised(address, loopback, !options.advertise.empty()));
  findings.push_back(LookAtCoordinator(options, patience));
  if (options.tls != nullptr)
    findings.push_back(LookAtCertificate(options.tls->folder().certificate));
  findings.push_back(LookAtData(options.data_dir));
  findings.push_back(LookAtDisk(options.state_dir));
  // One that is there: the examination makes none.
  if (std::error_code error; std::filesystem::exists(options.state_dir + "/lock", error)) {
    if (const auto state = StateDir::Open(options.state_dir); !state.ok())
      findings.push_back(
          {Finding::kFail, "--state-dir", std::string(state.status().message()), ""});
  }
  findings.push_back(LookAtMemory(options));
  for (Finding& finding : std::vector<Finding>{LookAtFiles(), LookAtThreads(), LookAtClock()})
    findings.push_back(std::move(finding));
  return findings;
}

}  // namespace isthmus::daemon
