#include "daemon/net/frame_chunks.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/huge_pages.h"
#include "base/status.h"

namespace isthmus::daemon {

int64_t ChunkBytesOf(const LinkPlan& link) {
  if (link.chunk_bytes() == 0) return kDefaultChunkBytes;
  return std::clamp(link.chunk_bytes(), kMinChunkBytes, kMaxChunkBytes);
}

FrameCutter::FrameCutter(worker::Frame frame, int64_t chunk_bytes)
    : frame_(std::move(frame)), chunk_bytes_(static_cast<size_t>(chunk_bytes)) {}

bool FrameCutter::Next(LinkChunk* chunk) {
  if (header_out_ && offset_ == frame_.payload.size()) return false;
  chunk->Clear();
  if (!header_out_) *chunk->mutable_header() = std::move(frame_.header);
  header_out_ = true;
  const bool leads = offset_ == 0 && frame_.payload.size() > 2 * kLeadingBytes;
  const size_t most = leads ? std::min<size_t>(chunk_bytes_, kLeadingBytes) : chunk_bytes_;
  const size_t bytes = std::min(most, frame_.payload.size() - offset_);
  chunk->mutable_data()->assign(frame_.payload, offset_, bytes);
  offset_ += bytes;
  return true;
}

absl::Status FrameAssembler::Start(LinkChunk* chunk, int64_t max_payload_bytes) {
  if (in_frame_) {
    return absl::InvalidArgumentError(
        absl::StrCat("a frame's header came inside another frame, after ", frame_.payload.size(),
                     " of its ", frame_.header.payload_bytes(), " bytes"));
  }
  if (chunk->header().ByteSizeLong() > kMaxHeaderBytes) {
    return absl::InvalidArgumentError(absl::StrCat("a frame's header has ",
                                                   chunk->header().ByteSizeLong(), " bytes; ",
                                                   kMaxHeaderBytes, " are allowed"));
  }
  const uint64_t payload_bytes = chunk->header().payload_bytes();
  if (max_payload_bytes < 0 || payload_bytes > static_cast<uint64_t>(max_payload_bytes)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a frame of ", payload_bytes, " bytes was announced; the plan allows ", max_payload_bytes));
  }
  frame_.header = std::move(*chunk->mutable_header());
  frame_.payload.clear();
  ReserveOnHugePages(payload_bytes, &frame_.payload);
  in_frame_ = true;
  return absl::OkStatus();
}

absl::StatusOr<bool> FrameAssembler::Add(LinkChunk chunk, int64_t max_payload_bytes) {
  if (chunk.data().size() > static_cast<size_t>(chunk_bytes_)) {
    return absl::InvalidArgumentError(absl::StrCat("a chunk has ", chunk.data().size(),
                                                   " bytes; its sender announced at most ",
                                                   chunk_bytes_));
  }
  const bool starts = chunk.has_header();
  if (starts) RETURN_IF_ERROR(Start(&chunk, max_payload_bytes));
  if (!in_frame_) return absl::InvalidArgumentError("data came before a frame's header");
  const size_t missing = frame_.header.payload_bytes() - frame_.payload.size();
  if (chunk.data().size() > missing) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a frame has at least ", chunk.data().size() - missing,
        " bytes more than its header announced (", frame_.header.payload_bytes(), ")"));
  }
  if (chunk.data().empty() && !starts)
    return absl::InvalidArgumentError("an empty chunk came inside a frame");
  frame_.payload.append(chunk.data());
  return frame_.payload.size() == frame_.header.payload_bytes();
}

worker::Frame FrameAssembler::Take() {
  in_frame_ = false;
  return std::move(frame_);
}

}  // namespace isthmus::daemon
