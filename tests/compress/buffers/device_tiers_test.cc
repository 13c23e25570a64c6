#include "compress/buffers/device_tiers.h"

#include <algorithm>
#include <deque>
#include <map>

#include "base/rng.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/temp_directory.h"

namespace isthmus::compress {
namespace {

constexpr int64_t kDeviceWords = 32;

// Copies lie in its queue until somebody waits for them, or until chance has them done; what the
// test writes and reads as the device's owner overtakes them.
class LazyDevice : public FarMemory {
 public:
  LazyDevice(uint64_t seed, int64_t most) : seed_(seed), most_(most) {}
  absl::StatusOr<uint16_t*> Allocate() override {
    if (static_cast<int64_t>(memory_.size()) == most_)
      return absl::ResourceExhaustedError("the device is full");
    memory_.push_back(NewHostBuffer(kDeviceWords));
    std::fill_n(memory_.back().get(), kDeviceWords, uint16_t{0xdead});
    return memory_.back().get();
  }
  HostBuffer AllocateHost() override {
    HostBuffer buffer = NewHostBuffer(kDeviceWords);
    std::fill_n(buffer.get(), kDeviceWords, uint16_t{0xbeef});
    return buffer;
  }
  absl::StatusOr<uint64_t> ToHost(uint16_t* host, const uint16_t* device) override {
    return Queue(device, host);
  }
  absl::StatusOr<uint64_t> ToDevice(uint16_t* device, const uint16_t* host) override {
    return Queue(host, device);
  }
  bool Done(uint64_t ticket) override {
    if (RandomBelow(seed_, 77, ++asked_, 3) == 0) Run(done_ + 1);
    return ticket <= done_;
  }
  absl::Status Await(uint64_t ticket) override {
    Run(ticket);
    return fault;
  }
  absl::Status Follow(uint64_t ticket) override { return Await(ticket); }

  void RunAll() { Run(queued_); }
  absl::Status fault;

 private:
  struct Copy {
    const uint16_t* from;
    uint16_t* to;
  };
  absl::StatusOr<uint64_t> Queue(const uint16_t* from, uint16_t* to) {
    if (!fault.ok()) return fault;
    copies_.push_back({from, to});
    return ++queued_;
  }
  void Run(uint64_t ticket) {
    for (; done_ < std::min(ticket, queued_); ++done_) {
      std::copy_n(copies_.front().from, kDeviceWords, copies_.front().to);
      copies_.pop_front();
    }
  }

  const uint64_t seed_;
  const int64_t most_;
  std::vector<HostBuffer> memory_;
  std::deque<Copy> copies_;
  uint64_t queued_ = 0, done_ = 0, asked_ = 0;
};

// Buffers of 9 words and a byte: 19 bytes, in two pieces on the device.
struct Tiers {
  Tiers(int64_t device, const BufferLayout& layout, uint64_t seed, int64_t device_has = 1 << 20) {
    DeviceTiers::Options options;
    options.words = 10;
    options.device_words = kDeviceWords;
    options.pieces = {{0, 6}, {16, 13}};
    options.layout = layout;
    options.device_entries = device;
    options.spill_directory = directory.path();
    auto lazy = std::make_unique<LazyDevice>(seed, device_has);
    far = lazy.get();
    auto made = DeviceTiers::Make(std::move(options), std::move(lazy));
    EXPECT_TRUE(made.ok()) << made.status();
    tiers = *std::move(made);
  }
  // As the device's owner.
  static void Write(uint16_t* slot, uint16_t value) {
    std::fill_n(slot, 3, value);
    std::fill_n(slot + 8, 6, value);
    reinterpret_cast<uint8_t*>(slot)[28] = static_cast<uint8_t>(value);
  }
  static bool Has(const uint16_t* slot, uint16_t value) {
    const auto same = [value](uint16_t w) { return w == value; };
    return std::all_of(slot, slot + 3, same) && std::all_of(slot + 8, slot + 14, same) &&
           reinterpret_cast<const uint8_t*>(slot)[28] == static_cast<uint8_t>(value);
  }
  static std::vector<uint16_t> Content(uint16_t value) {
    std::vector<uint16_t> content(10, value);
    content[9] = static_cast<uint8_t>(value);
    return content;
  }
  std::vector<uint16_t> Look(uint32_t id) {
    std::vector<uint16_t> scratch(10, 1);
    auto content = tiers->Look(id, scratch.data());
    EXPECT_TRUE(content.ok()) << content.status();
    return content.ok() ? std::vector<uint16_t>(*content, *content + 10) : std::vector<uint16_t>();
  }
  // A frame: all of its samples are fetched before any is written.
  void Frame(const std::vector<uint32_t>& ids, uint16_t value) {
    tiers->Begin(ids);
    std::vector<uint16_t*> slots;
    for (uint32_t id : ids) {
      auto slot = tiers->Fetch(id);
      ASSERT_TRUE(slot.ok()) << slot.status();
      slots.push_back(*slot);
    }
    for (size_t i = 0; i < ids.size(); ++i) {
      if (expected.count(ids[i]) > 0) {
        ASSERT_TRUE(Has(slots[i], expected[ids[i]])) << "sample " << ids[i];
      }
      const uint16_t mine = static_cast<uint16_t>(value + i);
      Write(slots[i], mine);
      expected[ids[i]] = mine;
    }
  }

