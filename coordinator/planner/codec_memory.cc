#include "coordinator/planner/codec_memory.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "coordinator/core/card.h"
#include "coordinator/core/format.h"
#include "coordinator/planner/cost_model.h"
#include "proto/codec/codec_pair.h"
#include "proto/codec/codec_size.h"
#include "proto/codec/codec_text.h"
#include "proto/plan/card_memory.h"

namespace isthmus::coordinator {
namespace {

// Room for delta buffers at one end of a boundary on stage `s`.
struct Room {
  int64_t memory = 0;
  int64_t disk = 0;
};

Room BufferRoom(const JobSpec& job, const Placement& p, int s) {
  const int ends = (s > 0) + (s + 1 < static_cast<int>(p.nodes.size()));
  const CompressionSpec& c = job.compression();
  return {std::min(c.buffer_memory_bytes(), FreeOnHost(p, s) / ends),
          std::min(c.buffer_disk_bytes(), p.nodes[s]->disk_bytes() / ends)};
}

// Samples that ever get a buffer.
int64_t BufferedSamples(const JobSpec& job, const DataSize& data) {
  return std::min<int64_t>(data.train_samples, job.recipe().steps() * job.recipe().global_batch());
}

// Of one micro-batch at a boundary.
TensorDims BoundaryDims(const JobSpec& job) {
  return {job.recipe().micro_batch(), job.model().context(), job.model().hidden()};
}

// Micro-batches under way on the stage below the boundary.
int UnderWay(const JobSpec& job, const Placement& p, int boundary) {
  const int micros = Micros(job), stages = static_cast<int>(p.nodes.size());
  const int own = MicrosInFlight(job.strategy().schedule(), stages, boundary, micros);
  if (p.warmups.empty()) return own;
  return std::max(own, std::min(micros, p.warmups[static_cast<size_t>(boundary)] + 1));
}

absl::Status PlaceTables(const JobSpec& job, int boundary, const CodecSpec& codec, Placement* p) {
  const TensorDims dims = BoundaryDims(job);
  const int64_t bytes = PredictorBytes(codec, dims, job.model().vocabulary());
  if (bytes > FreeBytes(*p, boundary)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "memory: the tables of ", FormatCodec(codec), " on boundary b", boundary, " need ",
        FormatBytes(bytes), " at either end, ", FormatBytes(FreeBytes(*p, boundary)),
        " are free. Choose a codec without predict, or give daemons more memory"));
  }
  for (int s : {boundary, boundary + 1}) p->bytes[static_cast<size_t>(s)] += bytes;
  return absl::OkStatus();
}

absl::Status PlaceIndices(const JobSpec& job, int boundary, const CodecSpec& backward,
                          BoundaryChoice* choice, Placement* p) {
  const TensorDims dims = BoundaryDims(job);
  choice->indices_bytes = IndicesBytes(backward, dims);
  const int64_t bytes = UnderWay(job, *p, boundary) * choice->indices_bytes;
  const int64_t free = std::min(FreeOnHost(*p, boundary), FreeOnHost(*p, boundary + 1));
  if (bytes > free) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "memory: the indices that ", FormatCodec(backward), " on boundary b", boundary,
        " needs of the activations under way take ", FormatBytes(bytes), " at either end, ",
        FormatBytes(free),
        " are free. Keep a smaller share, choose a backward codec other than kept, or give daemons "
        "more memory"));
  }
  for (int s : {boundary, boundary + 1}) HostBytes(s, p) += bytes;
  return absl::OkStatus();
}

