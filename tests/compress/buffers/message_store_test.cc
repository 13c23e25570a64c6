#include "compress/buffers/message_store.h"

#include <algorithm>
#include <map>
#include <vector>

#include "base/rng.h"
#include "gtest/gtest.h"
#include "tests/temp_directory.h"

namespace isthmus::compress {
namespace {

std::unique_ptr<MessageStore> MakeStore(int64_t memory_entries, int64_t disk_entries,
                                        const std::string& directory) {
  MessageStore::Options options;
  options.entry_elements = 8;
  options.memory_bytes = 16 * memory_entries + 5;  // not a whole number of entries
  options.disk_bytes = 16 * disk_entries + 3;
  options.spill_directory = directory;
  auto store = MessageStore::Make(options);
  EXPECT_TRUE(store.ok()) << store.status();
  return *std::move(store);
}

// One frame: every kept sample's buffer is filled with a value that depends on id and version.
// Returns how many were known.
int Visit(MessageStore* store, const std::vector<uint32_t>& ids) {
  std::vector<MessageStore::Slot> plan;
  store->Plan(ids, &plan);
  EXPECT_TRUE(store->Begin(ids, plan).ok());
  int known = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    known += plan[i].known;
    if (!plan[i].keep) continue;
    auto buffer = store->Buffer(ids[i]);
    EXPECT_TRUE(buffer.ok());
    for (int k = 0; k < 8; ++k) {
      if (plan[i].known) {
        EXPECT_EQ((*buffer)[k], static_cast<uint16_t>(ids[i] * 100 + plan[i].version))
            << "sample " << ids[i];
      }
      (*buffer)[k] = static_cast<uint16_t>(ids[i] * 100 + plan[i].version + 1);
    }
    store->Bump(ids[i]);
  }
  return known;
}

TEST(MessageStore, ForgetsTheLeastRecentlyUsed) {
  auto store = MakeStore(3, 0, "");
  EXPECT_EQ(store->capacity(), 3);
  EXPECT_EQ(Visit(store.get(), {1, 2, 3}), 0);
  EXPECT_EQ(Visit(store.get(), {1}), 1);
  EXPECT_EQ(Visit(store.get(), {4}), 0);  // 2 goes
  EXPECT_EQ(Visit(store.get(), {1, 3, 4}), 3);
  EXPECT_EQ(Visit(store.get(), {2}), 0);
  EXPECT_EQ(store->evicted(), 2);
}

TEST(MessageStore, AFrameNeverEvictsItsOwnSamples) {
  auto store = MakeStore(3, 0, "");
  Visit(store.get(), {1, 2, 3});
  EXPECT_EQ(Visit(store.get(), {7, 8, 1, 9, 2}),
            2);  // 1 and 2 stay, 7 takes the place of 3, 8 and 9 find no room
  EXPECT_EQ(Visit(store.get(), {1, 2, 7}), 3);
  EXPECT_EQ(Visit(store.get(), {8}), 0);
}

TEST(MessageStore, NoCapacityIsNoError) {
  auto store = MakeStore(0, 0, "");
  EXPECT_EQ(Visit(store.get(), {1, 2}), 0);
  EXPECT_EQ(Visit(store.get(), {1, 2}), 0);
  EXPECT_EQ(store->size(), 0);
}

TEST(MessageStore, DistinctSamplesBoundTheReservation) {
  TempDirectory directory;
  MessageStore::Options options;
  options.entry_elements = 8;
  options.memory_bytes = 32;
  options.disk_bytes = int64_t{1} << 60;  // far more than any disk
  options.spill_directory = directory.path();
  options.distinct_samples = 6;
  auto store = MessageStore::Make(options);
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_EQ((*store)->capacity(), 6);
}

// The tiers are a local matter: the same samples are known, with the same content, however capacity
// is split between memory and disk.
TEST(MessageStore, TiersHoldTheSameUnderRandomUse) {
  TempDirectory directory;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    std::vector<std::unique_ptr<MessageStore>> stores;
    stores.push_back(MakeStore(9, 0, ""));
    stores.push_back(MakeStore(4, 5, directory.path()));
    stores.push_back(MakeStore(1, 8, directory.path()));
    stores.push_back(MakeStore(0, 9, directory.path()));
    for (uint64_t frame = 0; frame < 60; ++frame) {
      std::vector<uint32_t> ids;
      for (uint64_t i = 0; i < 1 + frame % 12; ++i) {
        const uint32_t id = static_cast<uint32_t>(RandomBelow(seed, frame, i, 16));
        if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
      }
      const int known = Visit(stores[0].get(), ids);
      for (size_t s = 1; s < stores.size(); ++s) {
        stores[s]->Prefetch(ids);
        ASSERT_EQ(Visit(stores[s].get(), ids), known)
            << "seed " << seed << " frame " << frame << " store " << s;
      }
      if (RandomBelow(seed, frame, 99, 4) == 0) {
        for (auto& store : stores) store->Forget(ids[0]);
      }
      const uint64_t hash = *stores[0]->Hash();
      for (auto& store : stores) {
        ASSERT_EQ(*store->Hash(), hash) << "seed " << seed << " frame " << frame;
        ASSERT_LE(store->size(), store->capacity());
        ASSERT_EQ(store->memory_bytes() + store->disk_bytes(), 16 * store->size());
      }
    }
  }
}

TEST(MessageStore, HashTellsContentVersionAndIdApart) {
  auto a = MakeStore(4, 0, ""), b = MakeStore(4, 0, "");
  Visit(a.get(), {1});
  Visit(b.get(), {2});
  EXPECT_NE(*a->Hash(), *b->Hash());
  Visit(b.get(), {1});
  b->Forget(2);
  EXPECT_EQ(*a->Hash(), *b->Hash());
  b->Bump(1);
  EXPECT_NE(*a->Hash(), *b->Hash());
  Visit(a.get(), {3});
  const uint64_t before = *a->Hash();
  (*a->Buffer(3))[7] ^= 1;
  EXPECT_NE(*a->Hash(), before);
}

}  // namespace
}  // namespace isthmus::compress
