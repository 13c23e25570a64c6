#include "deploy/testnet/ipv4.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <vector>

#include "deploy/testnet/link_table.h"

namespace isthmus::testnet {
namespace {

TEST(Ipv4, AddressesAndNodesAreOneToOne) {
  std::set<uint32_t> seen;
  for (int node = 0; node < 1000; ++node) {
    const uint32_t address = NodeAddress(node);
    EXPECT_TRUE(seen.insert(address).second);
    EXPECT_EQ(NodeOfAddress(address), node);
  }
  EXPECT_EQ(FormatAddress(NodeAddress(0)), "10.77.0.1");
  EXPECT_EQ(FormatAddress(NodeAddress(249)), "10.77.0.250");
  EXPECT_EQ(FormatAddress(NodeAddress(250)), "10.77.1.1");
}

TEST(Ipv4, OtherAddressesAreNoNode) {
  EXPECT_EQ(NodeOfAddress(0x08080808), -1);
  EXPECT_EQ(NodeOfAddress(0x0a4d0000), -1);  // 10.77.0.0
  EXPECT_EQ(NodeOfAddress(0x0a4d00ff), -1);  // 10.77.0.255
  EXPECT_EQ(NodeOfAddress(0x0a4e0001), -1);  // 10.78.0.1
}

// A UDP packet from 10.77.0.1 to 8.8.8.8.
std::vector<uint8_t> Udp() {
  std::vector<uint8_t> p = {0x45, 0, 0, 32, 0, 1, 0, 0, 64, 17, 0, 0, 10,   77,   0, 1,
                            8,    8, 8, 8,  9, 9, 0, 9, 0,  12, 0, 0, 0xaa, 0xbb, 1, 2};
  return p;
}

TEST(Ipv4, ParseRefusesWhatIsNotIpv4) {
  const auto header = ParseIpv4(Udp());
  ASSERT_TRUE(header);
  EXPECT_EQ(header->source, 0x0a4d0001u);
  EXPECT_EQ(header->destination, 0x08080808u);
  EXPECT_FALSE(ParseIpv4({}));
  EXPECT_FALSE(ParseIpv4(std::vector<uint8_t>(19, 0x45)));
  EXPECT_FALSE(ParseIpv4(std::vector<uint8_t>(40, 0x60)));  // IPv6
}

uint16_t SumOf(const uint8_t* p, size_t n) {
  uint32_t sum = 0;
  for (size_t i = 0; i < n; i += 2) sum += (uint32_t{p[i]} << 8) + (i + 1 < n ? p[i + 1] : 0);
  while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<uint16_t>(sum);
}

TEST(Ipv4, RefusalIsAValidIcmpMessageThatQuotesThePacket) {
  const std::vector<uint8_t> packet = Udp();
  const std::vector<uint8_t> reply = MakeRefusal(packet);
  ASSERT_EQ(reply.size(), 20u + 8 + 28);
  EXPECT_EQ(reply[9], 1);  // ICMP
  EXPECT_EQ(reply[20], 3);
  EXPECT_EQ(reply[21], 13);
  EXPECT_EQ(ParseIpv4(reply)->destination, 0x0a4d0001u);
  EXPECT_EQ(SumOf(reply.data(), 20), 0xffff);
  EXPECT_EQ(SumOf(reply.data() + 20, reply.size() - 20), 0xffff);
  EXPECT_EQ(std::vector<uint8_t>(reply.begin() + 28, reply.end()),
            std::vector<uint8_t>(packet.begin(), packet.begin() + 28));
}

TEST(Ipv4, NoRefusalForFragmentsErrorsAndNonsense) {
  std::vector<uint8_t> fragment = Udp();
  fragment[7] = 1;
  EXPECT_TRUE(MakeRefusal(fragment).empty());
  std::vector<uint8_t> error = Udp();
  error[9] = 1;
  error[20] = 3;
  EXPECT_TRUE(MakeRefusal(error).empty());
  std::vector<uint8_t> echo = error;
  echo[20] = 8;
  EXPECT_FALSE(MakeRefusal(echo).empty());
  std::vector<uint8_t> options = Udp();
  options[0] = 0x4f;  // a header of 60 bytes in a packet of 32
  EXPECT_TRUE(MakeRefusal(options).empty());
  options[0] = 0x41;
  EXPECT_TRUE(MakeRefusal(options).empty());
  EXPECT_TRUE(MakeRefusal({}).empty());
}

}  // namespace
}  // namespace isthmus::testnet
