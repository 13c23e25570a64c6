// The emulator's addresses and the two things it does with an IPv4 packet: look where it goes, and
// refuse it.
//
// Node i has 10.77.(i / 250).(i % 250 + 1) in 10.77.0.0/16; refusals come from 10.77.255.254.
//
// Thread: pure functions.
#ifndef ISTHMUS_DEPLOY_TESTNET_IPV4_H_
#define ISTHMUS_DEPLOY_TESTNET_IPV4_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"

namespace isthmus::testnet {

inline constexpr int kPrefixLength = 16;

uint32_t NodeAddress(int node);  // host byte order
int NodeOfAddress(
    uint32_t address);  // -1 outside the nodes' form; the caller knows how many there are
std::string FormatAddress(uint32_t address);

struct Ipv4Header {
  uint32_t source = 0;  // host byte order
  uint32_t destination = 0;
};
// Nothing for what is not a whole IPv4 packet.
std::optional<Ipv4Header> ParseIpv4(absl::Span<const uint8_t> packet);

// The ICMP answer "destination unreachable, administratively prohibited" to `packet`, so that a
// connect() to a place outside the emulated network fails at once. Empty where ICMP forbids an
// answer (ICMP errors, fragments).
std::vector<uint8_t> MakeRefusal(absl::Span<const uint8_t> packet);

}  // namespace isthmus::testnet

#endif  // ISTHMUS_DEPLOY_TESTNET_IPV4_H_
