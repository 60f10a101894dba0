// Handles, capacity, rollback limits, and the arithmetic of the released layout.
#include "state/state_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ops/reference_backend.h"

namespace tidemill {
namespace {

using testing::HasSubstr;

Config released() {
  Config c;
  c.num_hidden_layers = 40;
  c.head_dim = 512;
  c.index_head_dim = 128;
  c.sliding_window = 128;
  c.dspark_block_size = 5;
  c.num_nextn_predict_layers = 3;
  return c;
}

Topology released_topology() {
  Topology t;
  t.layers.resize(40);
  t.kv_sources = {{2, 2}, {8, 2}, {14, 2}, {20, 1}};
  return t;
}

StateLayout layout_of(const Config& config, const Topology& topology) {
  static ThreadTeam team(1);
  static ReferenceBackend backend(team, Rounding{});
  return *StateLayout::build(config, topology, backend);
}

TEST(StateLayout, ReleasedModelCosts890BytesPerTokenAnd528PerWindowRow) {
  const StateLayout layout = layout_of(released(), released_topology());
  EXPECT_EQ(layout.block_bytes, 890 * kBlockTokens);
  EXPECT_EQ(layout.window.bytes(), 528);
  EXPECT_EQ(layout.ring_rows, 134);
  // 20 layers of 134 rows are the section that a prefix hit can restore.
  EXPECT_EQ(layout.ring_offset[20] - layout.ring_offset[0], 1'415'040 + 20 * 32);  // 64-byte rings
  EXPECT_EQ(layout.draft_ring_offset.size(), 3u);
}

TEST(StateLayout, RefusesARatioThatDoesNotDivideABlock) {
  Topology topology = released_topology();
  topology.kv_sources[1].ratio = 3;
  static ThreadTeam team(1);
  static ReferenceBackend backend(team, Rounding{});
  const auto layout = StateLayout::build(released(), topology, backend);
  ASSERT_FALSE(layout);
  EXPECT_THAT(layout.error().message, HasSubstr("layer 8: compress ratio 3"));
}

class Pool : public testing::Test {
 protected:
  Pool()
      : backend_(team_, Rounding{}),
        pool_(*StatePool::create(backend_, layout_of(released(), released_topology()), 2, 5)) {}
  ThreadTeam team_{1};
  ReferenceBackend backend_;
  StatePool pool_;
};

TEST_F(Pool, SlotsAndBlocksComeBack) {
  Sequence a = *pool_.acquire();
  Sequence b = *pool_.acquire();
  EXPECT_EQ(pool_.acquire().error().code, ErrorCode::kNoCapacity);
  EXPECT_TRUE(pool_.reserve(a, 129));
  EXPECT_EQ(a.blocks.size(), 2u);
  EXPECT_TRUE(pool_.reserve(a, 200));  // inside the same blocks
  EXPECT_EQ(pool_.free_blocks(), 3);
  pool_.release(a);
  EXPECT_EQ(pool_.free_blocks(), 5);
  EXPECT_EQ(pool_.free_slots(), 1);
  EXPECT_EQ(a.slot, -1);
  pool_.release(b);
}

TEST_F(Pool, AFailedReservationChangesNothing) {
  Sequence a = *pool_.acquire();
  ASSERT_TRUE(pool_.reserve(a, 256));
  const auto status = pool_.reserve(a, 128 * 6);
  ASSERT_FALSE(status);
  EXPECT_THAT(status.error().message, HasSubstr("768 tokens need 4 more blocks"));
  EXPECT_EQ(a.blocks.size(), 2u);
  EXPECT_EQ(pool_.free_blocks(), 3);
}

TEST_F(Pool, TruncateGivesBackBlocksAndRefusesToGoTooFar) {
  Sequence a = *pool_.acquire();
  ASSERT_TRUE(pool_.reserve(a, 130));
  a.tokens.assign(130, 7);
  EXPECT_FALSE(pool_.truncate(a, 123));
  EXPECT_FALSE(pool_.truncate(a, 131));
  EXPECT_TRUE(pool_.truncate(a, 127));
  EXPECT_EQ(a.blocks.size(), 1u);
  EXPECT_EQ(pool_.free_blocks(), 4);
}

TEST(StatePool, RefusesAbsurdSizes) {
  ThreadTeam team(1);
  ReferenceBackend backend(team, Rounding{});
  const StateLayout layout = layout_of(released(), released_topology());
  EXPECT_FALSE(StatePool::create(backend, layout, 0, 5));
  EXPECT_FALSE(StatePool::create(backend, layout, 1, int64_t{1} << 40));
}

}  // namespace
}  // namespace tidemill
