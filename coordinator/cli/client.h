// Calls to the coordinator, each with a deadline. The only door to gRPC of the CLI.
// Errors: Unavailable and DeadlineExceeded name the address and what to try; what the coordinator
// itself refuses keeps its code and its words. Thread: one owner, except Cancel().
#ifndef ISTHMUS_COORDINATOR_CLI_CLIENT_H_
#define ISTHMUS_COORDINATOR_CLI_CLIENT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "proto/comparison.pb.h"
#include "proto/control.pb.h"
#include "proto/security.pb.h"

namespace isthmus::cli {

struct ClientOptions {
  std::string address = "127.0.0.1:7070";
  absl::Duration connect_timeout =
      absl::Seconds(5);  // a slow link's handshake takes a few round trips
  absl::Duration call_timeout = absl::Seconds(30);
  absl::Duration plan_timeout =
      absl::Minutes(2);  // MakePlan, ComparePlans and Submit: the planner searches
  absl::Duration verify_timeout = absl::Hours(1);  // every byte of checkpoints is read
  absl::Duration trace_timeout = absl::Hours(1);   // the steps themselves take their time
  absl::Duration bulk_timeout =
      absl::Hours(12);  // a checkpoint over a slow link; keepalive finds a dead one sooner
  absl::Duration stream_timeout =
      absl::Minutes(5);  // of one Watch stream; the watcher opens the next one
  bool use_proxy = false;
  std::string tls_dir;    // folder of this user's certificate; empty: plain text
  bool insecure = false;  // ... also to another machine
};

class Client {
 public:
  // Connects. InvalidArgument: not an address, or one that wants a certificate. Unavailable: nobody
  // there. Unauthenticated: somebody is, and TLS stands between. Errors of tls::ReadFolder.
  static absl::StatusOr<std::unique_ptr<Client>> Connect(const ClientOptions& options);
  ~Client();

  absl::StatusOr<PlanReply> MakePlan(const PlanRequest& request);
  absl::StatusOr<PlanComparison> ComparePlans(const PlanRequest& request);
  absl::StatusOr<NewJobIdReply> NewJobId(const NewJobIdRequest& request);
  absl::StatusOr<SubmitReply> Submit(const SubmitRequest& request);
  absl::StatusOr<ListJobsReply> List();
  absl::StatusOr<JobStatus> Status(const JobStatusRequest& request);
  absl::StatusOr<StopJobReply> Stop(const StopJobRequest& request);
  absl::StatusOr<TraceJobReply> Trace(const TraceJobRequest& request);
  absl::StatusOr<AuditReply> Audit(const AuditRequest& request);
  absl::StatusOr<DrainReply> Drain(const DrainRequest& request);
  absl::StatusOr<RemoveJobReply> Remove(const RemoveJobRequest& request);
  absl::StatusOr<ListCheckpointsReply> Checkpoints(const ListCheckpointsRequest& request);
  // `unix_ms`, where given, gets the coordinator's clock, or 0 if it does not tell; `insecure`
  // whether it runs with --insecure.
  absl::StatusOr<ListNodesReply> Nodes(int64_t* unix_ms = nullptr, bool* insecure = nullptr);

  // One stream. `take` gets each reply and returns false to end it: OK. OK also where the
  // coordinator ends it.
  absl::Status Watch(const WatchRequest& request,
                     const std::function<bool(const WatchReply&)>& take);

  // Sends one file of a checkpoint, of which the header says all. `write` hands its bytes over in
  // order, in pieces of at most 1 MiB, and ends where the taker says false. True: the checkpoint is
  // complete.
  using TakePiece = std::function<bool(absl::string_view piece)>;
  absl::StatusOr<bool> PutCheckpoint(const PutCheckpointHeader& header,
                                     const std::function<absl::Status(const TakePiece&)>& write,
                                     const std::function<void(int64_t sent_bytes)>& progress);

  struct Fetched {
    int64_t step = 0;
    int64_t bytes = 0;
  };
  // Writes what comes to `path` (made or cut) and checks its length and checksum. `waits` is called
  // if the coordinator lets others, so many, go first.
  absl::StatusOr<Fetched> FetchCheckpoint(
      const FetchCheckpointRequest& request, const std::string& path,
      const std::function<void(int64_t done, int64_t total)>& progress,
      const std::function<void(int before)>& waits = nullptr);

  // Ends the call in progress and every later one with Cancelled. From any thread, not from a
  // signal handler.
  void Cancel();

  const std::string& address() const;

 private:
  struct State;
  explicit Client(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace isthmus::cli

#endif  // ISTHMUS_COORDINATOR_CLI_CLIENT_H_
