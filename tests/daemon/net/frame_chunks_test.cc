#include "daemon/net/frame_chunks.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace isthmus::daemon {
namespace {

worker::Frame MakeFrame(size_t bytes) {
  worker::Frame frame;
  frame.header.set_step(static_cast<int64_t>(bytes));
  frame.header.set_payload_bytes(bytes);
  for (size_t i = 0; i < bytes; ++i) frame.payload.push_back(static_cast<char>(i * 131 + i / 251));
  return frame;
}

std::vector<LinkChunk> Cut(worker::Frame frame, int64_t chunk_bytes) {
  FrameCutter cutter(std::move(frame), chunk_bytes);
  std::vector<LinkChunk> chunks;
  for (LinkChunk chunk; cutter.Next(&chunk);) chunks.push_back(chunk);
  return chunks;
}

TEST(FrameChunks, EverySizeAroundTheBordersComesBack) {
  constexpr int64_t kChunk = 1000;
  for (size_t bytes : {0, 1, 2, 999, 1000, 1001, 1999, 2000, 2001, 2999, 3000, 3001, 10007}) {
    const worker::Frame frame = MakeFrame(bytes);
    const auto chunks = Cut(frame, kChunk);
    EXPECT_EQ(chunks.size(), std::max<size_t>(1, (bytes + kChunk - 1) / kChunk)) << bytes;
    FrameAssembler assembler(kChunk);
    for (size_t i = 0; i < chunks.size(); ++i) {
      EXPECT_EQ(chunks[i].has_header(), i == 0);
      const auto whole = assembler.Add(chunks[i], static_cast<int64_t>(bytes));
      ASSERT_TRUE(whole.ok()) << whole.status();
      EXPECT_EQ(*whole, i + 1 == chunks.size());
    }
    const worker::Frame back = assembler.Take();
    EXPECT_EQ(back.payload, frame.payload) << bytes;
    EXPECT_EQ(back.header.SerializeAsString(), frame.header.SerializeAsString());
    EXPECT_FALSE(assembler.in_frame());
  }
}

TEST(FrameChunks, ALongFrameBeginsWithASmallChunk) {
  const auto sizes = [](size_t bytes) {
    std::vector<size_t> sizes;
    for (const LinkChunk& chunk : Cut(MakeFrame(bytes), kMaxChunkBytes))
      sizes.push_back(chunk.data().size());
    return sizes;
  };
  EXPECT_EQ(sizes(2 * kLeadingBytes), (std::vector<size_t>{2 * kLeadingBytes}));
  EXPECT_EQ(sizes(2 * kLeadingBytes + 1), (std::vector<size_t>{kLeadingBytes, kLeadingBytes + 1}));
}

TEST(FrameChunks, ThePlansChunkSizeIsKeptWithinTheLimits) {
  LinkPlan link;
  EXPECT_EQ(ChunkBytesOf(link), kDefaultChunkBytes);
  link.set_chunk_bytes(1);
  EXPECT_EQ(ChunkBytesOf(link), kMinChunkBytes);
  link.set_chunk_bytes(int64_t{1} << 40);
  EXPECT_EQ(ChunkBytesOf(link), kMaxChunkBytes);
}

LinkChunk Header(uint64_t payload_bytes, const std::string& data) {
  LinkChunk chunk;
  chunk.mutable_header()->set_payload_bytes(payload_bytes);
  chunk.set_data(data);
  return chunk;
}

LinkChunk Data(const std::string& data) {
  LinkChunk chunk;
  chunk.set_data(data);
  return chunk;
}

// Each case: chunks of which the last must be refused, and a word of the refusal.
TEST(FrameChunks, WhatASenderMustNotDoIsRefused) {
  LinkChunk big_header = Header(0, "");
  big_header.mutable_header()->mutable_sample_ids()->Resize(300'000, 1);
  const std::vector<std::pair<std::vector<LinkChunk>, std::string>> cases = {
      {{Data("x")}, "before a frame's header"},
      {{Data("")}, "before a frame's header"},
      {{Header(101, "")}, "plan allows 100"},
      {{Header(~uint64_t{0}, "")}, "plan allows 100"},
      {{Header(10, "12345678901")}, "more than"},
      {{Header(10, "12345"), Data("678901")}, "more than"},
      {{Header(10, "12345"), Header(10, "1")}, "inside another frame"},
      {{Header(10, "12345"), Data("")}, "empty chunk"},
      {{Header(100, std::string(51, 'x'))}, "at most 50"},
      {{big_header}, "allowed"},
  };
  for (const auto& [chunks, word] : cases) {
    FrameAssembler assembler(50);
    for (size_t i = 0; i < chunks.size(); ++i) {
      const auto whole = assembler.Add(chunks[i], 100);
      if (i + 1 < chunks.size()) {
        ASSERT_TRUE(whole.ok()) << whole.status();
        continue;
      }
      EXPECT_EQ(whole.status().code(), absl::StatusCode::kInvalidArgument) << word;
      EXPECT_NE(whole.status().message().find(word), absl::string_view::npos) << whole.status();
    }
  }
}

}  // namespace
}  // namespace isthmus::daemon
