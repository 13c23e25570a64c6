#include "daemon/net/link_opener.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/cure.h"
#include "base/rpc/channel.h"
#include "base/status.h"
#include "daemon/net/grpc_link.h"
#include "daemon/net/redialler.h"
#include "daemon/net/resuming_stream.h"
#include "daemon/net/striped_stream.h"
#include "grpcpp/channel.h"
#include "proto/plan/link_bounds.h"

namespace isthmus::daemon {
namespace {

constexpr absl::Duration kLookAgain = absl::Milliseconds(200);  // for Cancel
constexpr absl::Duration kPathPatience = absl::Seconds(5);      // for a message of 4 KiB and back
constexpr double kPathRoundTrips = 20;
constexpr absl::Duration kLinkBackoff = absl::Seconds(2);  // a peer that comes up is found soon

absl::Duration Left(std::chrono::steady_clock::time_point deadline) {
  return absl::FromChrono(deadline - std::chrono::steady_clock::now());
}

int Connections(const LinkHello& hello) { return std::max(1, hello.connections()); }

absl::Status CheckChunkBytes(const LinkHello& hello) {
  if (hello.chunk_bytes() >= 1 && hello.chunk_bytes() <= kMaxChunkBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the peer announces chunks of ",
                                                 hello.chunk_bytes(), " bytes; 1 to ",
                                                 kMaxChunkBytes, " are allowed"));
}

// A peer may make one connection of a link of several: an older daemon does.
absl::Status CheckConnections(const LinkHello& mine, int connection, const LinkHello& theirs) {
  const int here = Connections(mine);
  const int there = Connections(theirs);
  if (there == here || (there == 1 && connection == 0)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the peer's plan has ", there, " connections for the link, this one's has ", here));
}

absl::Status CheckHello(const LinkHello& mine, int connection, const LinkChunk& answer) {
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
  if (hello.connection() != connection)
    return absl::InvalidArgumentError("the peer answers for another connection of the link");
  RETURN_IF_ERROR(CheckChunkBytes(hello));
  return CheckConnections(mine, connection, hello);
}

}  // namespace

DialBoard::Diallers DiallersOf(const Plan& plan, int rank) {
  DialBoard::Diallers diallers;
  for (const LinkPlan& link : plan.links()) {
    const int dials = link.upper_dials() ? link.upper() : link.lower();
    const int serves = link.upper_dials() ? link.lower() : link.upper();
    if (serves == rank && dials >= 0 && dials < plan.ranks_size())
      diallers[link.id()] = plan.ranks(dials).node_id();
  }
  return diallers;
}

LinkHello GrpcLinkOpener::Hello(const Plan& plan, const LinkPlan& link,
                                const RankPlan& peer) const {
  LinkHello hello;
  hello.set_job_id(plan.job_id());
  hello.set_generation(plan.generation());
  hello.set_link_id(link.id());
  hello.set_from_node_id(options_.node_id);
  hello.set_to_node_id(peer.node_id());
  hello.set_chunk_bytes(ChunkBytesOf(link));
  hello.set_exchanges_codec_state(true);
  if (link.connections() > 1) hello.set_connections(link.connections());
  return hello;
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

int GrpcLinkOpener::ExchangeHellos(const Streams& streams, int first, LinkHello hello,
                                   std::vector<LinkChunk>* answers) {
  const int count = static_cast<int>(streams.size());
  {
    MutexLock lock(&mutex_);
    if (!cancelled_.ok()) return first;
    for (int i = first; i < count; ++i) dialling_.insert(streams[i].get());
  }
  int failed = -1;
  for (int i = first; failed < 0 && i < count; ++i) {
    LinkChunk chunk;
    if (i > 0) hello.set_connection(i);
    *chunk.mutable_hello() = hello;
    if (!streams[i]->Write(chunk)) failed = i;
  }
  for (int i = first; failed < 0 && i < count; ++i) {
    answers->emplace_back();
    if (!streams[i]->Read(&answers->back())) failed = i;
  }
  MutexLock lock(&mutex_);
  for (int i = first; i < count; ++i) dialling_.erase(streams[i].get());
  return failed;
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
  if (link.connections() < 0 || link.connections() > kMaxConnections) {
    return absl::InvalidArgumentError(absl::StrCat("link ", link.id(), " has ", link.connections(),
                                                   " connections; ", kMaxConnections,
                                                   " are allowed"));
  }
  const RankPlan& peer = plan.ranks(other);
  return dials ? Dial(plan, link, peer, timeout) : Serve(plan, link, peer, timeout);
}

absl::Status GrpcLinkOpener::Connect(grpc::Channel* channel, absl::Duration timeout,
                                     Clock::time_point deadline) const {
  while (!channel->WaitForConnected(rpc::DeadlineAfter(std::min(kLookAgain, Left(deadline))))) {
    RETURN_IF_ERROR(cancelled());
    if (Clock::now() >= deadline) {
      return WithCure(absl::UnavailableError(
          absl::StrCat("no connection within ", absl::FormatDuration(timeout),
                       ": check that the daemon runs there and that its port is open")));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<LinkHello> GrpcLinkOpener::DialStreams(const Channels& channels,
                                                      const LinkHello& hello,
                                                      absl::Duration timeout,
                                                      Clock::time_point deadline,
                                                      Streams* streams) {
  const int first = static_cast<int>(streams->size());
  for (const auto& channel : channels)
    streams->push_back(
        DialLinkStream(channel, options_.dialling.tls, {LinkHeader::kResumes, 0, 0}));
  std::vector<LinkChunk> answers;
  bool late = false;
  int failed = -1;
  {
    Watchdog::Watch watch(options_.watchdog, Left(deadline), [&] {
      late = true;
      for (const auto& stream : *streams) stream->Kill(absl::CancelledError(""));
    });
    failed = ExchangeHellos(*streams, first, hello, &answers);
  }
  RETURN_IF_ERROR(cancelled());
  absl::Status status;
  if (failed >= 0) {
    status = late ? absl::UnavailableError(absl::StrCat(
                        "connected, but the peer's session did not take the link within ",
                        absl::FormatDuration(timeout)))
                  : (*streams)[failed]->WhyBroken();
  }
  for (size_t i = 0; status.ok() && i < answers.size(); ++i) {
    failed = first + static_cast<int>(i);
    status = CheckHello(hello, failed, answers[i]);
  }
  if (status.ok()) return answers.front().hello();
  return first > 0 ? Annotate(status, ConnectionWords(failed, Connections(hello))) : status;
}

absl::StatusOr<std::unique_ptr<worker::Link>> GrpcLinkOpener::Dial(const Plan& plan,
                                                                   const LinkPlan& link,
                                                                   const RankPlan& peer,
                                                                   absl::Duration timeout) {
  RETURN_IF_ERROR(rpc::CheckPeer(peer.address(), options_.dialling));
  const auto deadline = SteadyAfter(timeout);
  const rpc::ChannelOptions channel_options = ChannelTo(link, peer);
  Channels channels = {rpc::MakeChannel(peer.address(), channel_options)};
  if (const absl::Status status = Connect(channels[0].get(), timeout, deadline); !status.ok()) {
    return rpc::NoConnection(peer.address(), channel_options, status,
                             [this] { return !cancelled().ok(); });
  }
  NodeInfo meant;
  meant.set_id(peer.node_id());
  meant.set_address(peer.address());
  const absl::Duration patience =
      std::max(kPathPatience, kPathRoundTrips * absl::Seconds(link.round_trip_s()));
  const absl::Status path = prober_.CheckPath(
      meant, channels[0].get(), std::min(patience, Left(deadline)), options_.dialling);
  RETURN_IF_ERROR(cancelled());
  RETURN_IF_ERROR(path);
  Streams streams;
  const LinkHello hello = Hello(plan, link, peer);
  ASSIGN_OR_RETURN(const LinkHello theirs,
                   DialStreams(channels, hello, timeout, deadline, &streams));
  const int connections = Connections(theirs);
  if (connections == 1) return MakeLink(link, peer, hello, theirs, std::move(streams));

  channels.clear();
  for (int i = 1; i < connections; ++i) {
    channels.push_back(rpc::MakeChannel(peer.address(), channel_options));
    channels.back()->GetState(true);  // all connect at once
  }
  for (int i = 1; i < connections; ++i) {
    const absl::Status connected = Connect(channels[i - 1].get(), timeout, deadline);
    if (!connected.ok()) return Annotate(connected, ConnectionWords(i, connections));
  }
  RETURN_IF_ERROR(DialStreams(channels, hello, timeout, deadline, &streams).status());
  return MakeLink(link, peer, hello, theirs, std::move(streams));
}

absl::StatusOr<LinkHello> GrpcLinkOpener::ServeStream(LinkHello hello, absl::Duration timeout,
                                                      Clock::time_point deadline,
                                                      Streams* streams) {
  const int connection = static_cast<int>(streams->size());
  auto dial = options_.board->Await(hello.job_id(), hello.generation(), hello.link_id(),
                                    connection == 0 ? timeout : Left(deadline), connection);
  if (absl::IsDeadlineExceeded(dial.status())) {
    return WithCure(absl::UnavailableError(
        absl::StrCat("nobody dialled within ", absl::FormatDuration(timeout),
                     ": check that the daemon there runs and can reach this one's address")));
  }
  RETURN_IF_ERROR(dial.status());
  const bool resumes = dial->call->header.kind == LinkHeader::kResumes;
  auto stream = ServeLinkStream(std::move(dial->call),
                                resumes ? LinkHeader{LinkHeader::kResumes, 0, 0} : LinkHeader());
  absl::Status status = CheckChunkBytes(dial->hello);
  if (status.ok()) status = CheckConnections(hello, connection, dial->hello);
  if (!status.ok()) {
    stream->End(status).IgnoreError();
    return status;
  }
  if (Connections(dial->hello) == 1) hello.clear_connections();
  if (connection > 0) hello.set_connection(connection);
  LinkChunk answer;
  *answer.mutable_hello() = std::move(hello);
  bool ok = false;
  {
    Watchdog::Watch watch(options_.watchdog, Left(deadline), [&] {
      stream->Kill(absl::DeadlineExceededError("no hello within the time to open a link"));
    });
    ok = stream->Write(answer);
  }
  if (!ok) return stream->WhyBroken();
  streams->push_back(std::move(stream));
  return std::move(dial->hello);
}

absl::StatusOr<std::unique_ptr<worker::Link>> GrpcLinkOpener::Serve(const Plan& plan,
                                                                    const LinkPlan& link,
                                                                    const RankPlan& peer,
                                                                    absl::Duration timeout) {
  const auto deadline = SteadyAfter(timeout);
  const LinkHello hello = Hello(plan, link, peer);
  Streams streams;
  ASSIGN_OR_RETURN(const LinkHello theirs, ServeStream(hello, timeout, deadline, &streams));
  const int connections = Connections(theirs);
  for (int i = 1; i < connections; ++i) {
    const absl::Status status = Annotate(ServeStream(hello, timeout, deadline, &streams).status(),
                                         ConnectionWords(i, connections));
    if (status.ok()) continue;
    for (const auto& stream : streams) stream->End(status).IgnoreError();
    return status;
  }
  return MakeLink(link, peer, hello, theirs, std::move(streams));
}

rpc::ChannelOptions GrpcLinkOpener::ChannelTo(const LinkPlan& link, const RankPlan& peer) const {
  rpc::ChannelOptions channel = rpc::ToNode(options_.dialling, peer.node_id());
  channel.window_bytes = ConnectionWindowBytes(link);
  channel.max_backoff = kLinkBackoff;
  return channel;
}

std::unique_ptr<LinkStream> GrpcLinkOpener::Resuming(
    const LinkPlan& link, const RankPlan& peer, const LinkHello& hello,
    const std::shared_ptr<std::atomic<bool>>& reached, std::unique_ptr<LinkStream> stream) const {
  if (stream->peer_header().kind != LinkHeader::kResumes) return stream;
  const bool dials = !stream->kill_tells_why();
  RedialOptions redial;
  redial.address = peer.address();
  redial.channel = ChannelTo(link, peer);
  redial.hello = hello;
  redial.peer_node_id = peer.node_id();
  // Where the plan says upper_dials, it is because the lower one can't.
  if (!link.upper_dials() && rpc::CheckPeer(peer.address(), options_.dialling).ok())
    redial.reached = reached;
  redial.board = &options_.board->redials();
  redial.watchdog = options_.watchdog;
  ResumingOptions resuming;
  if (options_.on_trouble != nullptr) {
    resuming.tell = [tell = options_.on_trouble,
                     node = peer.node_id()](const std::string& trouble) { tell(node, trouble); };
  }
  resuming.log_bytes = KeptBytes(link);
  resuming.words = absl::StrCat(
      "link ", link.id(), " to ", peer.node_name(), " (", peer.address(),
      hello.connections() > 1
          ? absl::StrCat(", ", ConnectionWords(hello.connection(), hello.connections()))
          : "",
      ")");
  return std::make_unique<ResumingStream>(
      std::move(resuming), std::move(stream),
      dials ? DialAgain(std::move(redial)) : AwaitDial(std::move(redial)));
}

std::unique_ptr<worker::Link> GrpcLinkOpener::MakeLink(const LinkPlan& link, const RankPlan& peer,
                                                       LinkHello mine, const LinkHello& theirs,
                                                       Streams streams) const {
  GrpcLinkOptions options;
  options.receive_chunk_bytes = theirs.chunk_bytes();
  options.peer_exchanges_codec_state = theirs.exchanges_codec_state();
  options.send_chunk_bytes = ChunkBytesOf(link);
  options.watchdog = options_.watchdog;
  options.uplink = options_.uplink;
  const int count = static_cast<int>(streams.size());
  if (count == 1) mine.clear_connections();
  const auto reached = std::make_shared<std::atomic<bool>>(false);
  for (int i = 0; i < count; ++i) {
    mine.set_connection(i);
    streams[i] = Resuming(link, peer, mine, reached, std::move(streams[i]));
  }
  std::unique_ptr<LinkStream> stream;
  if (count == 1) {
    stream = std::move(streams[0]);
  } else {
    stream = std::make_unique<StripedStream>(std::move(streams), OrderWindowBytes(link));
  }
  return std::make_unique<GrpcLink>(options, std::move(stream));
}

}  // namespace isthmus::daemon
