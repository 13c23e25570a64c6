#include "daemon/net/probe.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <memory>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/cure.h"
#include "base/link_rate.h"
#include "base/rpc/channel.h"
#include "base/status.h"
#include "daemon/net/connection_search.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "proto/control_service.grpc.pb.h"
#include "proto/peer_service.grpc.pb.h"

namespace isthmus::daemon {
namespace {

constexpr absl::Duration kLookAgain = absl::Milliseconds(200);
constexpr absl::Duration kDiagnosis = absl::Seconds(2);  // each step of looking for a cause
constexpr absl::Duration kLongestDiagnosis = absl::Seconds(4);
constexpr double kTimesASmallOne = 20;  // a large message may take so much longer
constexpr int64_t kSmallBytes = 256;

absl::Duration Patience(const RateSearch& search, absl::Time deadline) {
  return absl::Seconds(search.Patience(absl::ToDoubleSeconds(deadline - SteadyNow())));
}

double Since(absl::Time start) { return absl::ToDoubleSeconds(SteadyNow() - start); }

// One upload; OK with an unchanged search if the peer saw too little.
template <typename Stub>
absl::Status UploadRound(Stub* stub, grpc::ClientContext* context, const std::string& peer_id,
                         int64_t bytes, RateSearch* search) {
  const int64_t message_bytes = ProbeMessageBytes(bytes);
  const int64_t messages = bytes / message_bytes;
  ProbeRequest request;
  request.set_target_id(peer_id);
  request.mutable_padding()->resize(static_cast<size_t>(message_bytes));
  ProbeReply reply;
  const absl::Time start = SteadyNow();
  const auto writer = stub->Upload(context, &reply);
  for (int64_t i = 0; i < messages; ++i) {
    if (!writer->Write(request)) break;
  }
  writer->WritesDone();
  if (const absl::Status status = rpc::FromGrpc(writer->Finish()); !status.ok()) {
    search->AddUnfinished(messages * message_bytes, Since(start));
    return status;
  }
  search->Add({reply.received_bytes(), reply.elapsed_s(), reply.tail_bytes(), reply.tail_s(),
               Since(start)});
  return absl::OkStatus();
}

// The same the other way: what comes is read by this end's clock.
template <typename Stub>
absl::Status DownloadRound(Stub* stub, grpc::ClientContext* context, const std::string& peer_id,
                           int64_t bytes, RateSearch* search) {
  ProbeRequest request;
  request.set_target_id(peer_id);
  request.set_reply_bytes(bytes);
  const absl::Time start = SteadyNow();
  const auto reader = stub->Download(context, request);
  ProbeReply reply;
  ArrivalLog log;
  while (reader->Read(&reply)) log.Add(static_cast<int64_t>(reply.ByteSizeLong()), Since(start));
  if (const absl::Status status = rpc::FromGrpc(reader->Finish()); !status.ok()) {
    search->AddUnfinished(bytes, Since(start));
    return status;
  }
  RateSearch::Round round = log.Round();
  round.sender_s = Since(start);
  search->Add(round);
  return absl::OkStatus();
}

// One of several connections: takes messages from `left`, the bytes of all of them, until it is
// late, so that they end at about the same time. A round without bytes: it broke.
RateSearch::Round TakeFromUpload(Peer::Stub* stub, grpc::ClientContext* context,
                                 const std::string& peer_id, int64_t message_bytes,
                                 absl::Time until, absl::Time start, std::atomic<int64_t>* left) {
  ProbeRequest request;
  request.set_target_id(peer_id);
  request.mutable_padding()->resize(static_cast<size_t>(message_bytes));
  ProbeReply reply;
  const auto writer = stub->Upload(context, &reply);
  while (left->fetch_sub(message_bytes) > 0 && SteadyNow() < until && writer->Write(request)) {
  }
  writer->WritesDone();
  if (!writer->Finish().ok()) return {};
  return {reply.received_bytes(), reply.elapsed_s(), reply.tail_bytes(), reply.tail_s(),
          Since(start)};
}

// The other way a connection has its own share of the bytes, and is broken off when it is late.
RateSearch::Round TakeFromDownload(Peer::Stub* stub, grpc::ClientContext* context,
                                   const std::string& peer_id, int64_t bytes, absl::Time until,
                                   absl::Time start) {
  ProbeRequest request;
  request.set_target_id(peer_id);
  request.set_reply_bytes(bytes);
  const auto reader = stub->Download(context, request);
  ProbeReply reply;
  ArrivalLog log;
  while (SteadyNow() < until && reader->Read(&reply))
    log.Add(static_cast<int64_t>(reply.ByteSizeLong()), Since(start));
  RateSearch::Round round = log.Round();
  round.sender_s = Since(start);
  const bool late = SteadyNow() >= until;
  if (late) context->TryCancel();
  return reader->Finish().ok() || late ? round : RateSearch::Round();
}

}  // namespace

class Prober::Call {
 public:
  Call(Prober* prober, absl::Duration timeout) : prober_(prober) {
    context_.set_deadline(rpc::DeadlineAfter(timeout));
    MutexLock lock(&prober_->mutex_);
    prober_->running_.insert(&context_);
    if (prober_->cancelled_) context_.TryCancel();
  }
  ~Call() {
    MutexLock lock(&prober_->mutex_);
    prober_->running_.erase(&context_);
  }
  grpc::ClientContext* context() { return &context_; }

