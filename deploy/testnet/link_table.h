// Link tables: who is joined to whom, at what rate, delay, jitter and loss. Read from CSV, from a
// preset, or uniform. And what all links of a node share: the rate of its uplink and downlink.
//
// The file has the header `from,to,rate,delay,jitter,loss`, then a row a link; `#` starts a comment
// line:
//
//   from,to,rate,delay,jitter,loss
//   *,*,100Mbit,25ms,,            every pair that no other row names (empty cell: zero)
//   home,lab,20Mbit,9ms,1ms,0.1%  this pair, both directions...
//   lab,home,100Mbit,9ms,1ms,0.1% ...unless the other direction has its own row
//   home,@up,20Mbit,,,            all that home sends, over whichever link; @down: all it receives
//   *,@down,1Gbit,,,              every node without a row of its own (no row at all: unlimited)
//
// The more exact row wins (no `*`, then one, then two); two equally exact rows that disagree are an
// error. Delay is one-way. Rate counts IP packets (headers of IP and above, no Ethernet framing).
//
// Thread: plain values and pure functions; LoadLinkTable and ListPresets read files.
// Limits: kMaxNodes nodes, kMaxDelay, rates as base/bit_rate.h, kMaxTableBytes a file.
#ifndef ISTHMUS_DEPLOY_TESTNET_LINK_TABLE_H_
#define ISTHMUS_DEPLOY_TESTNET_LINK_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace isthmus::testnet {

inline constexpr int kMaxNodes = 250;
inline constexpr absl::Duration kMaxDelay = absl::Seconds(60);
inline constexpr size_t kMaxTableBytes = size_t{4} << 20;

// The two ends that all links of a node share.
enum class Side { kUp, kDown };
inline constexpr Side kSides[] = {Side::kUp, Side::kDown};

struct NodeSpec {  // 0: unlimited
  int64_t uplink_bits_per_s = 0;
  int64_t downlink_bits_per_s = 0;

  int64_t& At(Side side) { return side == Side::kUp ? uplink_bits_per_s : downlink_bits_per_s; }
  int64_t At(Side side) const {
    return side == Side::kUp ? uplink_bits_per_s : downlink_bits_per_s;
  }
};

// One direction of one link.
struct LinkSpec {
  int64_t rate_bits_per_s = 0;                  // 0: unlimited
  absl::Duration delay = absl::ZeroDuration();  // one-way
  absl::Duration jitter =
      absl::ZeroDuration();  // uniform in delay +- jitter; packets stay in order
  double loss = 0;           // share of packets lost, 0 to 1
  // Packets over it vanish without a word, as on a path with a smaller MTU that filters ICMP; 0:
  // none. Not in a table: `isthmus-wan set` alone has it.
  int64_t drop_over_bytes = 0;

  friend bool operator==(const LinkSpec& a, const LinkSpec& b) {
    return a.rate_bits_per_s == b.rate_bits_per_s && a.delay == b.delay && a.jitter == b.jitter &&
           a.loss == b.loss && a.drop_over_bytes == b.drop_over_bytes;
  }
  friend bool operator!=(const LinkSpec& a, const LinkSpec& b) { return !(a == b); }
};

// A complete table: a LinkSpec for every ordered pair of distinct nodes, a NodeSpec for each node.
struct LinkTable {
  std::vector<std::string> nodes;
  std::vector<NodeSpec> ends;  // by node
  std::vector<LinkSpec>
      links;  // nodes.size() squared, row `from`, column `to`; the diagonal is unused

  const LinkSpec& At(int from, int to) const { return links[from * nodes.size() + to]; }
  LinkSpec& At(int from, int to) { return links[from * nodes.size() + to]; }
  int Find(absl::string_view node) const;  // -1 where there is no such node
};

// Every pair alike; nodes are called n0, n1, ...  InvalidArgument unless 1 <= num_nodes <=
// kMaxNodes.
absl::StatusOr<LinkTable> UniformLinkTable(int num_nodes, const LinkSpec& spec,
                                           const NodeSpec& ends = {});

// `name` stands in errors: "NAME:LINE: what is wrong and how to write it".
// num_nodes 0: the nodes that the rows name. Fewer than named: the first ones. More: n<i> are
// added, which a `*,*` row must cover.
absl::StatusOr<LinkTable> ParseLinkTable(absl::string_view csv, absl::string_view name,
                                         int num_nodes = 0);

// A preset's name ("regions") or a path (anything with a '/' or ending in .csv). NotFound lists the
// presets.
absl::StatusOr<LinkTable> LoadLinkTable(const std::string& preset_or_path, int num_nodes = 0);

struct Preset {
  std::string name;
  std::string path;
  std::string summary;  // the first comment line of the file
};
// Sorted by name. The folder is $ISTHMUS_LINKS_DIR, else share/isthmus/links beside the program's
// bin/, else the source tree's deploy/testnet/links.
std::vector<Preset> ListPresets();

// "@up" and "@down" stand in the place of a link's other node.
std::optional<Side> SideOf(absl::string_view to);
const char* SideName(Side side);

// Cells, also used for command-line options: "25ms"; "0.1%" or "0". Rates: base/bit_rate.h.
absl::StatusOr<absl::Duration> ParseDelay(absl::string_view text);
absl::StatusOr<double> ParseLoss(absl::string_view text);
std::string FormatLoss(double loss);

// The whole table as CSV that ParseLinkTable reads back to the same values.
std::string FormatLinkTable(const LinkTable& table);

}  // namespace isthmus::testnet

#endif  // ISTHMUS_DEPLOY_TESTNET_LINK_TABLE_H_
