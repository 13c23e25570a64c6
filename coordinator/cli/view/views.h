// Replies of the coordinator as text for people. Whatever another host said is made harmless for
// the terminal. Thread: pure functions.
#ifndef ISTHMUS_COORDINATOR_CLI_VIEW_VIEWS_H_
#define ISTHMUS_COORDINATOR_CLI_VIEW_VIEWS_H_

#include <string>

#include "proto/control.pb.h"

namespace isthmus::cli {

// Alive daemons, and links measured (or found unreachable) between them.
struct Ready {
  int alive = 0;
  int links = 0;
};
Ready CountReady(const ListNodesReply& reply);

// Daemons, then the measured links between them.
std::string NodesView(const ListNodesReply& reply);

// Stages, links with figures and codecs, the reason of each choice, the schedule.
std::string PlanView(const PlanReply& reply);

// What a resume changes; empty: nothing.
std::string ChangesView(const google::protobuf::RepeatedPtrField<FieldChange>& changes);

std::string JobListView(const ListJobsReply& reply);

// One job with its figures; the plan's stages too, where the status has a plan.
// `records`: those of the last steps, for the means; may be empty.
// `verified`: every file was read.
std::string CheckpointsView(const ListCheckpointsReply& reply, bool verified);
std::string JobStatusView(const JobStatus& status, const std::vector<JobRecord>& records);

// A record as it is shown: its step counts from 1, as `status`, `watch` and checkpoints count; so
// many steps are committed after it.
JobRecord AsCounted(const JobRecord& record);

// `logs`: a header line and a line a record, columns of fixed width.
std::string RecordHeader();
std::string RecordLine(const JobRecord& record);

// Where the planner was free to take several daemons and took one: why, and how to have bytes on
// the network all the same. Else empty.
std::string OneStageNote(const JobSpec& job, const Plan& plan);

}  // namespace isthmus::cli

#endif  // ISTHMUS_COORDINATOR_CLI_VIEW_VIEWS_H_