absl::Status PlaceResiduals(const JobSpec& job, int boundary, bool forward, const CodecSpec& codec,
                            const TensorDims& dims, Placement* p) {
  const int s = boundary + (forward ? 0 : 1);
  const int64_t bytes = ResidualBytes(codec, dims, job.recipe().global_batch());
  const int64_t free = std::max<int64_t>(0, StageRoom(*p->nodes[s]) - p->bytes[s]);
  if (bytes > free) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "memory: the residuals of ", FormatCodec(codec), " on boundary b", boundary, " need ",
        FormatBytes(bytes), " on daemon ", p->nodes[s]->name(), ", ", FormatBytes(free),
        " are free. ",
        codec.kind() == CodecSpec::FEEDBACK ? "Choose lep, whose residuals are of "
                                              "one micro-batch, or a codec without either"
                                            : "Choose a codec without lep",
        ", or give it more memory"));
  }
  p->bytes[s] += bytes;
  return absl::OkStatus();
}

// Delta's codec has a body in fp32 for each sample of a frame, and opens quantised buffers.
int64_t CardFrameBytes(const CodecSpec& codec, const TensorDims& dims) {
  return BufferBytes(codec, dims.samples, dims.positions, dims.hidden) +
         (codec.buffer_bits() > 0 ? 6 : 4) * dims.elements();
}

absl::Status PlaceCardFrames(const JobSpec& job, int boundary, const CodecSpec& codec,
                             Placement* p) {
  const int64_t bytes = CardFrameBytes(codec, BoundaryDims(job));
  for (int s : {boundary, boundary + 1}) {
    const NodeInfo& node = *p->nodes[s];
    if (!OnCard(node)) continue;
    const int64_t free = std::max<int64_t>(0, StageRoom(node) - p->bytes[s]);
    if (bytes > free) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "memory: a frame of ", FormatCodec(codec), " on boundary b", boundary, " takes ",
          FormatBytes(bytes), " of the card of daemon ", node.name(), ", ", FormatBytes(free),
          " are free. Use smaller micro-batches (recipe.micro_batch), or a codec without buffers"));
    }
    p->bytes[s] += bytes;
  }
  return absl::OkStatus();
}

// Boundaries of a stage that have delta buffers.
int BufferEnds(const Placement& p, size_t s) {
  const auto has = [&p](size_t b) {
    return b < p.boundaries.size() && HasBuffers(p.boundaries[b].forward);
  };
  return (s > 0 && has(s - 1)) + has(s);
}

// Of the card of `node`, what a plan has of it: each of its daemons counts on a part.
int64_t WholeCard(const NodeInfo& node, const std::vector<const NodeInfo*>& nodes) {
  const std::string card = CardOf(node.device());
  if (card.empty()) return StageRoom(node);
  int64_t bytes = 0;
  for (const NodeInfo* other : nodes)
    bytes += CardOf(other->device()) == card ? StageRoom(*other) : 0;
  return bytes;
}

}  // namespace

int64_t BufferNeed(const JobSpec& job, const Placement& p, const CodecSpec& codec) {
  return BufferBytes(codec, BufferedSamples(job, p.data), job.model().context(),
                     job.model().hidden());
}

absl::Status CheckBuffers(const JobSpec& job, const Placement& p, int boundary,
                          const CodecSpec& codec) {
  const int64_t need = BufferNeed(job, p, codec);
  const std::string bits =
      codec.buffer_bits() > 0 ? absl::StrCat(codec.buffer_bits(), " bits") : "2 bytes";
  for (int s : {boundary, boundary + 1}) {
    const Room room = BufferRoom(job, p, s);
    if (room.memory + room.disk >= need) continue;
    const CompressionSpec& c = job.compression();
    return absl::ResourceExhaustedError(absl::StrCat(
        "delta buffers of boundary b", boundary, " need ", FormatBytes(need), " (", need,
        " bytes: ", BufferedSamples(job, p.data), " samples x ", job.model().context(),
        " positions x ", job.model().hidden(), " channels x ", bits, ") at either end; daemon ",
        p.nodes[s]->name(), " has ", FormatBytes(room.memory), " of memory and ",
        FormatBytes(room.disk), " of disk for them (compression.buffer_memory_bytes ",
        FormatBytes(c.buffer_memory_bytes()), ", compression.buffer_disk_bytes ",
        FormatBytes(c.buffer_disk_bytes()), ", free: ", FormatBytes(FreeOnHost(p, s)),
        " of memory and ", FormatBytes(p.nodes[s]->disk_bytes()),
        " of disk). Raise the caps, free some disk, ",
        codec.buffer_bits() > 0 ? "" : "keep the buffers in fewer bits (delta(..., buffer=8)), ",
        "or choose a codec without buffers"));
  }
  return absl::OkStatus();
}

