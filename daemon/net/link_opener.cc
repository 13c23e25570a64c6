#include "daemon/net/link_opener.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/rpc/channel.h"
#include "base/status.h"
#include "daemon/net/grpc_link.h"
#include "grpcpp/channel.h"
#include "proto/plan/groups.h"

namespace isthmus::daemon {
namespace {

using Clock = std::chrono::steady_clock;

constexpr absl::Duration kLookAgain = absl::Milliseconds(200);  // for Cancel
constexpr absl::Duration kPathPatience = absl::Seconds(5);      // for a message of 4 KiB and back
constexpr double kPathRoundTrips = 20;
constexpr absl::Duration kLinkBackoff = absl::Seconds(2);  // a peer that comes up is found soon

absl::Duration Left(Clock::time_point deadline) {
  return absl::FromChrono(deadline - Clock::now());
}

// `peer`: the one of plan.ranks at the other end.
std::string LinkName(const Plan& plan, const LinkPlan& link, const RankPlan& peer) {
  const int to = &plan.ranks(link.lower()) == &peer ? link.lower() : link.upper();
  return absl::StrCat("link ", link.id(), " to ", StageWords(plan, to), " (node ", peer.node_name(),
                      ", ", peer.address(), ")");
}

absl::Status CheckHello(const LinkHello& mine, const LinkChunk& answer) {
  if (!answer.has_hello())
    return absl::InvalidArgumentError("the peer's first message is no hello");
  const LinkHello& hello = answer.hello();
  if (hello.generation() != mine.generation() || hello.job_id() != mine.job_id()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the peer is at job ", hello.job_id().substr(0, 64), " generation ", hello.generation(),
        ", this session at job ", mine.job_id(), " generation ", mine.generation()));
  }
  if (hello.link_id() != mine.link_id())
    return absl::InvalidArgumentError("the peer answers for another link");
  return absl::OkStatus();
}

absl::StatusOr<int64_t> PeerChunkBytes(const LinkHello& hello) {
  if (hello.chunk_bytes() < 1 || hello.chunk_bytes() > kMaxChunkBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the peer announces chunks of ",
                                                   hello.chunk_bytes(), " bytes; 1 to ",
                                                   kMaxChunkBytes, " are allowed"));
  }
  return hello.chunk_bytes();
}

}  // namespace

LinkChunk GrpcLinkOpener::Hello(const Plan& plan, const LinkPlan& link,
                                const RankPlan& peer) const {
  LinkChunk chunk;
  LinkHello* hello = chunk.mutable_hello();
  hello->set_job_id(plan.job_id());
  hello->set_generation(plan.generation());
  hello->set_link_id(link.id());
  hello->set_from_node_id(options_.node_id);
  hello->set_to_node_id(peer.node_id());
  hello->set_chunk_bytes(ChunkBytesOf(link));
  hello->set_exchanges_codec_state(true);
  return chunk;
}

void GrpcLinkOpener::Cancel(const absl::Status& why) {
  {
    MutexLock lock(&mutex_);
    if (cancelled_.ok()) cancelled_ = why;
    for (LinkStream* stream : dialling_) stream->Kill(why);
  }
  prober_.Cancel();
  options_.board->CancelAwaits(why);
}

absl::Status GrpcLinkOpener::cancelled() const {
  MutexLock lock(&mutex_);
  return cancelled_;
}

bool GrpcLinkOpener::ExchangeHellos(LinkStream* stream, const LinkChunk& hello, LinkChunk* answer) {
  {
    MutexLock lock(&mutex_);
    if (!cancelled_.ok()) return false;
    dialling_.insert(stream);
  }
  const bool ok = stream->Write(hello) && stream->Read(answer);
  MutexLock lock(&mutex_);
  dialling_.erase(stream);
  return ok;
}

absl::StatusOr<std::unique_ptr<worker::Link>> GrpcLinkOpener::Open(const Plan& plan,
                                                                   const LinkPlan& link,
                                                                   int my_rank,
                                                                   absl::Duration timeout) {
  RETURN_IF_ERROR(cancelled());
  const bool lower = my_rank == link.lower();
  const bool dials = lower != link.upper_dials();
  const int other = lower ? link.upper() : link.lower();
  if ((!lower && my_rank != link.upper()) || other < 0 || other >= plan.ranks_size() ||
      other == my_rank) {
    return absl::InvalidArgumentError(
        absl::StrCat("link ", link.id(), " joins ranks ", link.lower(), " and ", link.upper(),
                     " of ", plan.ranks_size(), ": rank ", my_rank, " can't open it"));
  }
  const RankPlan& peer = plan.ranks(other);
  auto opened = dials ? Dial(plan, link, peer, timeout) : Serve(plan, link, peer, timeout);
  if (!opened.ok()) return Annotate(opened.status(), LinkName(plan, link, peer));
  return opened;
}

