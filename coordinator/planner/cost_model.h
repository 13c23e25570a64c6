// What a job costs on given daemons: seconds of a stage, bytes it needs, seconds
// of a transfer. Daemons measured one reference block; everything is scaled from it by
// floating-point operations (proto/model/model_cost.h). Thread: pure functions.
#ifndef ISTHMUS_COORDINATOR_PLANNER_COST_MODEL_H_
#define ISTHMUS_COORDINATOR_PLANNER_COST_MODEL_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/planner/job_data.h"
#include "proto/codec.pb.h"
#include "proto/codec/codec_size.h"
#include "proto/job.pb.h"
#include "proto/model/model_cost.h"
#include "proto/plan.pb.h"

namespace isthmus::coordinator {

// A daemon with LibTorch and a tiny stage: 245 MiB measured, and what transfers hold.
constexpr int64_t kProcessBytes = int64_t{260} << 20;
constexpr double kOptimizerSecondsPerParameter = 3e-9;  // AdamW: 7 passes over memory
constexpr double kFrameOverheadShare = 0.01;            // gRPC and HTTP/2 framing of a chunk
constexpr int64_t kFrameHeaderBytes = 200;              // FrameHeader of a micro-batch

int Micros(const JobSpec& job);  // micro-batches a step

// Micro-batches whose activations a stage keeps at its peak.
int MicrosInFlight(const std::string& schedule, int stages, int stage, int micros);

// Has the daemon measured its compute?
bool HasCompute(const NodeInfo& node);

struct StageSeconds {
  double forward_s = 0;  // of one full micro-batch
  double backward_s = 0;
  double sum() const { return forward_s + backward_s; }
};
// `slice`: of a stage that trains subnetworks.
StageSeconds StageTime(const JobSpec& job, const NodeInfo& node, int first_layer, int end_layer,
                       const SliceShare& slice = {});

// A daemon on a GPU holds its stage in the card's memory; delta buffers go on in the host's.
inline bool OnCard(const NodeInfo& node) { return node.device_memory_bytes() > 0; }
inline int64_t StageRoom(const NodeInfo& node) {
  return OnCard(node) ? node.device_memory_bytes() : node.memory_bytes();
}
// "139.8 GiB", or "139.8 GiB of its card".
std::string RoomWords(const NodeInfo& node);

// Weights, what training keeps beside them, and so many micro-batches under way.
int64_t TrainedBytes(const JobSpec& job, int first_layer, int end_layer, const NodeInfo& node,
                     int micros_in_flight, const SliceShare& slice = {});

// Bytes of a stage on a daemon, where its room is: model, activations, frames in its queues, the
// process itself. Delta buffers come on top.
int64_t StageBytes(const JobSpec& job, int stages, int stage, int first_layer, int end_layer,
                   const NodeInfo& node, const SliceShare& slice = {});

// Blocks of each stage, so that the slowest is as fast as can be, within memory. `nodes` in stage
// order. ResourceExhausted says how many bytes are missing where.
absl::StatusOr<std::vector<int>> BalanceLayers(const JobSpec& job,
                                               const std::vector<const NodeInfo*>& nodes,
                                               const SliceShare& slice = {});

// ResourceExhausted if a stage of the given cut needs more memory than its daemon may use.
absl::Status CheckMemory(const JobSpec& job, const std::vector<const NodeInfo*>& nodes,
                         const std::vector<int>& layers, const SliceShare& slice = {});

// What is left of a job, and what the daemons have of it already.
struct Remaining {
  int64_t start_step = 0;
  int64_t buffers_since =
      -1;  // they kept the delta buffers of all visits since that step; -1: none
};

// Of the samples that the rest of a job trains on, the share that has no delta buffer yet (0 to 1):
// key frames. At most that: of the visits since `buffers_since` those of one pass count, whichever
// has more, and where the number of samples is not known all visits are first ones.
double FirstVisits(const JobSpec& job, const DataSize& data, const Remaining& remaining);

// Bytes on the wire of one micro-batch at a boundary.
double WireBytes(const CodecSpec& codec, const TensorDims& dims, bool warm);
// The mean over a run with that share of first visits.
double MeanWireBytes(const CodecSpec& codec, const TensorDims& dims, double first_visits);

// Of a delta codec: "256 KiB on a first visit, 24.5 KiB after; 96 % of visits are first ones".
std::string VisitWords(const CodecSpec& codec, const TensorDims& dims, double first_visits);

// Rates and round trips by pair of daemons.
class LinkIndex {
 public:
  explicit LinkIndex(const Topology& topology);
  struct Link {
    bool usable = false;  // measured, and one of the two can dial
    bool dials = false;   // this end can
    double rate_bits_per_s = 0;
    double round_trip_s = 0;
    double loss = 0;
    int connections = 1;  // TCP connections that the rate takes
    std::string why_not;  // in words: not usable, or can't dial
  };
  // One direction.
  const Link& Get(const std::string& from_id, const std::string& to_id) const;
  bool Both(const std::string& a, const std::string& b) const {
    return Get(a, b).usable && Get(b, a).usable;
  }

 private:
  std::map<std::pair<std::string, std::string>, Link> links_;
  Link missing_;
};

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_PLANNER_COST_MODEL_H_
