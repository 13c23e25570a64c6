#include "compress/buffers/buffer_tiers.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <thread>

#include "base/rng.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/temp_directory.h"

namespace isthmus::compress {
namespace {

constexpr int64_t kWords = 64;

struct Tiers {
  Tiers(int64_t memory, int64_t file, int64_t spare, SpillFile::BeforeWrite before = nullptr) {
    BufferTiers::Options options;
    options.words = kWords;
    options.layout = {memory, file, spare};
    options.spill_directory = directory.path();
    options.before_write = std::move(before);
    auto made = BufferTiers::Make(std::move(options));
    EXPECT_TRUE(made.ok()) << made.status();
    tiers = *std::move(made);
  }
  void Put(uint32_t id, uint16_t value) {
    auto buffer = tiers->Fetch(id);
    ASSERT_TRUE(buffer.ok()) << buffer.status();
    std::fill_n(*buffer, kWords, value);
  }
  // -1: words differ.
  int Get(uint32_t id) {
    auto buffer = tiers->Fetch(id);
    EXPECT_TRUE(buffer.ok()) << buffer.status();
    return buffer.ok() ? Value(*buffer) : -2;
  }
  int Look(uint32_t id) {
    std::vector<uint16_t> scratch(kWords);
    auto buffer = tiers->Look(id, scratch.data());
    EXPECT_TRUE(buffer.ok()) << buffer.status();
    return buffer.ok() ? Value(*buffer) : -2;
  }
  static int Value(const uint16_t* buffer) {
    return std::all_of(buffer, buffer + kWords, [&](uint16_t w) { return w == buffer[0]; })
               ? buffer[0]
               : -1;
  }