int64_t& HostBytes(int s, Placement* p) {
  return OnCard(*p->nodes[s]) ? p->host_bytes[s] : p->bytes[s];
}

int64_t FreeOnHost(const Placement& p, int s) {
  const int64_t taken = OnCard(*p.nodes[s]) ? p.host_bytes[s] : p.bytes[s];
  return std::max<int64_t>(0, p.nodes[s]->memory_bytes() - taken);
}

int64_t FreeBytes(const Placement& p, int boundary) {
  const size_t s = static_cast<size_t>(boundary);
  return std::max<int64_t>(0, std::min(StageRoom(*p.nodes[s]) - p.bytes[s],
                                       StageRoom(*p.nodes[s + 1]) - p.bytes[s + 1]));
}

absl::Status PlaceState(const JobSpec& job, int boundary, bool forward, const CodecSpec& codec,
                        BoundaryChoice* choice, Placement* p) {
  if (NeedsIndices(codec)) RETURN_IF_ERROR(PlaceIndices(job, boundary, codec, choice, p));
  if (HasBuffers(codec)) RETURN_IF_ERROR(PlaceCardFrames(job, boundary, codec, p));
  const TensorDims dims = BoundaryDims(job);
  RETURN_IF_ERROR(PlaceResiduals(job, boundary, forward, codec,
                                 forward ? dims : WireDims(choice->forward, dims), p));
  return PlaceTables(job, boundary, codec, p);
}

std::string ResidualWords(const JobSpec& job, const Placement& p) {
  const TensorDims dims = BoundaryDims(job);
  std::vector<std::string> words;
  for (size_t b = 0; b < p.boundaries.size(); ++b) {
    for (bool forward : {true, false}) {
      const CodecSpec& codec = forward ? p.boundaries[b].forward : p.boundaries[b].backward;
      const int64_t bytes =
          ResidualBytes(codec, forward ? dims : WireDims(p.boundaries[b].forward, dims),
                        job.recipe().global_batch());
      if (bytes == 0) continue;
      words.push_back(absl::StrCat("of ", FormatCodec(codec), " on boundary b", b, ", ",
                                   FormatBytes(bytes), " on ", p.nodes[b + !forward]->name()));
    }
  }
  return words.empty() ? "" : absl::StrCat("residuals: ", absl::StrJoin(words, "; "));
}

int64_t PlannedCardBuffers(const Plan& plan, int rank, int64_t card_bytes) {
  const JobSpec& job = plan.job();
  const int64_t room = CardBufferBytes(card_bytes, PlannedOnHost(plan, rank));
  int64_t bytes = 0;
  for (const LinkPlan& link : plan.links()) {
    if (link.kind() != LinkPlan::BOUNDARY || !HasBuffers(link.forward()) ||
        (link.lower() != rank && link.upper() != rank))
      continue;
    DataSize data;
    data.train_samples = plan.train_samples();
    int64_t need = job.compression().buffer_memory_bytes();
    if (data.train_samples > 0)
      need = std::min(need, BufferBytes(link.forward(), BufferedSamples(job, data),
                                        job.model().context(), job.model().hidden()));
    bytes += std::min(need, room);
  }
  return bytes;
}