 private:
  Prober* const prober_;
  grpc::ClientContext context_;
};

void Prober::Cancel() {
  MutexLock lock(&mutex_);
  cancelled_ = true;
  for (grpc::ClientContext* context : running_) context->TryCancel();
}

bool Prober::cancelled() const {
  MutexLock lock(&mutex_);
  return cancelled_;
}

absl::Status Prober::Connect(grpc::Channel* channel, absl::Duration timeout) {
  const absl::Time by = SteadyNow() + timeout;
  while (!channel->WaitForConnected(rpc::DeadlineAfter(std::min(kLookAgain, by - SteadyNow())))) {
    if (cancelled()) return absl::CancelledError("the measurement was cancelled");
    if (SteadyNow() >= by) {
      return WithCure(absl::UnavailableError(
          absl::StrCat("no connection within ", absl::FormatDuration(timeout),
                       ": check that the daemon runs there and that its port is open")));
    }
  }
  return absl::OkStatus();
}

absl::Status Prober::Echo(grpc::Channel* channel, const std::string& peer_id, int64_t bytes,
                          int64_t reply_bytes, absl::Duration timeout) {
  Call call(this, timeout);
  ProbeRequest request;
  request.set_target_id(peer_id);
  request.set_reply_bytes(reply_bytes);
  request.mutable_padding()->resize(static_cast<size_t>(bytes));
  ProbeReply reply;
  Peer::Stub stub(std::shared_ptr<grpc::Channel>(channel, [](grpc::Channel*) {}));
  RETURN_IF_ERROR(rpc::FromGrpc(stub.Echo(call.context(), request, &reply)));
  if (reply.node_id().empty() || peer_id.empty() || reply.node_id() == peer_id)
    return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("another daemon answers there: identity ", reply.node_id().substr(0, 80),
                   ", meant was identity ", peer_id,
                   ". Two daemons advertise one address, or a port is forwarded to the wrong host: "
                   "give each daemon its own --advertise HOST:PORT"));
}

absl::StatusOr<double> Prober::RoundTrip(grpc::Channel* channel, const NodeInfo& peer, int echos,
                                         absl::Time deadline) {
  double best_s = std::numeric_limits<double>::infinity();
  for (int i = 0; i < echos + 1; ++i) {  // the first one warms up
    const absl::Time before = SteadyNow();
    const absl::Status status = Echo(channel, peer.id(), 0, 0, deadline - before);
    if (absl::IsFailedPrecondition(status)) return status;
    if (!status.ok()) return absl::UnavailableError(absl::StrCat("echo: ", status.ToString()));
    if (i > 0) best_s = std::min(best_s, Since(before));
  }
  return best_s;
}

// On a connection of its own: the one that stalled only sends again what was lost.
std::string Prober::LargeMessageFault(const NodeInfo& peer, const rpc::Dialling& dialling) {
  const auto channel = rpc::MakeChannel(peer.address(), rpc::ToNode(dialling, peer.id()));
  if (!Connect(channel.get(), kDiagnosis).ok()) return "";
  const absl::Time start = SteadyNow();
  if (!Echo(channel.get(), peer.id(), kSmallBytes, 0, kDiagnosis).ok()) return "";
  const absl::Duration patience =
      std::clamp(kTimesASmallOne * (SteadyNow() - start), kDiagnosis, kLongestDiagnosis);
  for (const bool there : {true, false}) {
    const absl::Status large = Echo(channel.get(), peer.id(), there ? kLargeBytes : kSmallBytes,
                                    there ? 0 : kLargeBytes, patience);
    if (cancelled()) return "";
    if (!absl::IsDeadlineExceeded(large)) continue;
    return absl::StrCat(
        "small messages pass, but one of ", kLargeBytes, " bytes ",
        there ? "does not arrive there" : "does not come back", " within ",
        absl::FormatDuration(patience),
        ": the path drops large packets, as one with a smaller MTU does whose ICMP answers are "
        "filtered. Lower the MTU of this host's interface (ip link set dev IFACE mtu 1280), or let "
        "ICMP 'fragmentation needed' pass");
  }
  return "";
}

