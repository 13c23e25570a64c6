// What the codecs of a placement keep at the ends of their boundaries, and whether the daemons have
// room for it: delta buffers in memory and on disk, the tables of predict, the indices that a
// `kept` needs from an activation until its gradient comes, the residuals of ef and lep. Adds to
// the bytes of the stages (and what goes to disk). Errors name the daemon, the bytes and what to
// change. Thread: pure functions.
//
// On a GPU all of it lies in the card's memory but indices and delta buffers. Of those only a
// frame's must: the host and its disk have room for all, and what the card has to spare takes some
// of them (proto/plan/card_memory.h). So a full card never refuses a plan for its buffers, and
// nothing of it is promised to them.
#ifndef ISTHMUS_COORDINATOR_PLANNER_CODEC_MEMORY_H_
#define ISTHMUS_COORDINATOR_PLANNER_CODEC_MEMORY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/planner/placement.h"

namespace isthmus::coordinator {

// Bytes of the delta buffers of all samples at one end of a boundary; 0: the codec has none.
int64_t BufferNeed(const JobSpec& job, const Placement& p, const CodecSpec& codec);

// ResourceExhausted: an end of the boundary has no room for them.
absl::Status CheckBuffers(const JobSpec& job, const Placement& p, int boundary,
                          const CodecSpec& codec);

// What stage `s` takes of its host's memory: all of it, or on a GPU what lies there.
int64_t& HostBytes(int s, Placement* p);

// What of its host's memory is left.
int64_t FreeOnHost(const Placement& p, int s);

// Memory left at the end of the boundary that has less.
int64_t FreeBytes(const Placement& p, int boundary);

// What a codec remembers besides delta buffers:
// - predict its tables, at both ends;
// - a kept (as bound to its forward codec) the indices of the micro-batches that the stage below
//   the boundary has under way by its schedule's own count, at both ends: the stage above has them
//   from the frame's arrival until its gradient leaves, so no more of them. `choice` gets what
//   those of one micro-batch take: more under way (ChooseWarmUps) take more;
// - ef and lep their residuals, at the sender's end;
// - on a card, delta what it works on a frame with: the buffers of its samples, and their bodies.
absl::Status PlaceState(const JobSpec& job, int boundary, bool forward, const CodecSpec& codec,
                        BoundaryChoice* choice, Placement* p);

// "residuals: of ef(quant(4)) on boundary b0, 12 MiB on lab"; empty where no boundary has any.
std::string ResidualWords(const JobSpec& job, const Placement& p);

// "on cards: up to 1.20 GiB of it on lab, the rest in pinned memory of the host": the ends whose
// stages are on a GPU. `first_rank`: of the placement, in the plan, whose stages are there;
// `nodes`: all of the plan. Empty where there is none.
std::string CardBufferWords(const Placement& p, const Plan& plan, int first_rank,
                            const std::vector<const NodeInfo*>& nodes);

// Bytes that the delta buffers of a rank are going to take of a card of `card_bytes`, by the rule
// of proto/plan/card_memory.h.
int64_t PlannedCardBuffers(const Plan& plan, int rank, int64_t card_bytes);

// "indices: b0's of topk(0.25), which kept needs, take 96 KiB at each end (3 micro-batches under
// way x 32 KiB)"; empty where no boundary has any.
std::string IndicesWords(const JobSpec& job, const Placement& p);

// The cap of buffer memory that every end can afford, what of it each stage then holds, and what
// goes to disk.
void PlaceBuffers(const JobSpec& job, Placement* p);

// ResourceExhausted: more goes to disk than a daemon has or the job allows.
absl::Status CheckSpill(const JobSpec& job, const Placement& p);

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_PLANNER_CODEC_MEMORY_H_
