#include "state/suspend.h"

#include <gtest/gtest.h>

#include "state/test_state.h"

namespace tidemill {
namespace {

// User case 41, preemption by copy: the state comes back byte for byte, after others have used all
// of the pool.
TEST(Suspend, TheStateComesBack) {
  for (const int64_t length : {1, 127, 128, 129, 300}) {
    Reuser r(1, 4);
    StatePool& pool = *r.pool;
    const KeyChain chain = shared_chain();
    Sequence a = r.run(random_tokens(length, 1), chain);
    ASSERT_TRUE(pool.reserve(a, 400));  // what is reserved ahead is not carried along
    const auto state = pool.snapshot(a);
    const int64_t bytes = suspended_bytes(pool, a);
    const SuspendedSequence out = suspend(pool, a);
    EXPECT_EQ(out.bytes(), bytes);
    EXPECT_EQ(bytes, 768 + (length + 127) / 128 * 1024);
    EXPECT_EQ(pool.free_blocks(), 4);
    EXPECT_EQ(pool.free_slots(), 1);

    Sequence other = r.run(random_tokens(512, 2), chain);
    EXPECT_EQ(resume(pool, out).error().code, ErrorCode::kNoCapacity);
    pool.release(other);
    Sequence back = *resume(pool, out);
    EXPECT_EQ(pool.snapshot(back), state);
    ASSERT_TRUE(compute(pool, back, random_tokens(50, 3)));
    pool.release(back);
  }
}

TEST(Suspend, WithoutRoomNothingChanges) {
  StatePool pool = tiny_pool(2, 4);
  Sequence a = *pool.acquire();
  ASSERT_TRUE(compute(pool, a, random_tokens(300, 1)));
  const SuspendedSequence out = suspend(pool, a);
  Sequence b = *pool.acquire();
  ASSERT_TRUE(pool.reserve(b, 200));
  EXPECT_EQ(resume(pool, out).error().code, ErrorCode::kNoCapacity);
  EXPECT_EQ(pool.free_slots(), 1);
  EXPECT_EQ(pool.free_blocks(), 2);
}

// Blocks that stayed in the cache are shared again by publishing.
TEST(Suspend, PublishingAgainFindsTheCachedBlocks) {
  Reuser r(2, 8);
  const KeyChain chain = shared_chain();
  Sequence a = r.run(random_tokens(300, 1), chain);
  const auto blocks = a.blocks;
  const SuspendedSequence out = suspend(*r.pool, a);
  Sequence back = *resume(*r.pool, out);
  const auto state = r.pool->snapshot(back);
  EXPECT_EQ(r.cache.publish(back, back.length(), chain), 2);
  EXPECT_EQ(back.blocks[0], blocks[0]);
  EXPECT_EQ(back.blocks[1], blocks[1]);
  EXPECT_EQ(r.pool->snapshot(back), state);
  r.pool->release(back);
  EXPECT_EQ(r.pool->free_blocks(), 8);
}

}  // namespace
}  // namespace tidemill
