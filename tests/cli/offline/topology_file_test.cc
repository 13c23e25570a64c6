#include "coordinator/cli/offline/topology_file.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace isthmus::cli {
namespace {

using testing::HasSubstr;

constexpr char kLinks[] =
    "from,to,rate,delay,jitter,loss\n"
    "home,lab,20Mbit,10ms,1ms,0.5%\n"
    "lab,home,100Mbit,12ms,1ms,0\n"
    "home,cloud,unlimited,0,,\n"
    "cloud,home,1.5Gbit,500us,,\n"
    "hub,home,unlimited,0,,\n";
const HostFigures kOthers = {50, int64_t{4} << 30};

TEST(TopologyFile, HostsAndLinksAsTheTablesSay) {
  const absl::StatusOr<Topology> topology = MakeTopology(
      kLinks, "# figures of mine\nhost,gflops,memory\nlab,200,32GiB\ncloud,,1GiB\n", kOthers);
  ASSERT_TRUE(topology.ok()) << topology.status();
  ASSERT_EQ(topology->nodes_size(), 3) << "the hub is no daemon";
  const auto gflops = [](const NodeInfo& n) { return n.block_flops() / n.block_forward_s() / 1e9; };
  EXPECT_EQ(topology->nodes(0).name(), "home");
  EXPECT_DOUBLE_EQ(gflops(topology->nodes(0)), 50);
  EXPECT_EQ(topology->nodes(0).memory_bytes(), int64_t{4} << 30);
  EXPECT_EQ(topology->nodes(1).name(), "lab");
  EXPECT_DOUBLE_EQ(gflops(topology->nodes(1)), 200);
  EXPECT_EQ(topology->nodes(1).memory_bytes(), int64_t{32} << 30);
  EXPECT_DOUBLE_EQ(gflops(topology->nodes(2)), 50);
  EXPECT_EQ(topology->nodes(2).memory_bytes(), int64_t{1} << 30);
  ASSERT_EQ(topology->links_size(), 4);
  EXPECT_DOUBLE_EQ(topology->links(0).rate_bits_per_s(), 20e6);
  EXPECT_DOUBLE_EQ(topology->links(0).round_trip_s(), 0.022);
  EXPECT_DOUBLE_EQ(topology->links(0).loss(), 0.005);
  EXPECT_DOUBLE_EQ(topology->links(1).rate_bits_per_s(), 100e6);
  EXPECT_DOUBLE_EQ(topology->links(1).round_trip_s(), 0.022);
  EXPECT_GT(topology->links(2).rate_bits_per_s(), 1e11);
  EXPECT_DOUBLE_EQ(topology->links(3).rate_bits_per_s(), 1.5e9);
}

TEST(TopologyFile, NoLinkIsFasterThanTheUplinkAndTheDownlinkOfItsEnds) {
  const absl::StatusOr<Topology> topology = MakeTopology(
      absl::StrCat(kLinks, "home,@up,10Mbit,,,\nlab,@down,5Mbit,,,\nhub,@up,1Mbit,,,\n"),
      "host,gflops,memory\n", kOthers);
  ASSERT_TRUE(topology.ok()) << topology.status();
  EXPECT_EQ(topology->nodes_size(), 3);
  ASSERT_EQ(topology->links_size(), 4);
  EXPECT_DOUBLE_EQ(topology->links(0).rate_bits_per_s(), 5e6) << "home,lab";
  EXPECT_DOUBLE_EQ(topology->links(1).rate_bits_per_s(), 100e6) << "lab,home";
  EXPECT_DOUBLE_EQ(topology->links(2).rate_bits_per_s(), 10e6) << "home,cloud";
  EXPECT_DOUBLE_EQ(topology->links(3).rate_bits_per_s(), 1.5e9) << "cloud,home";
}

TEST(TopologyFile, WrongHostsAreRefusedWithTheirLine) {
  const auto refusal = [](const std::string& hosts) {
    return std::string(MakeTopology(kLinks, absl::StrCat("host,gflops,memory\n", hosts), kOthers)
                           .status()
                           .message());
  };
  EXPECT_THAT(refusal("lab,fast,1GiB\n"), HasSubstr("hosts:2: gflops 'fast'"));
  EXPECT_THAT(refusal("lab,-1,1GiB\n"), HasSubstr("hosts:2: gflops '-1'"));
  EXPECT_THAT(refusal("lab,nan,1GiB\n"), HasSubstr("hosts:2: gflops 'nan'"));
  EXPECT_THAT(refusal("\nlab,1,much\n"), HasSubstr("hosts:3: memory 'much'"));
  EXPECT_THAT(refusal("lab,1\n"), HasSubstr("hosts:2: 2 cells"));
  EXPECT_THAT(refusal("lab,1,1GiB\nlab,1,1GiB\n"), HasSubstr("hosts:3: host 'lab' has two rows"));
  EXPECT_THAT(refusal("mars,1,1GiB\n"), HasSubstr("'mars' is no host of the link table"));
  EXPECT_THAT(std::string(MakeTopology(kLinks, "lab,1,1GiB\n", kOthers).status().message()),
              HasSubstr("hosts:1: the first line must be host,gflops,memory"));
}

}  // namespace
}  // namespace isthmus::cli
