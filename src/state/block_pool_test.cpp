#include "state/block_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tidemill {
namespace {

using testing::ElementsAre;

// What a sequence with the given published path does when it ends.
void give_up(BlockPool& pool, const std::vector<int32_t>& path, int64_t last_reader = 0) {
  for (size_t i = path.size(); i-- > 0;) pool.drop_reference(path[i], last_reader);
}
std::vector<int32_t> published_path(BlockPool& pool, int length) {
  std::vector<int32_t> path;
  for (int i = 0; i < length; ++i) {
    path.push_back(pool.allocate().block);
    pool.publish(path.back());
  }
  return path;
}

TEST(BlockPool, UnpublishedBlocksAreFreeAtOnce) {
  BlockPool pool(2);
  const int32_t a = pool.allocate().block;
  EXPECT_EQ(pool.state(a), BlockState::kInUse);
  EXPECT_TRUE(pool.drop_reference(a, 0));
  EXPECT_EQ(pool.free_count(), 2);
}

TEST(BlockPool, PublishedBlocksStayUntilNeededLeavesFirst) {
  BlockPool pool(4);
  const auto path = published_path(pool, 3);
  give_up(pool, path);
  EXPECT_EQ(pool.cached_count(), 3);
  // Free blocks first (user case 68), then the end of the path.
  EXPECT_FALSE(pool.allocate().evicted);
  for (size_t i = path.size(); i-- > 0;) {
    const auto taken = pool.allocate();
    EXPECT_TRUE(taken.evicted);
    EXPECT_EQ(taken.block, path[i]);
    EXPECT_FALSE(pool.published(taken.block));
  }
  EXPECT_EQ(pool.allocate().block, -1);
}

TEST(BlockPool, AUseMovesAPathToTheEndOfTheQueue) {
  BlockPool pool(4);
  const auto a = published_path(pool, 2);
  const auto b = published_path(pool, 2);
  give_up(pool, a);
  give_up(pool, b);
  pool.add_reference(a[0]);  // a hit on the first block only
  give_up(pool, {a[0]});
  EXPECT_EQ(pool.evict(), a[1]);
  EXPECT_EQ(pool.evict(), b[1]);
  EXPECT_EQ(pool.evict(), b[0]);
  EXPECT_EQ(pool.evict(), a[0]);
  EXPECT_EQ(pool.evict(), -1);
}

// User case 5: a block comes back exactly with the last step that may read it.
TEST(BlockPool, BlocksWaitForTheStepsInFlight) {
  BlockPool pool(2);
  const int32_t a = pool.allocate().block;
  const int32_t b = pool.allocate().block;
  EXPECT_FALSE(pool.drop_reference(a, 1));
  EXPECT_FALSE(pool.drop_reference(b, 2));
  EXPECT_EQ(pool.returning_count(), 2);
  EXPECT_EQ(pool.allocate().block, -1);
  std::vector<int32_t> freed;
  pool.finish_step(1, freed);
  EXPECT_THAT(freed, ElementsAre(a));
  EXPECT_EQ(pool.allocate().block, a);
  freed.clear();
  pool.finish_step(2, freed);
  EXPECT_THAT(freed, ElementsAre(b));
}

TEST(BlockPool, AHitCanTakeABlockBackOnItsWay) {
  BlockPool pool(3);
  const auto path = published_path(pool, 2);
  give_up(pool, path, 1);
  // The hit, an end, and a longer path, all before step 1 is over: the old entries of the queue
  // must not decide the order of eviction.
  pool.add_reference(path[0]);
  pool.add_reference(path[1]);
  const int32_t leaf = pool.allocate().block;
  pool.publish(leaf);
  give_up(pool, {path[0], path[1], leaf}, 1);
  std::vector<int32_t> freed;
  pool.finish_step(1, freed);
  EXPECT_TRUE(freed.empty());
  EXPECT_EQ(pool.evict(), leaf);
  EXPECT_EQ(pool.evict(), path[1]);
  EXPECT_EQ(pool.evict(), path[0]);
}

// User case 72: what is about to be loaded is pinned, however old it is.
TEST(BlockPool, PinnedBlocksAreNotEvicted) {
  BlockPool pool(2);
  const auto path = published_path(pool, 1);
  give_up(pool, path);
  pool.pin(path[0]);
  EXPECT_EQ(pool.pinned_count(), 1);
  EXPECT_NE(pool.allocate().block, path[0]);
  EXPECT_EQ(pool.allocate().block, -1);
  pool.unpin(path[0], 0);
  EXPECT_EQ(pool.allocate().block, path[0]);
  EXPECT_EQ(pool.pinned_count(), 0);
}

TEST(BlockPool, CountsAddUp) {
  BlockPool pool(5);
  const auto path = published_path(pool, 2);
  pool.allocate();
  give_up(pool, {path[1]});
  give_up(pool, {path[0]}, 3);
  EXPECT_EQ(pool.free_count(), 2);
  EXPECT_EQ(pool.cached_count(), 1);
  EXPECT_EQ(pool.returning_count(), 1);
  EXPECT_EQ(pool.in_use_count(), 1);
}

}  // namespace
}  // namespace tidemill