  TempDirectory directory;
  LazyDevice* far = nullptr;
  std::unique_ptr<DeviceTiers> tiers;
  std::map<uint32_t, uint16_t> expected;
};

std::vector<uint32_t> Some(uint64_t seed, uint64_t stream, uint64_t count, uint64_t of) {
  std::vector<uint32_t> ids;
  for (uint64_t i = 0; ids.size() < count; ++i) {
    const uint32_t id = static_cast<uint32_t>(RandomBelow(seed, stream, i, of));
    if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
  }
  return ids;
}

struct Case {
  int64_t device;
  BufferLayout layout;
  int64_t device_has;
};

// Whatever is brought ahead, dropped and looked at, wherever the samples lie and whenever copies
// are done: the content is what was put there last.
TEST(DeviceTiers, HoldWhatWasPutThereLast) {
  for (const Case& c :
       {Case{16, {16, 0, 0}, 16}, Case{8, {16, 0, 0}, 8}, Case{4, {8, 8, 2}, 100},
        Case{1, {8, 8, 2}, 100}, Case{2, {2, 14, 0}, 100}, Case{0, {0, 16, 1}, 100},
        Case{0, {16, 0, 0}, 100}, Case{12, {14, 2, 1}, 5}, Case{9, {12, 4, 3}, 9}}) {
    for (uint64_t seed = 0; seed < 8; ++seed) {
      SCOPED_TRACE(std::to_string(c.device) + " of " + std::to_string(c.layout.memory_entries) +
                   " + " + std::to_string(c.layout.file_entries) + ", seed " +
                   std::to_string(seed));
      Tiers t(c.device, c.layout, seed, c.device_has);
      for (uint64_t i = 0; i < 400; ++i) {
        const uint64_t what = RandomBelow(seed, 2, i, 10);
        const std::vector<uint32_t> ids =
            Some(seed, 100 + i, 1 + RandomBelow(seed, 3, i, c.device_has < 8 ? 4 : 5), 24);
        if (what == 0) {
          t.tiers->Drop(ids[0]);
          t.expected.erase(ids[0]);
        } else if (what == 1) {
          if (t.expected.count(ids[0]) > 0) {
            ASSERT_EQ(t.Look(ids[0]), Tiers::Content(t.expected[ids[0]]));
          } else if (t.expected.size() < 16) {
            const uint16_t value = t.expected[ids[0]] = static_cast<uint16_t>(7 * i);
            ASSERT_TRUE(t.tiers->Put(ids[0], Tiers::Content(value).data()).ok());
          }
        } else if (what < 5) {
          t.tiers->Prefetch(ids);
        } else {
          std::vector<uint32_t> frame;
          size_t fresh = 0;
          for (uint32_t id : ids) {
            if (t.expected.count(id) == 0 && t.expected.size() + ++fresh > 16) continue;
            frame.push_back(id);
          }
          t.Frame(frame, static_cast<uint16_t>(11 * i));
        }
        if (::testing::Test::HasFatalFailure()) return;
        ASSERT_TRUE(t.tiers->status().ok()) << t.tiers->status();
      }
      for (const auto& [id, value] : t.expected) EXPECT_EQ(t.Look(id), Tiers::Content(value));
    }
  }
}

// Epochs over more samples than the device has room for, each frame's named before the one before
// it: no frame has to begin a copy of its own, and all that was on the device in between is used.
TEST(DeviceTiers, BringWhatComesNext) {
  Tiers t(8, {32, 0, 0}, 1);
  for (uint32_t epoch = 0; epoch < 4; ++epoch) {
    const int64_t before = t.tiers->late_copies();
    for (uint32_t frame = 0; frame < 16; ++frame) {
      std::vector<uint32_t> ids, next;
      for (uint32_t i = 0; i < 2; ++i) ids.push_back(2 * frame + i);
      for (uint32_t i = 0; i < 6; ++i) next.push_back((2 * frame + i) % 32);
      t.tiers->Prefetch(next);
      t.far->RunAll();
      t.Frame(ids, static_cast<uint16_t>(100 * epoch + frame));
      if (::testing::Test::HasFatalFailure()) return;
      ASSERT_LE(t.tiers->on_device(), 8);
    }
    if (epoch > 1) {
      EXPECT_EQ(t.tiers->late_copies(), before) << "epoch " << epoch;
    }
  }
  EXPECT_GT(t.tiers->in_memory(), 20);
}

TEST(DeviceTiers, AFrameMayNeedMoreThanTheTier) {
  Tiers t(2, {16, 0, 0}, 1);
  t.Frame({1, 2, 3, 4, 5}, 10);
  t.Frame({5, 6, 1, 7, 8, 9}, 20);
  t.Frame({2, 3, 4}, 30);
  Tiers full(2, {16, 0, 0}, 1, 2);
  full.Frame({1, 2}, 10);
  full.Frame({3}, 20);
  full.tiers->Begin(std::vector<uint32_t>{1, 2, 3});
  ASSERT_TRUE(full.tiers->Fetch(1).ok());
  const absl::Status status = full.tiers->Fetch(2).status();  // 3 has the other slot
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("smaller micro-batches"));
}

TEST(DeviceTiers, AnErrorOfTheDeviceIsFinal) {
  Tiers t(1, {8, 0, 0}, 1);
  t.Frame({1}, 1);
  t.Frame({2}, 2);
  t.far->fault = absl::InternalError("fell off the bus");
  t.tiers->Begin(std::vector<uint32_t>{1});
  EXPECT_EQ(t.tiers->Fetch(1).status().message(), "fell off the bus");
  t.far->fault = absl::OkStatus();
  EXPECT_EQ(t.tiers->Fetch(3).status().message(), "fell off the bus");
}

}  // namespace
}  // namespace isthmus::compress
