// Prints how exact the emulator is on this machine: the tables of deploy/testnet/README.md.
//
//   wan_measure [--busy N]      N threads spin at normal priority meanwhile

#include <sys/resource.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/deploy/wan_probe.h"

namespace isthmus::testnet {
namespace {

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "wan_measure: %s\n", status.ToString().c_str());
  return 1;
}

int MeasureRoundTrips() {
  std::printf(
      "| round trip set, ms | lowest | median | 99th percentile | packets lost "
      "|\n|---|---|---|---|---|\n");
  for (double ms : {1.0, 25.0, 100.0}) {
    absl::StatusOr<Wan> wan =
        StartWan({"--nodes", "2", "--rate", "1Gbit", "--delay", absl::StrCat(ms / 2, "ms")});
    if (!wan.ok()) return Fail(wan.status());
    absl::StatusOr<RoundTrips> t =
        PingPong(wan->node(0), wan->node(1), ms > 50 ? 100 : 200, absl::Seconds(2));
    if (!t.ok() || t->ms.empty()) return Fail(t.status());
    std::printf("| %g | %.3f | %.3f | %.3f | %zu |\n", ms, t->ms.front(), t->median_ms(),
                t->ms[t->ms.size() * 99 / 100], t->sent - t->ms.size());
    std::fflush(stdout);
  }
  return 0;
}

int MeasureRates() {
  std::printf(
      "| rate set, Mbit/s | MTU | UDP, Mbit/s | TCP goodput, Mbit/s | of the rate less headers | "
      "emulator's CPU, "
      "%% of a core |\n|---|---|---|---|---|---|\n");
  for (int mbit : {5, 100, 1000}) {
    for (int mtu : {1500, 9000}) {
      absl::StatusOr<Wan> wan = StartWan({"--nodes", "2", "--rate", absl::StrCat(mbit, "Mbit"),
                                          "--delay", "5ms", "--mtu", absl::StrCat(mtu)});
      if (!wan.ok()) return Fail(wan.status());
      const int64_t count = int64_t{mbit} * 1'000'000 / 8 / mtu * 2;
      absl::StatusOr<UdpResult> udp =
          UdpSend(wan->node(0), wan->node(1), mtu, mbit * 1.1e6, count, absl::Milliseconds(500));
      if (!udp.ok()) return Fail(udp.status());
      absl::StatusOr<double> cpu_before = EmulatorCpuSeconds(*wan);
      const absl::Time start = absl::Now();
      absl::StatusOr<double> tcp =
          TcpGoodput(wan->node(0), wan->node(1), absl::Seconds(2), absl::Seconds(4));
      if (!tcp.ok()) return Fail(tcp.status());
      absl::StatusOr<double> cpu_after = EmulatorCpuSeconds(*wan);
      if (!cpu_before.ok() || !cpu_after.ok()) return Fail(cpu_after.status());
      std::printf("| %d | %d | %.1f | %.1f | %.1f %% | %.1f |\n", mbit, mtu, udp->bits_per_s / 1e6,
                  *tcp / 1e6, *tcp / 1e4 / mbit * mtu / (mtu - 52),
                  100 * (*cpu_after - *cpu_before) / absl::ToDoubleSeconds(absl::Now() - start));
      std::fflush(stdout);
    }
  }
  return 0;
}

int Main(int argc, char** argv) {
  int busy = 0;
  if (argc == 3 && std::strcmp(argv[1], "--busy") == 0) {
    busy = std::atoi(argv[2]);
  } else if (argc != 1) {
    std::fprintf(stderr, "usage: wan_measure [--busy N]\n");
    return 2;
  }
  std::atomic<bool> stop{false};
  std::vector<std::thread> spinners;
  for (int i = 0; i < busy; ++i) {
    spinners.emplace_back([&] {
      while (!stop) {
      }
    });
  }
  int code = MeasureRoundTrips();
  if (code == 0) code = MeasureRates();
  stop = true;
  for (std::thread& t : spinners) t.join();
  return code;
}

}  // namespace
}  // namespace isthmus::testnet

int main(int argc, char** argv) { return isthmus::testnet::Main(argc, argv); }