  TempDirectory directory;
  std::unique_ptr<BufferTiers> tiers;
};

// Writes wait until it is opened.
struct Gate {
  SpillFile::BeforeWrite Hook() {
    return [this](int64_t) {
      while (!open) std::this_thread::yield();
      return absl::OkStatus();
    };
  }
  std::atomic<bool> open{true};
};

// Whatever is read ahead, dropped and looked at, and however memory and file share the samples: the
// content is what was put there last, and memory never holds more than it may.
TEST(BufferTiers, HoldWhatWasPutThereLast) {
  for (auto [memory, file, spare] : {std::tuple<int64_t, int64_t, int64_t>{16, 0, 0},
                                     {8, 8, 8},
                                     {8, 8, 1},
                                     {4, 12, 0},
                                     {1, 15, 3},
                                     {1, 15, 0},
                                     {0, 16, 2},
                                     {0, 16, 0},
                                     {15, 1, 0}}) {
    for (uint64_t seed = 0; seed < 6; ++seed) {
      Tiers t(memory, file, spare);
      std::map<uint32_t, uint16_t> expected;
      for (uint64_t i = 0; i < 600; ++i) {
        const uint32_t id = static_cast<uint32_t>(RandomBelow(seed, 1, i, 24));
        const uint64_t what = RandomBelow(seed, 2, i, 16);
        const bool known = expected.count(id) > 0;
        if (what == 0) {
          t.tiers->Drop(id);
          expected.erase(id);
        } else if (what == 1 && known) {
          ASSERT_EQ(t.Look(id), expected[id]) << "seed " << seed << ", " << i;
        } else if (what < 6) {
          std::vector<uint32_t> ids;
          for (uint64_t k = 0; k < what; ++k)
            ids.push_back(static_cast<uint32_t>(RandomBelow(seed, 3 + k, i, 24)));
          t.tiers->Prefetch(ids);
        } else if (known) {
          ASSERT_EQ(t.Get(id), expected[id]) << "seed " << seed << ", " << i;
          t.Put(id, expected[id] = static_cast<uint16_t>(i));
        } else if (expected.size() < 16) {
          t.Put(id, expected[id] = static_cast<uint16_t>(i));
        }
        ASSERT_LE(t.tiers->buffers_made(), std::max<int64_t>(memory, 1) + 1);
        ASSERT_LE(t.tiers->in_memory(), std::max<int64_t>(memory, 1));
      }
      for (const auto& [id, value] : expected) EXPECT_EQ(t.Look(id), value);
    }
  }
}

// The race of the published code: a sample is read ahead while what this step made of it is still
// on its way to the file, where an older version lies. The write is held up; what is read is the
// newest all the same.
TEST(BufferTiers, ReadsAheadWhatIsStillBeingWritten) {
  Gate gate;
  Tiers t(4, 12, 4, gate.Hook());
  for (uint32_t id = 0; id < 12; ++id) t.Put(id, static_cast<uint16_t>(100 + id));
  for (uint32_t id = 0; id < 12; ++id) ASSERT_EQ(t.Look(id), 100 + static_cast<int>(id));
  t.Put(11, 211);
  gate.open = false;
  t.tiers->Prefetch(std::vector<uint32_t>{5});  // through the buffer of 11: its write is held up
  t.tiers->Prefetch(std::vector<uint32_t>{11, 5});
  gate.open = true;
  EXPECT_EQ(t.Get(11), 211);
  EXPECT_EQ(t.Get(5), 105);
}

// The same with no reading ahead: the codec wants the sample at once. The gate opens only after the
// codec has asked; the content that lies in the file until then is the old one.
TEST(BufferTiers, WaitsForWhatIsStillBeingWritten) {
  Gate gate;
  for (bool look : {false, true}) {
    Tiers t(1, 7, 1, gate.Hook());
    for (uint16_t round = 0; round < 5; ++round) {
      t.Put(2, 20);
      t.Put(1, static_cast<uint16_t>(10 + round));
      ASSERT_EQ(t.Look(2), 20);  // no write is under way now
      gate.open = false;
      t.Put(2, 20);  // 1 leaves memory
      std::atomic<bool> asked{false};
      std::thread opener([&] {
        while (!asked) std::this_thread::yield();
        // The result is the same at any moment; later, a reader that does not wait is caught.
        for (int i = 0; i < 10000; ++i) std::this_thread::yield();
        gate.open = true;
      });
      asked = true;
      EXPECT_EQ(look ? t.Look(1) : t.Get(1), 10 + round);
      opener.join();
    }
  }
}

// An epoch in an order that is known: what comes next is in memory when it is its turn.
TEST(BufferTiers, WhatIsReadAheadNeedsNoReadLater) {
  Tiers with(8, 24, 8), without(8, 24, 8);
  for (uint32_t epoch = 0; epoch < 4; ++epoch) {
    std::vector<uint32_t> order(32);
    for (uint32_t i = 0; i < 32; ++i) order[i] = (i * 13 + epoch * 7) % 32;
    with.tiers->Prefetch({order.data(), 2});
    for (uint32_t i = 0; i < 32; ++i) {
      const int before = epoch == 0 ? 0 : static_cast<int>(1000 * (epoch - 1) + order[i]);
      for (Tiers* t : {&with, &without}) {
        if (epoch > 0) {
          ASSERT_EQ(t->Get(order[i]), before);
        }
        t->Put(order[i], static_cast<uint16_t>(1000 * epoch + order[i]));
      }
      const size_t ahead = std::min<size_t>(2, 31 - i);
      with.tiers->Prefetch({order.data() + i + 1, ahead});
    }
  }
  EXPECT_EQ(with.tiers->late_reads(), 0);
  // What was used last makes room, so that a quarter of the samples stays: of 3 epochs of 32, about
  // 72 reads are late.
  EXPECT_GT(without.tiers->late_reads(), 50);
  EXPECT_LT(without.tiers->late_reads(), 85);
}

// Read ahead and never asked for: it leaves memory again, and reading ahead goes on.
TEST(BufferTiers, WhatNobodyFetchesDoesNotClogMemory) {
  Tiers t(4, 12, 4);
  for (uint32_t id = 0; id < 16; ++id) t.Put(id, static_cast<uint16_t>(id));
  for (uint32_t id = 4; id < 16; ++id) {
    t.tiers->Prefetch(std::vector<uint32_t>{id});
    ASSERT_EQ(t.Look(id), static_cast<int>(id));  // it has come
    if (id % 2 == 0) continue;
    const int64_t late = t.tiers->late_reads();
    EXPECT_EQ(t.Get(id), static_cast<int>(id));
    EXPECT_EQ(t.tiers->late_reads(), late);
  }
}

// A full disk is told by the next call, and by every one after it.
TEST(BufferTiers, AFileErrorIsTheResultOfTheNextCall) {
  std::atomic<bool> full{false};
  Tiers t(2, 6, 2, [&](int64_t) {
    return full ? absl::ResourceExhaustedError("writing the spill file: No space left on device")
                : absl::OkStatus();
  });
  for (uint32_t id = 0; id < 6; ++id) t.Put(id, static_cast<uint16_t>(id));
  full = true;
  absl::Status status;
  for (uint32_t id = 0; id < 6 && status.ok(); ++id) status = t.tiers->Fetch(id).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(status.message(), testing::HasSubstr("No space left"));
  t.tiers->Prefetch(std::vector<uint32_t>{0, 1, 2});
  EXPECT_EQ(t.tiers->Fetch(0).status(), status);
  EXPECT_EQ(t.tiers->status(), status);
}

TEST(BufferTiers, MayEndWhileJobsAreUnderWay) {
  Gate gate;
  {
    Tiers t(2, 6, 2, gate.Hook());
    for (uint32_t id = 0; id < 8; ++id) t.Put(id, 1);
    gate.open = false;
    t.tiers->Prefetch(std::vector<uint32_t>{0, 1, 2});
    gate.open = true;
  }
}

}  // namespace
}  // namespace isthmus::compress