absl::StatusOr<std::unique_ptr<worker::Link>> GrpcLinkOpener::Dial(const Plan& plan,
                                                                   const LinkPlan& link,
                                                                   const RankPlan& peer,
                                                                   absl::Duration timeout) {
  const auto deadline = SteadyAfter(timeout);
  rpc::ChannelOptions channel_options;
  channel_options.window_bytes = link.window_bytes();
  channel_options.use_proxy = options_.use_proxy;
  channel_options.max_backoff = kLinkBackoff;
  const auto channel = rpc::MakeChannel(peer.address(), channel_options);
  while (!channel->WaitForConnected(rpc::DeadlineAfter(std::min(kLookAgain, Left(deadline))))) {
    RETURN_IF_ERROR(cancelled());
    if (Clock::now() >= deadline) {
      return absl::UnavailableError(
          absl::StrCat("no connection within ", absl::FormatDuration(timeout),
                       ": check that the daemon runs there and that its port is open"));
    }
  }
  NodeInfo meant;
  meant.set_id(peer.node_id());
  meant.set_address(peer.address());
  const absl::Duration patience =
      std::max(kPathPatience, kPathRoundTrips * absl::Seconds(link.round_trip_s()));
  const absl::Status path = prober_.CheckPath(
      meant, channel.get(), std::min(patience, Left(deadline)), options_.use_proxy);
  RETURN_IF_ERROR(cancelled());
  RETURN_IF_ERROR(path);
  auto stream = DialLinkStream(channel);
  const LinkChunk hello = Hello(plan, link, peer);
  LinkChunk answer;
  bool late = false;
  bool ok = false;
  {
    Watchdog::Watch watch(options_.watchdog, Left(deadline), [&] {
      late = true;
      stream->Kill(absl::CancelledError(""));
    });
    ok = ExchangeHellos(stream.get(), hello, &answer);
  }
  RETURN_IF_ERROR(cancelled());
  if (!ok && late) {
    return absl::UnavailableError(
        absl::StrCat("connected, but the peer's session did not take the link within ",
                     absl::FormatDuration(timeout)));
  }
  if (!ok) return stream->WhyBroken();
  RETURN_IF_ERROR(CheckHello(hello.hello(), answer));
  GrpcLinkOptions link_options;
  ASSIGN_OR_RETURN(link_options.receive_chunk_bytes, PeerChunkBytes(answer.hello()));
  link_options.peer_exchanges_codec_state = answer.hello().exchanges_codec_state();
  link_options.name = LinkName(plan, link, peer);
  link_options.send_chunk_bytes = ChunkBytesOf(link);
  link_options.watchdog = options_.watchdog;
  return std::unique_ptr<worker::Link>(
      std::make_unique<GrpcLink>(std::move(link_options), std::move(stream)));
}

absl::StatusOr<std::unique_ptr<worker::Link>> GrpcLinkOpener::Serve(const Plan& plan,
                                                                    const LinkPlan& link,
                                                                    const RankPlan& peer,
                                                                    absl::Duration timeout) {
  const auto deadline = SteadyAfter(timeout);
  auto dial = options_.board->Await(plan.job_id(), plan.generation(), link.id(), timeout);
  if (absl::IsDeadlineExceeded(dial.status())) {
    return absl::UnavailableError(absl::StrCat(dial.status().message(),
                                               ": check that the daemon of node ", peer.node_name(),
                                               " runs and can reach this one's address"));
  }
  RETURN_IF_ERROR(dial.status());
  auto stream = ServeLinkStream(std::move(dial->call));
  GrpcLinkOptions link_options;
  absl::StatusOr<int64_t> chunk_bytes = PeerChunkBytes(dial->hello);
  if (!chunk_bytes.ok()) {
    stream->End(chunk_bytes.status()).IgnoreError();
    return chunk_bytes.status();
  }
  bool ok = false;
  {
    Watchdog::Watch watch(options_.watchdog, Left(deadline), [&] {
      stream->Kill(absl::DeadlineExceededError("no hello within the time to open a link"));
    });
    ok = stream->Write(Hello(plan, link, peer));
  }
  if (!ok) return stream->WhyBroken();
  link_options.receive_chunk_bytes = *chunk_bytes;
  link_options.peer_exchanges_codec_state = dial->hello.exchanges_codec_state();
  link_options.name = LinkName(plan, link, peer);
  link_options.send_chunk_bytes = ChunkBytesOf(link);
  link_options.watchdog = options_.watchdog;
  return std::unique_ptr<worker::Link>(
      std::make_unique<GrpcLink>(std::move(link_options), std::move(stream)));
}

}  // namespace isthmus::daemon
