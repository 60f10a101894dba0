// Handles, capacity, rollback limits, copies, fences, and the arithmetic of the released layout.
#include "state/state_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "state/test_state.h"

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
  t.decoder_begin = 20;
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
  EXPECT_EQ(layout.ring_rows, 256);
  // 20 layers' rings are the section that a prefix hit can restore.
  EXPECT_EQ(layout.ring_offset[20] - layout.ring_offset[0], 2'703'360);
  EXPECT_EQ(layout.draft_ring_offset.size(), 3u);
  EXPECT_EQ(layout.saved_layers, 20);
  EXPECT_EQ(layout.recomputed_tail(), 134);
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

// ---- on a layout of a few bytes, with freed memory poisoned

bool poisoned(std::span<const std::byte> bytes) {
  return std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{0xFF}; });
}

TEST(Layout, TheFingerprintNamesFormatsOrderAndPlaces) {
  const StateLayout layout = layout_of(released(), released_topology());
  Topology other = released_topology();
  other.kv_sources[2].ratio = 1;
  EXPECT_NE(layout.fingerprint(), layout_of(released(), other).fingerprint());
  static ThreadTeam team(1);
  static ReferenceBackend wide(team, *Rounding::parse("none"));
  EXPECT_NE(layout.fingerprint(),
            StateLayout::build(released(), released_topology(), wide)->fingerprint());
  static ReferenceBackend tiles(team, Rounding{}, ProductOrder::kTiles);
  EXPECT_NE(layout.fingerprint(),
            StateLayout::build(released(), released_topology(), tiles)->fingerprint());
  EXPECT_EQ(layout.fingerprint(), layout_of(released(), released_topology()).fingerprint());
}

// User case 5: freed memory is poisoned and reused only when the steps that may read it are over.
TEST(Fence, NothingComesBackBeforeItsLastStep) {
  StatePool pool = tiny_pool(1, 2);
  Sequence a = *pool.acquire();
  ASSERT_TRUE(compute(pool, a, random_tokens(200, 1)));
  const int32_t first = a.blocks[0];
  const int64_t slot = a.slot;
  const int64_t one = pool.begin_step();
  const int64_t two = pool.begin_step();
  pool.release(a);
  EXPECT_EQ(pool.free_blocks(), 0);
  EXPECT_EQ(pool.returning_blocks(), 2);
  EXPECT_EQ(pool.returning_slots(), 1);
  EXPECT_EQ(pool.acquire().error().code, ErrorCode::kNoCapacity);
  pool.finish_step(one);
  EXPECT_EQ(pool.free_blocks(), 0);
  EXPECT_FALSE(poisoned(pool.block(first)));
  EXPECT_FALSE(poisoned(pool.slot(slot)));
  pool.finish_step(two);
  EXPECT_EQ(pool.free_blocks(), 2);
  EXPECT_EQ(pool.returning_slots(), 0);
  EXPECT_TRUE(poisoned(pool.block(first)));
  EXPECT_TRUE(poisoned(pool.slot(slot)));
  EXPECT_TRUE(pool.acquire());
}

// User case 29: who waits for blocks sees how many are on their way.
TEST(Fence, TheErrorCountsWhatIsOnItsWay) {
  StatePool pool = tiny_pool(2, 3);
  Sequence a = *pool.acquire();
  Sequence b = *pool.acquire();
  ASSERT_TRUE(pool.reserve(a, 256));
  pool.begin_step();
  pool.release(a);
  EXPECT_THAT(pool.reserve(b, 384).error().message,
              HasSubstr("need 3 more blocks of 128 tokens; 1 of 3 are free and 2 come back"));
}