std::string CardBufferWords(const Placement& p, const Plan& plan, int first_rank,
                            const std::vector<const NodeInfo*>& nodes) {
  const int64_t held = std::min(p.buffer_bytes, p.buffer_memory_bytes);
  std::vector<std::string> words;
  bool all = true;
  for (size_t s = 0; s < p.nodes.size(); ++s) {
    if (!OnCard(*p.nodes[s]) || BufferEnds(p, s) == 0) continue;
    const int64_t keep = PlannedOnHost(plan, first_rank + static_cast<int>(s));
    const int64_t room = std::min(held, CardBufferBytes(WholeCard(*p.nodes[s], nodes), keep));
    all = all && room == held;
    words.push_back(room == 0 ? absl::StrCat("a frame's alone on ", p.nodes[s]->name())
                              : absl::StrCat(room < held ? "up to " : "", FormatBytes(room),
                                             " of it on ", p.nodes[s]->name()));
  }
  if (words.empty()) return "";
  return absl::StrCat("on cards: ", absl::StrJoin(words, ", "),
                      all ? "" : ", the rest in pinned memory of the host");
}

std::string IndicesWords(const JobSpec& job, const Placement& p) {
  std::vector<std::string> words;
  for (size_t b = 0; b < p.boundaries.size(); ++b) {
    const BoundaryChoice& choice = p.boundaries[b];
    if (choice.indices_bytes == 0) continue;
    const int under_way = UnderWay(job, p, static_cast<int>(b));
    words.push_back(absl::StrCat("b", b, "'s of ", FormatCodec(choice.forward), ", which ",
                                 FormatCodec(choice.backward), " needs, take ",
                                 FormatBytes(under_way * choice.indices_bytes), " at each end (",
                                 under_way, under_way == 1 ? " micro-batch" : " micro-batches",
                                 " under way x ", FormatBytes(choice.indices_bytes), ")"));
  }
  return words.empty() ? "" : absl::StrCat("indices: ", absl::StrJoin(words, "; "));
}

void PlaceBuffers(const JobSpec& job, Placement* p) {
  p->buffer_memory_bytes = job.compression().buffer_memory_bytes();
  if (p->buffer_bytes == 0) return;
  std::vector<int> ends(p->nodes.size());
  for (size_t s = 0; s < p->nodes.size(); ++s) ends[s] = BufferEnds(*p, s);
  for (size_t s = 0; s < p->nodes.size(); ++s) {
    if (ends[s] > 0)
      p->buffer_memory_bytes = std::min(p->buffer_memory_bytes, BufferRoom(job, *p, s).memory);
  }
  const int64_t held = std::min(p->buffer_bytes, p->buffer_memory_bytes);
  p->spill_bytes = p->buffer_bytes - held;
  if (p->spill_bytes > 0) {  // and slots of the file for what is on its way
    int64_t entry = 0;
    for (const BoundaryChoice& b : p->boundaries)
      entry =
          std::max(entry, BufferBytes(b.forward, 1, job.model().context(), job.model().hidden()));
    p->spill_bytes +=
        entry * LayOutBuffers(entry, p->buffer_memory_bytes, job.compression().buffer_disk_bytes(),
                              BufferedSamples(job, p->data))
                    .spare_entries;
  }
  for (size_t s = 0; s < p->nodes.size(); ++s) {
    HostBytes(static_cast<int>(s), p) += ends[s] * held;
  }
}

absl::Status CheckSpill(const JobSpec& job, const Placement& p) {
  for (size_t s = 0; s < p.nodes.size() && p.spill_bytes > 0; ++s) {
    const int ends = BufferEnds(p, s);
    const int64_t need = ends * p.spill_bytes;
    if (ends == 0 || (p.spill_bytes <= job.compression().buffer_disk_bytes() &&
                      need <= p.nodes[s]->disk_bytes()))
      continue;
    return absl::ResourceExhaustedError(absl::StrCat(
        "disk: delta buffers need ", FormatBytes(need), " (", need, " bytes) of disk on daemon ",
        p.nodes[s]->name(), ", which has ", FormatBytes(p.nodes[s]->disk_bytes()),
        " free and compression.buffer_disk_bytes allows ",
        FormatBytes(job.compression().buffer_disk_bytes()), " for each end"));
  }
  return absl::OkStatus();
}

}  // namespace isthmus::coordinator