absl::Status Prober::CheckPath(const NodeInfo& peer, grpc::Channel* channel,
                               absl::Duration patience, const rpc::Dialling& dialling) {
  const absl::Status status = Echo(channel, peer.id(), kLargeBytes, kLargeBytes, patience);
  if (absl::IsFailedPrecondition(status)) return status;
  if (!absl::IsDeadlineExceeded(status)) return absl::OkStatus();
  const std::string fault = LargeMessageFault(peer, dialling);
  return fault.empty() ? absl::OkStatus() : WithCure(absl::UnavailableError(fault));
}

absl::StatusOr<double> Prober::Rate(grpc::Channel* channel, const NodeInfo& peer,
                                    double round_trip_s, bool download, absl::Time deadline,
                                    int64_t max_bytes, int64_t* taken) {
  RateSearch search(round_trip_s, max_bytes);
  Peer::Stub stub(std::shared_ptr<grpc::Channel>(channel, [](grpc::Channel*) {}));
  while (const int64_t bytes =
             search.NextBytes(absl::ToDoubleSeconds(deadline - SteadyNow()) - round_trip_s)) {
    Call call(this, Patience(search, deadline));
    const absl::Status status =
        download ? DownloadRound(&stub, call.context(), peer.id(), bytes, &search)
                 : UploadRound(&stub, call.context(), peer.id(), bytes, &search);
    *taken += bytes;
    if (!status.ok() && search.rate_bits_per_s() == 0)
      return Annotate(status, download ? "download" : "upload");
    if (!status.ok()) break;  // out of time: the earlier rounds count
  }
  if (search.rate_bits_per_s() == 0)
    return absl::DeadlineExceededError("no time was left to measure the rate");
  return search.rate_bits_per_s();
}

