// The control socket of a running emulator: one request and one answer a connection, in text.
//
//   set FROM TO [rate=R] [delay=D] [jitter=J] [loss=P] [down|up] [one-way]  ->  ok N links
//   set FROM @up|@down rate=R                                               ->  ok N uplinks
//   stats                                                                   ->  ok PATH
//
// or `error: why`. FROM and TO are node names or `*`. Both directions change unless one-way is
// said.
//
// Thread: not for sharing. Limits: kMaxControlBytes a message; a client that says nothing for 20 ms
// is dropped.
#ifndef ISTHMUS_DEPLOY_TESTNET_CONTROL_H_
#define ISTHMUS_DEPLOY_TESTNET_CONTROL_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "deploy/testnet/link_table.h"
#include "deploy/testnet/netns.h"

namespace isthmus::testnet {

inline constexpr size_t kMaxControlBytes = 4096;
inline constexpr size_t kMaxControlClients = 64;

// A change to some links; what is not said stays.
struct LinkChange {
  std::string from;  // a node or `*`
  std::string to;    // or @up, @down: what all links of `from` share, which has a rate alone
  std::optional<int64_t> rate_bits_per_s;
  std::optional<absl::Duration> delay;
  std::optional<absl::Duration> jitter;
  std::optional<double> loss;
  std::optional<int64_t> drop_over_bytes;
  std::optional<bool> down;
  bool one_way = false;
};

std::string FormatLinkChange(const LinkChange& change);  // the request line
absl::StatusOr<LinkChange> ParseLinkChange(absl::string_view request);

// The indices of a node's name or `*`. NotFound names the nodes that there are.
absl::StatusOr<std::vector<int>> NodesOf(const std::string& pattern,
                                         const std::vector<std::string>& nodes);
// The ordered pairs (from * nodes.size() + to) that a change is about. NotFound names the nodes
// that there are.
absl::StatusOr<std::vector<int>> PairsOf(const LinkChange& change,
                                         const std::vector<std::string>& nodes);
LinkSpec Changed(LinkSpec spec, const LinkChange& change);

// The emulator's end. It never waits for a client.
class ControlServer {
 public:
  static absl::StatusOr<ControlServer> Listen(const std::string& run_dir);
  int fd() const { return epoll_.get(); }  // readable: call Serve
  // Answers every request that has come.
  void Serve(const std::function<std::string(const std::string&)>& answer);

 private:
  void Accept();

  UniqueFd listener_;
  UniqueFd epoll_;  // of the listener and the clients
  std::deque<UniqueFd> clients_;
};

// The client's end: the answer after "ok", or the error.
absl::StatusOr<std::string> SendControl(const std::string& run_dir, const std::string& request);

}  // namespace isthmus::testnet

#endif  // ISTHMUS_DEPLOY_TESTNET_CONTROL_H_
