#include "coordinator/service/join_limits.h"

#include <arpa/inet.h>

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"

namespace isthmus::coordinator {
namespace {

constexpr size_t kMaxAddressBytes = 64;
constexpr size_t kPrefixBytes = 8;

}  // namespace

absl::Status JoinLimiter::Begin(const std::string& address, absl::Time now) {
  MutexLock lock(&mutex_);
  while (!tries_.empty() && now - tries_.front().first >= kJoinWindow) tries_.pop_front();
  const auto of_address = std::count_if(tries_.begin(), tries_.end(),
                                        [&](const auto& each) { return each.second == address; });
  const auto refuse = [](absl::string_view why) {
    return absl::ResourceExhaustedError(absl::StrCat(why, ": try again in a minute"));
  };
  if (of_address >= limits_.of_address)
    return refuse(absl::StrCat(address, " has tried to join ", of_address, " times in a minute"));
  if (tries_.size() >= static_cast<size_t>(limits_.in_all)) {
    return refuse(
        absl::StrCat("hosts have tried to join ", tries_.size(), " times in the last minute"));
  }
  if (running_ >= limits_.at_once)
    return refuse(absl::StrCat(running_, " hosts are joining at this moment"));
  ++running_;
  tries_.emplace_back(now, address);
  return absl::OkStatus();
}

void JoinLimiter::End() {
  MutexLock lock(&mutex_);
  --running_;
}

std::string AddressOfPeer(absl::string_view peer) {
  if (!absl::ConsumePrefix(&peer, "ipv6:")) absl::ConsumePrefix(&peer, "ipv4:");
  std::string host = absl::StrReplaceAll(peer.substr(0, peer.rfind(':')),
                                         {{"%5B", ""}, {"%5D", ""}, {"[", ""}, {"]", ""}});
  in6_addr address = {};
  if (::inet_pton(AF_INET6, host.substr(0, host.find('%')).c_str(), &address) == 1) {
    const absl::string_view bytes(reinterpret_cast<const char*>(address.s6_addr), kPrefixBytes);
    return absl::StrCat(absl::BytesToHexString(bytes), "/64");
  }
  return host.substr(0, kMaxAddressBytes);
}

}  // namespace isthmus::coordinator