double Prober::SideBySide(const NodeInfo& peer, const ProbeOptions& options,
                          const SideBySideRound& round, Channels* channels, int64_t* taken) {
  const rpc::ChannelOptions channel_options = rpc::ToNode(options.dialling, peer.id());
  while (static_cast<int>(channels->size()) < round.connections) {
    channels->push_back(rpc::MakeChannel(peer.address(), channel_options));
    channels->back()->GetState(true);  // all connect at once
  }
  for (int i = 0; i < round.connections; ++i) {
    if (!Connect((*channels)[i].get(), round.until - SteadyNow()).ok()) return 0;
  }
  const int64_t share = round.bytes / round.connections;
  std::atomic<int64_t> left{round.bytes};
  std::vector<RateSearch::Round> rounds(static_cast<size_t>(round.connections));
  std::vector<std::thread> threads;
  const absl::Time start = SteadyNow();
  for (int i = 0; i < round.connections; ++i) {
    threads.emplace_back([&, i] {
      Call call(this, round.deadline - SteadyNow());
      Peer::Stub stub((*channels)[i]);
      rounds[i] =
          round.download
              ? TakeFromDownload(&stub, call.context(), peer.id(), share, round.until, start)
              : TakeFromUpload(&stub, call.context(), peer.id(), ProbeMessageBytes(share),
                               round.until, start, &left);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const RateSearch::Round& one : rounds) *taken += one.received_bytes;
  return SideBySideBitsPerSecond(rounds, round.round_trip_s);
}

void Prober::SearchConnections(const NodeInfo& peer, const ProbeOptions& options, bool download,
                               Channels* channels, LinkMeasurement* link, int64_t* taken) {
  if (!options.several) return;
  ConnectionSearch search(link->round_trip_s(), link->rate_bits_per_s(), options.max_bytes);
  const absl::Time deadline = SteadyNow() + kSideBySide / (options.both_ways ? 2 : 1);
  while (const int connections = search.Next()) {
    const absl::Time now = SteadyNow();
    const absl::Duration length = absl::Seconds(search.Seconds());
    if (cancelled() || now + length > deadline) break;
    search.Add(connections, SideBySide(peer, options,
                                       {connections, download, search.Bytes(connections),
                                        link->round_trip_s(), now + length, deadline},
                                       channels, taken));
  }
  link->set_rate_bits_per_s(search.rate_bits_per_s());
  if (search.connections() > 1) link->set_connections(search.connections());
}

ProbeResult Prober::Measure(const std::string& my_id, const NodeInfo& peer,
                            const ProbeOptions& options) {
  ProbeResult result;
  LinkMeasurement* there = result.add_links();
  there->set_from_id(my_id);
  there->set_to_id(peer.id());
  const auto failed = [&](absl::string_view why) {
    if (cancelled()) why = "the measurement was cancelled";
    there->set_error(absl::StrCat("node ", peer.name(), " at ", peer.address(), ": ", why));
    return result;
  };
  if (const absl::Status status = rpc::CheckAddress("address", peer.address()); !status.ok())
    return failed(status.message());
  if (const absl::Status status = rpc::CheckPeer(peer.address(), options.dialling); !status.ok())
    return failed(status.message());
  const absl::Time deadline = SteadyNow() + options.budget;
  const rpc::ChannelOptions channel_options = rpc::ToNode(options.dialling, peer.id());
  const auto channel = rpc::MakeChannel(peer.address(), channel_options);
  absl::Status status = Connect(channel.get(), std::min(options.budget, options.connect));
  if (!status.ok())
    return failed(rpc::NoConnection(peer.address(), channel_options, status, [this] {
                    return cancelled();
                  }).message());
  const absl::StatusOr<double> round_trip = RoundTrip(channel.get(), peer, options.echos, deadline);
  if (!round_trip.ok()) return failed(round_trip.status().message());
  const absl::Duration patience =
      std::max(kDiagnosis, kTimesASmallOne * absl::Seconds(*round_trip));
  status = CheckPath(peer, channel.get(), patience, options.dialling);
  if (!status.ok()) return failed(status.message());
  int64_t taken = 0;
  const absl::Time half = options.both_ways ? deadline - options.budget / 2 : deadline;
  const absl::StatusOr<double> up =
      Rate(channel.get(), peer, *round_trip, false, half, options.max_bytes, &taken);
  result.set_bytes(taken);
  if (!up.ok() || cancelled()) return failed(up.status().message());
  there->set_round_trip_s(*round_trip);
  there->set_rate_bits_per_s(*up);
  Channels channels = {channel};
  SearchConnections(peer, options, false, &channels, there, &taken);
  result.set_bytes(taken);
  if (!options.both_ways) return result;
  const absl::Time down_by = std::max(deadline, SteadyNow() + options.budget / 2);
  const absl::StatusOr<double> down =
      Rate(channel.get(), peer, *round_trip, true, down_by, options.max_bytes, &taken);
  result.set_bytes(taken);
  if (!down.ok()) return result;  // the pair is not usable until it is measured
  LinkMeasurement* back = result.add_links();
  back->set_from_id(peer.id());
  back->set_to_id(my_id);
  back->set_round_trip_s(*round_trip);
  back->set_rate_bits_per_s(*down);
  SearchConnections(peer, options, true, &channels, back, &taken);
  result.set_bytes(taken);
  return result;
}

absl::StatusOr<CoordinatorPath> Prober::MeasurePath(const std::string& coordinator,
                                                    const ProbeOptions& options) {
  const rpc::ChannelOptions channel_options = rpc::ToCoordinator(options.dialling);
  const auto channel = rpc::MakeChannel(coordinator, channel_options);
  const absl::Status connected = Connect(channel.get(), std::min(options.connect, options.budget));
  if (absl::IsUnavailable(connected))  // who registers there says why
    return absl::UnavailableError(absl::StrCat("no connection to ", coordinator));
  RETURN_IF_ERROR(connected);
  const auto stub = Bulk::NewStub(channel);
  double best_s = std::numeric_limits<double>::infinity();
  const absl::Time echoed_by = SteadyNow() + options.budget;
  for (int i = 0; i < options.echos + 1; ++i) {  // the first one warms up
    const absl::Time before = SteadyNow();
    Call call(this, echoed_by - before);
    ProbeReply reply;
    RETURN_IF_ERROR(rpc::FromGrpc(stub->Echo(call.context(), ProbeRequest(), &reply)));
    if (i > 0) best_s = std::min(best_s, Since(before));
  }
  CoordinatorPath path;
  path.set_round_trip_s(best_s);
  for (const bool up : {true, false}) {
    RateSearch search(best_s, options.max_bytes);
    const absl::Time by = SteadyNow() + options.budget;
    while (const int64_t bytes =
               search.NextBytes(absl::ToDoubleSeconds(by - SteadyNow()) - best_s)) {
      Call call(this, Patience(search, by));
      const absl::Status status =
          up ? UploadRound(stub.get(), call.context(), "", bytes, &search)
             : DownloadRound(stub.get(), call.context(), "", bytes, &search);
      if (!status.ok() && search.rate_bits_per_s() == 0) return status;
      if (!status.ok()) break;  // out of time: the earlier rounds count
    }
    if (up) {
      path.set_up_bits_per_s(search.rate_bits_per_s());
    } else {
      path.set_down_bits_per_s(search.rate_bits_per_s());
    }
  }
  if (cancelled()) return absl::CancelledError("the measurement was cancelled");
  return path;
}

}  // namespace isthmus::daemon
