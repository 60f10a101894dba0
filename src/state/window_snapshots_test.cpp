#include "state/window_snapshots.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "state/test_state.h"

namespace tidemill {
namespace {

using testing::HasSubstr;

ContentKey key(int64_t number) { return {{static_cast<uint8_t>(number)}}; }

class Windows : public testing::Test {
 protected:
  Windows() : pool_(tiny_pool(3, 32)), sequence_(*pool_.acquire()) {}
  Status save(WindowSnapshots& windows, int64_t position, int64_t number, bool full = true) {
    return windows.save(pool_, sequence_, position, key(number), full, now_);
  }
  StatePool pool_;
  Sequence sequence_;
  std::vector<int32_t> tokens_ = random_tokens(600, 1);
  Clock::time_point now_ = Clock::time_point{} + std::chrono::hours(1);
};

// Decode passes a boundary with a step of up to `rollback` tokens, some of which are undone.
TEST_F(Windows, ABoundaryCanBePassedByTheRollback) {
  WindowSnapshots windows(pool_.layout(), {});
  ASSERT_TRUE(compute(pool_, sequence_, part(tokens_, 0, 256)));
  ASSERT_TRUE(save(windows, 256, 0));
  const auto expected = windows.find(key(0), now_)->rows;
  for (int64_t passed = 1; passed <= 6; ++passed) {
    ASSERT_TRUE(compute(pool_, sequence_, part(tokens_, 255 + passed, 256 + passed)));
    ASSERT_TRUE(save(windows, 256, passed)) << passed;
    EXPECT_EQ(windows.find(key(passed), now_)->rows, expected) << passed;
  }
  ASSERT_TRUE(compute(pool_, sequence_, part(tokens_, 262, 263)));
  EXPECT_THAT(save(windows, 256, 9).error().message,
              HasSubstr("token 256 of a sequence that has reached 263"));
  // Undoing does not bring back what was overwritten.
  ASSERT_TRUE(pool_.truncate(sequence_, 257));
  EXPECT_FALSE(save(windows, 256, 9));
  for (const int64_t position : {0, 128, 200, 384, -128}) EXPECT_FALSE(save(windows, position, 9));
}

TEST_F(Windows, TheSavedSectionAloneLeavesTheDecoderEmpty) {
  WindowSnapshots windows(pool_.layout(), {});
  ASSERT_TRUE(compute(pool_, sequence_, part(tokens_, 0, 128)));
  ASSERT_TRUE(save(windows, 128, 1, false));
  EXPECT_EQ(windows.bytes(), 2 * 32 * 4);
  Sequence other = *pool_.acquire();
  WindowSnapshots::restore(*windows.find(key(1), now_), pool_, other);
  EXPECT_EQ(other.decoder_floor, 128);
  const auto slot = pool_.slot(other.slot);
  const auto row = [](std::span<std::byte> bytes) { return bytes.subspan(100 % 38 * 4, 4); };
  EXPECT_TRUE(std::ranges::equal(row(slot), row(pool_.slot(sequence_.slot))));
  for (size_t i = 384; i < slot.size(); ++i) ASSERT_EQ(slot[i], std::byte{0xFF}) << i;
  // The full one replaces it; the other way round it stays.
  ASSERT_TRUE(save(windows, 128, 1, true));
  EXPECT_EQ(windows.bytes(), 4 * 32 * 4);
  ASSERT_TRUE(save(windows, 128, 1, false));
  EXPECT_TRUE(windows.find(key(1), now_)->full);
  EXPECT_EQ(windows.count(), 1);
  sequence_.decoder_floor = 100;  // its decoder rows begin too late
  EXPECT_FALSE(save(windows, 128, 2, true));
  EXPECT_TRUE(save(windows, 128, 2, false));
}

TEST_F(Windows, TheBudgetIsKeptOldestUseFirst) {
  const int64_t one = 4 * 32 * 4;
  WindowSnapshots windows(pool_.layout(), {.budget_bytes = 2 * one + 1});
  ASSERT_TRUE(compute(pool_, sequence_, part(tokens_, 0, 128)));
  for (const int64_t number : {1, 2}) ASSERT_TRUE(save(windows, 128, number));
  EXPECT_NE(windows.find(key(1), now_), nullptr);
  ASSERT_TRUE(save(windows, 128, 3));
  EXPECT_EQ(windows.find(key(2), now_), nullptr);
  EXPECT_EQ(windows.bytes(), 2 * one);
  EXPECT_EQ(windows.dropped(), 1);
  // What a hit holds stays, and the error says so when all are held.
  const WindowHandle first = windows.find(key(1), now_);
  const WindowHandle third = windows.find(key(3), now_);
  EXPECT_THAT(save(windows, 128, 4).error().message, HasSubstr("512 bytes does not fit"));
  EXPECT_EQ(windows.count(), 2);
  WindowSnapshots tiny(pool_.layout(), {.budget_bytes = one - 1});
  EXPECT_EQ(save(tiny, 128, 1).error().code, ErrorCode::kNoCapacity);
}

TEST_F(Windows, UnusedOnesAreShortLived) {
  WindowSnapshots windows(pool_.layout(), {.lifetime = std::chrono::seconds(60)});
  ASSERT_TRUE(compute(pool_, sequence_, part(tokens_, 0, 128)));
  ASSERT_TRUE(save(windows, 128, 1));
  ASSERT_TRUE(save(windows, 128, 2));
  now_ += std::chrono::seconds(50);
  EXPECT_NE(windows.find(key(1), now_), nullptr);
  now_ += std::chrono::seconds(50);
  EXPECT_EQ(windows.find(key(2), now_), nullptr);
  EXPECT_NE(windows.find(key(1), now_), nullptr);
  EXPECT_EQ(windows.count(), 1);
}

TEST(WindowLayout, AFullSnapshotOfTheReleasedModelIs2906112Bytes) {
  StateLayout layout;
  layout.window = {RowKind::kQ8, 512};
  layout.window_tokens = 128;
  layout.saved_layers = 20;
  layout.ring_offset.resize(40);
  layout.draft_ring_offset.resize(3);
  const WindowSnapshots windows(layout, {});
  EXPECT_EQ(windows.snapshot_bytes(1280, true), 43 * 128 * 528);
  EXPECT_EQ(windows.snapshot_bytes(1280, false), 20 * 128 * 528);
}

}  // namespace
}  // namespace tidemill
