// Follows a job until it ends: reads the coordinator's stream, opens it again when it breaks, shows
// what comes. Thread: one owner.
#ifndef ISTHMUS_COORDINATOR_CLI_WATCHING_H_
#define ISTHMUS_COORDINATOR_CLI_WATCHING_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/cli/client.h"
#include "coordinator/cli/interrupt.h"
#include "proto/control.pb.h"

namespace isthmus::cli {

struct FollowOptions {
  std::string job;
  int64_t from_step = 0;
  absl::Duration patience = absl::Minutes(2);  // without a word of the coordinator: give up
  absl::Duration retry_every = absl::Seconds(1);
  absl::Time until = absl::InfiniteFuture();  // by SteadyNow
};

// Calls `take` with each reply until the job has ended and its last records came. `remark` gets
// words about lost connections. Cancelled after a signal; Unavailable when patience ends;
// DeadlineExceeded at `until`; NotFound: no such job.
absl::Status FollowJob(Client* client, Interrupt* interrupt, const FollowOptions& options,
                       const std::function<void(const WatchReply&)>& take,
                       const std::function<void(const std::string&)>& remark);

}  // namespace isthmus::cli

#endif  // ISTHMUS_COORDINATOR_CLI_WATCHING_H_