TEST(Fork, BothGoOnAsIfAlone) {
  for (const int64_t length : {1, 100, 127, 128, 129, 256, 300}) {
    StatePool pool = tiny_pool(4, 16);
    const auto tokens = random_tokens(length, 2);
    Sequence a = *pool.acquire();
    ASSERT_TRUE(compute(pool, a, tokens));
    ASSERT_TRUE(pool.reserve(a, length + 200));  // what is reserved ahead is not shared
    const int64_t before = pool.free_blocks();
    Sequence b = *pool.fork(a);
    EXPECT_EQ(before - pool.free_blocks(), length % 128 == 0 ? 0 : 1);
    EXPECT_EQ(pool.snapshot(a), pool.snapshot(b));
    ASSERT_TRUE(compute(pool, a, random_tokens(150, 3)));
    ASSERT_TRUE(compute(pool, b, random_tokens(150, 4)));
    for (const auto& [sequence, seed] : {std::pair{&a, 3u}, std::pair{&b, 4u}}) {
      Sequence plain = *pool.acquire();
      ASSERT_TRUE(compute(pool, plain, tokens));
      ASSERT_TRUE(compute(pool, plain, random_tokens(150, seed)));
      EXPECT_EQ(pool.snapshot(*sequence), pool.snapshot(plain)) << length;
      pool.release(plain);
    }
    pool.release(a);
    pool.release(b);
    EXPECT_EQ(pool.free_blocks(), 16);
    EXPECT_EQ(pool.free_slots(), 4);
  }
}

TEST(Fork, ATruncateIntoASharedBlockCopiesItBeforeTheNextWrite) {
  StatePool pool = tiny_pool(2, 4);
  Sequence a = *pool.acquire();
  ASSERT_TRUE(compute(pool, a, random_tokens(256, 5)));
  Sequence b = *pool.fork(a);
  ASSERT_TRUE(pool.truncate(b, 254));
  EXPECT_EQ(pool.blocks_needed(b, 256), 1);
  const auto before = pool.snapshot(a);
  ASSERT_TRUE(compute(pool, b, random_tokens(20, 6)));
  EXPECT_EQ(pool.snapshot(a), before);
  EXPECT_EQ(a.blocks[0], b.blocks[0]);
  EXPECT_NE(a.blocks[1], b.blocks[1]);
}

// User case 41: with every block or slot taken, each way of giving up and of asking for more works
// or is refused with its numbers, and nothing is lost.
TEST(FullPool, EveryOperationWorksOrIsRefused) {
  Reuser r(3, 6);
  StatePool& pool = *r.pool;
  const KeyChain chain = shared_chain();
  Sequence a = r.run(random_tokens(400, 7), chain);  // 4 blocks, 3 published
  Sequence b = *pool.acquire();
  ASSERT_TRUE(compute(pool, b, random_tokens(130, 8)));
  ASSERT_EQ(pool.free_blocks(), 0);
  const auto state = pool.snapshot(b);
  // asking
  EXPECT_EQ(pool.reserve(b, 257).error().code, ErrorCode::kNoCapacity);
  EXPECT_EQ(pool.fork(b).error().code, ErrorCode::kNoCapacity);  // a copy of the last block
  EXPECT_EQ(pool.make_writable(a, 0).error().code, ErrorCode::kNoCapacity);
  EXPECT_FALSE(pool.evict_block());
  EXPECT_EQ(pool.free_slots(), 1);
  EXPECT_EQ(pool.snapshot(b), state);
  ASSERT_TRUE(compute(pool, b, random_tokens(126, 9)));
  Sequence twin = *pool.fork(b);  // all blocks are complete: a slot is enough
  EXPECT_EQ(pool.acquire().error().code, ErrorCode::kNoCapacity);
  EXPECT_EQ(pool.fork(a).error().code, ErrorCode::kNoCapacity);
  // giving up
  ASSERT_TRUE(pool.truncate(twin, 254));
  EXPECT_EQ(pool.reserve(twin, 255).error().code, ErrorCode::kNoCapacity);  // shared: needs a copy
  pool.release(twin);
  EXPECT_EQ(pool.free_blocks(), 0);  // b holds them
  ASSERT_TRUE(pool.truncate(a, 394));
  EXPECT_EQ(pool.free_blocks(), 0);
  // Cached blocks are capacity: evicted when asked for, windows and all.
  pool.release(a);
  EXPECT_EQ(pool.block_pool().cached_count(), 3);
  EXPECT_EQ(r.cache.windows().count(), 3);
  EXPECT_EQ(pool.free_blocks(), 4);
  ASSERT_TRUE(pool.reserve(b, 256 + 500));
  for (size_t i = 2; i < 6; ++i) EXPECT_TRUE(poisoned(pool.block(b.blocks[i]))) << i;
  EXPECT_EQ(r.cache.stats().evicted_blocks, 3);
  EXPECT_EQ(r.cache.windows().count(), 0);
  pool.release(b);
  EXPECT_EQ(pool.free_blocks(), 6);
  EXPECT_EQ(pool.free_slots(), 3);
}

}  // namespace
}  // namespace tidemill
