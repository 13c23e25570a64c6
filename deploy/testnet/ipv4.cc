#include "deploy/testnet/ipv4.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace isthmus::testnet {
namespace {

constexpr uint32_t kNetwork = 10u << 24 | 77u << 16;
constexpr uint32_t kRefuser = kNetwork | 255u << 8 | 254u;
constexpr uint32_t kHostsPerRow = 250;
constexpr size_t kMinHeader = 20;

uint32_t Load32(const uint8_t* p) {
  return uint32_t{p[0]} << 24 | uint32_t{p[1]} << 16 | uint32_t{p[2]} << 8 | p[3];
}
void Store16(uint8_t* p, uint32_t v) {
  p[0] = static_cast<uint8_t>(v >> 8);
  p[1] = static_cast<uint8_t>(v);
}
void Store32(uint8_t* p, uint32_t v) {
  Store16(p, v >> 16);
  Store16(p + 2, v & 0xffff);
}

// RFC 1071.
uint16_t Checksum(const uint8_t* p, size_t n) {
  uint32_t sum = 0;
  for (size_t i = 0; i + 1 < n; i += 2) sum += uint32_t{p[i]} << 8 | p[i + 1];
  if (n % 2 != 0) sum += uint32_t{p[n - 1]} << 8;
  while (sum >> 16 != 0) sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<uint16_t>(~sum);
}

}  // namespace

uint32_t NodeAddress(int node) {
  const uint32_t i = static_cast<uint32_t>(node);
  return kNetwork | (i / kHostsPerRow) << 8 | (i % kHostsPerRow + 1);
}

int NodeOfAddress(uint32_t address) {
  if ((address & 0xffff0000u) != kNetwork) return -1;
  const uint32_t host = address & 0xff;
  if (host < 1 || host > kHostsPerRow) return -1;
  return static_cast<int>((address >> 8 & 0xff) * kHostsPerRow + host - 1);
}

std::string FormatAddress(uint32_t a) {
  return absl::StrCat(a >> 24, ".", a >> 16 & 0xff, ".", a >> 8 & 0xff, ".", a & 0xff);
}

std::optional<Ipv4Header> ParseIpv4(absl::Span<const uint8_t> packet) {
  if (packet.size() < kMinHeader || packet[0] >> 4 != 4) return std::nullopt;
  return Ipv4Header{Load32(&packet[12]), Load32(&packet[16])};
}

std::vector<uint8_t> MakeRefusal(absl::Span<const uint8_t> packet) {
  if (packet.size() < kMinHeader || packet[0] >> 4 != 4) return {};
  const size_t header = size_t{packet[0] & 0x0fu} * 4;
  if (header < kMinHeader || packet.size() < header + 8) return {};
  if ((packet[6] & 0x1f) != 0 || packet[7] != 0) return {};  // not the first fragment
  constexpr uint8_t kIcmp = 1, kEcho = 8;
  if (packet[9] == kIcmp && packet[header] != kEcho) return {};
  const size_t quoted = header + 8;
  std::vector<uint8_t> reply(kMinHeader + 8 + quoted, 0);
  reply[0] = 0x45;
  Store16(&reply[2], static_cast<uint32_t>(reply.size()));
  reply[8] = 64;  // time to live
  reply[9] = kIcmp;
  Store32(&reply[12], kRefuser);
  Store32(&reply[16], Load32(&packet[12]));
  Store16(&reply[10], Checksum(reply.data(), kMinHeader));
  uint8_t* icmp = &reply[kMinHeader];
  icmp[0] = 3;   // destination unreachable
  icmp[1] = 13;  // communication administratively prohibited
  std::copy_n(packet.begin(), quoted, icmp + 8);
  Store16(icmp + 2, Checksum(icmp, 8 + quoted));
  return reply;
}

}  // namespace isthmus::testnet
