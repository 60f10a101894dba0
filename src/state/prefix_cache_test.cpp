// Reuse between requests: hits, their limits and reasons, and what a hit restores. Numbers of user
// cases refer to the project's list of reported bugs of such systems.
#include "state/prefix_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "state/test_state.h"

namespace tidemill {
namespace {

using testing::HasSubstr;

std::vector<int32_t> joined(std::vector<int32_t> a, const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// The state that a plain run of the tokens has, on a pool of its own.
std::vector<std::byte> plain_state(const std::vector<int32_t>& tokens) {
  StatePool pool = tiny_pool(1, 64);
  Sequence sequence = *pool.acquire();
  EXPECT_TRUE(compute(pool, sequence, tokens));
  return pool.snapshot(sequence);
}

// User case 1: a hit reads its own windows, whatever the recycled slot held.
TEST(PrefixCache, AHitIsThePlainStateAfterManyOthers) {
  Reuser r(3, 40);
  const KeyChain chain = shared_chain();
  const auto prompt = random_tokens(10 * 32, 1);
  Sequence a = r.run(prompt, chain);
  EXPECT_EQ(r.hit_tokens, 0);
  r.pool->release(a);
  for (uint32_t i = 0; i < 20; ++i) {
    Sequence other = r.run(random_tokens(100 + 7 * i, 100 + i), chain);
    r.pool->release(other);
  }
  for (const int64_t more : {0, 3}) {
    const auto tokens = joined(prompt, random_tokens(more, 9));
    Sequence b = r.run(tokens, chain);
    EXPECT_EQ(r.hit_tokens, 256) << r.text;
    EXPECT_EQ(r.pool->snapshot(b), plain_state(tokens));
    r.pool->release(b);
  }
}

// User case 67: the smallest reusable prefix is one block and one token, and it is printed.
TEST(PrefixCache, HitLengthsFollowThePrintedRule) {
  Reuser r(2, 64);
  const KeyChain chain = shared_chain();
  EXPECT_THAT(r.cache.rule(), HasSubstr("smallest reusable prefix: 129 tokens;"));
  EXPECT_THAT(r.cache.rule({.reuse = Reuse::kDecoderTail}),
              HasSubstr("smallest reusable prefix: 166 tokens;"));
  EXPECT_THAT(r.cache.rule({.reuse = Reuse::kDecoderTail, .tail = 140}), HasSubstr("268 tokens;"));
  const auto text = random_tokens(700, 2);
  Sequence a = r.run(text, chain);
  for (const int64_t length : {1, 127, 128, 129, 255, 256, 257, 384, 385, 512, 513, 700}) {
    const auto tokens = std::vector<int32_t>(text.begin(), text.begin() + length);
    const PrefixHit hit = r.cache.lookup(view(tokens), chain, {}, r.now);
    EXPECT_EQ(hit.length, (length - 1) / 128 * 128) << length;
    EXPECT_EQ(hit.reason, length > 128 ? MissReason::kNone : MissReason::kTooShort);
    const PrefixHit tail =
        r.cache.lookup(view(tokens), chain, {.reuse = Reuse::kDecoderTail}, r.now);
    EXPECT_EQ(tail.length, std::max<int64_t>(0, length - 38) / 128 * 128) << length;
    const PrefixHit keep =
        r.cache.lookup(view(tokens), chain, {.reuse = Reuse::kDecoderTail, .tail = 140}, r.now);
    EXPECT_EQ(keep.length, std::max<int64_t>(0, length - 140) / 128 * 128) << length;
  }
  r.pool->release(a);
}

TEST(PrefixCache, WithoutWindowsTheNextSmallerSnapshotOrAReplay) {
  Reuser r(3, 64);
  const KeyChain chain = shared_chain();
  const auto text = random_tokens(640, 3);
  Sequence a = *r.pool->acquire();
  for (int64_t end = 128; end <= 640; end += 128) {
    ASSERT_TRUE(compute(*r.pool, a, part(text, end - 128, end)));
    r.cache.publish(a, end, chain);
    if (end == 256) {
      ASSERT_TRUE(r.cache.save_windows(a, end, chain, r.now));
    }
  }
  PrefixHit hit = r.cache.lookup(view(text), chain, {}, r.now);
  EXPECT_EQ(hit.length, 256);
  EXPECT_EQ(hit.reason, MissReason::kWindowMissing);
  EXPECT_EQ(hit.text,
            "hit 256 of 640 tokens: blocks are there up to token 512, but no windows after token "
            "256");
  // At most 640 - 38 tokens, blocks up to 512; the replay is one window of 32.
  PrefixHit replay = r.cache.lookup(view(text), chain, {.reuse = Reuse::kEncoderReplay}, r.now);
  EXPECT_EQ(replay.length, 480);
  EXPECT_EQ(replay.replay_from, 480);
  EXPECT_EQ(replay.adopted, 512);
  EXPECT_EQ(replay.blocks().size(), 4u);
  EXPECT_FALSE(replay.has_windows());
  EXPECT_THAT(replay.text, HasSubstr("windows of tokens 480 to 511 are recomputed"));

  Sequence b = *r.pool->acquire();
  r.cache.adopt(std::move(replay), view(text), b);
  EXPECT_EQ(b.length(), 480);
  EXPECT_EQ(b.adopted, 512);
  // A replay never writes adopted blocks, and nothing of it goes to those who want exact state.
  EXPECT_EQ(r.pool->blocks_needed(b, 512), 0);
  EXPECT_EQ(r.pool->blocks_needed(b, 513), 1);
  const auto shared = b.blocks;
  ASSERT_TRUE(r.pool->reserve(b, 640));
  EXPECT_TRUE(std::equal(shared.begin(), shared.end(), b.blocks.begin()));
  b.tokens = text;
  EXPECT_EQ(r.cache.publish(b, 640, chain), 4);
  EXPECT_FALSE(r.cache.save_windows(b, 640, chain, r.now));
  r.pool->release(a);
  r.pool->release(b);
}

// A replay may only use what it can recompute: the first window of a text has no shorter hit.
TEST(PrefixCache, ApproximateStateHasItsOwnNamespace) {
  Reuser r(3, 64);
  const KeyChain exact = shared_chain();
  const KeyChain approximate(
      {.weights = "w", .text = "t", .layout = tiny_layout().fingerprint(), .approximate = true});
  const auto text = random_tokens(640, 4);
  Sequence a = *r.pool->acquire();
  ASSERT_TRUE(compute(*r.pool, a, part(text, 0, 512)));
  r.cache.publish(a, 512, approximate);
  EXPECT_EQ(r.cache.lookup(view(text), exact, {}, r.now).reason, MissReason::kOtherNamespace);
  Sequence b = *r.pool->acquire();
  PrefixHit hit = r.cache.lookup(view(text), approximate, {.reuse = Reuse::kEncoderReplay}, r.now);
  EXPECT_EQ(hit.length, 480);
  r.cache.adopt(std::move(hit), view(text), b);
  ASSERT_TRUE(compute(*r.pool, b, part(text, 480, 640)));
  EXPECT_EQ(r.cache.publish(b, 640, approximate), 5);
  EXPECT_TRUE(r.cache.save_windows(b, 640, approximate, r.now));
  // Its decoder windows are not exact even there.
  const auto longer = joined(text, random_tokens(100, 5));
  EXPECT_EQ(r.cache.lookup(view(longer), approximate, {}, r.now).length, 0);
  EXPECT_EQ(r.cache.lookup(view(longer), approximate, {.reuse = Reuse::kDecoderTail}, r.now).length,
            640);
  r.pool->release(a);
  r.pool->release(b);
}

TEST(PrefixCache, EveryMissSaysWhy) {
  Reuser r(2, 8);
  const KeyChain chain = shared_chain();
  const auto text = random_tokens(400, 6);
  const auto reason = [&](const std::vector<int32_t>& tokens, const KeyChain& c) {
    return r.cache.lookup(view(tokens), c, {}, r.now);
  };
  EXPECT_EQ(reason(text, chain).reason, MissReason::kNothingCached);
  EXPECT_THAT(reason(random_tokens(128, 6), chain).text,
              HasSubstr("hit 0 of 128 tokens: shorter than the smallest reusable prefix of 129"));
  Sequence a = r.run(text, chain);
  r.pool->release(a);

  auto other = text;
  other[300] ^= 1;
  PrefixHit hit = reason(other, chain);
  EXPECT_EQ(hit.reason, MissReason::kDifferentToken);
  EXPECT_EQ(hit.missed_at, 300);
  EXPECT_EQ(hit.text, "hit 256 of 400 tokens: token 300 differs from what is cached");
  hit.abandon();
  other = text;
  other[5] ^= 1;
  EXPECT_EQ(reason(other, chain).missed_at, 5);
  // It continues where nothing ever did: token 384 is the first unknown one.
  const auto longer =
      joined(std::vector<int32_t>(text.begin(), text.begin() + 384), random_tokens(300, 8));
  EXPECT_EQ(reason(longer, chain).reason, MissReason::kNothingCached);
  EXPECT_EQ(reason(longer, chain).missed_at, 384);

  // A second tenant shares nothing, and only the log knows.
  const KeyChain tenant(
      {.weights = "w", .text = "t", .layout = tiny_layout().fingerprint(), .tenant = "x"});
  EXPECT_EQ(reason(text, tenant).reason, MissReason::kOtherNamespace);
  EXPECT_EQ(reason(random_tokens(400, 77), tenant).reason, MissReason::kNothingCached);

  // 8 blocks of another text push the first one out.
  Sequence big = r.run(random_tokens(8 * 128, 7), chain);
  EXPECT_TRUE(r.status) << r.status.error().message;
  r.pool->release(big);
  hit = reason(text, chain);
  EXPECT_EQ(hit.reason, MissReason::kEvicted);
  EXPECT_THAT(hit.text, HasSubstr("the block of tokens 0 to 127 was evicted"));
  const PrefixCacheStats stats = r.cache.stats();
  EXPECT_EQ(stats.evicted_blocks, 3);
  EXPECT_EQ(stats.lookups,
            std::accumulate(stats.by_reason.begin(), stats.by_reason.end(), int64_t{0}));
  EXPECT_EQ(stats.by_reason[static_cast<size_t>(MissReason::kEvicted)], 1);
}

TEST(PrefixCache, ImagesAreContent) {
  Reuser r;
  const KeyChain chain = shared_chain();
  const auto tokens = random_tokens(400, 6);
  std::vector<ImageSpan> images = {{.begin = 140, .tokens = 50}};
  Sequence a = *r.pool->acquire();
  a.images = images;
  ASSERT_TRUE(compute(*r.pool, a, part(tokens, 0, 384)));
  r.cache.publish(a, 384, chain);
  ASSERT_TRUE(r.cache.save_windows(a, 384, chain, r.now));
  EXPECT_EQ(r.cache.lookup({tokens, images}, chain, {}, r.now).length, 384);
  images[0].digest[7] = 1;
  const PrefixHit hit = r.cache.lookup({tokens, images}, chain, {}, r.now);
  EXPECT_EQ(hit.reason, MissReason::kWindowMissing);  // the first block matches, without windows
  EXPECT_EQ(hit.missed_at, 140);
  EXPECT_EQ(r.cache.lookup(view(tokens), chain, {}, r.now).length, 0);
  r.pool->release(a);
}

// User case 23: with keys of 8 bits nearly everything collides; a hit is still only ever the same
// tokens, and the rest are counted misses.
TEST(PrefixCache, CollisionsAreMisses) {
  Reuser r(2, 600);
  const KeyChain chain = shared_chain(8);
  std::set<int64_t> hits;
  for (uint32_t i = 0; i < 300; ++i) {
    const auto tokens = random_tokens(140 + 128 * (i % 3), i);
    Sequence a = r.run(tokens, chain);
    EXPECT_EQ(r.hit_tokens, 0) << i;
    EXPECT_EQ(r.pool->snapshot(a), plain_state(tokens));
    r.pool->release(a);
    Sequence b = r.run(tokens, chain);
    hits.insert(r.hit_tokens);
    EXPECT_EQ(r.pool->snapshot(b), plain_state(tokens));
    r.pool->release(b);
  }
  const PrefixCacheStats stats = r.cache.stats();
  EXPECT_GT(stats.collisions, 300);
  EXPECT_GT(stats.by_reason[static_cast<size_t>(MissReason::kCollision)], 300);
  EXPECT_LE(r.cache.indexed_blocks(), 256);
  EXPECT_GT(hits.size(), 1u);  // and some were there
}

// The key covers tokens, images and tenant; where it is too short to tell them apart, comparing
// does.
TEST(PrefixCache, AnEqualKeyOfOtherContentIsAMiss) {
  const auto tokens = random_tokens(200, 6);
  const KeyChain chain = shared_chain(8);
  const auto images = [](int image) {
    std::vector<ImageSpan> spans = {{.begin = 10, .tokens = 20}};
    spans[0].digest[0] = static_cast<uint8_t>(image);
    spans[0].digest[1] = static_cast<uint8_t>(image >> 8);
    return spans;
  };
  const auto key = [&](const KeyChain& c, int image) {
    return c.next(c.root(), part(tokens, 0, 128), image_parts(images(image), 0, 128));
  };
  Reuser r;
  Sequence a = *r.pool->acquire();
  a.images = images(0);
  ASSERT_TRUE(compute(*r.pool, a, tokens));
  r.cache.publish(a, 200, chain);
  ASSERT_FALSE(r.cache.save_windows(a, 128, chain, r.now));  // too late
  int other_images = 0;
  int other_tenants = 0;
  for (int i = 1; i < 3000; ++i) {
    const KeyChain tenant({.weights = "w", .tenant = std::to_string(i)}, 8);
    if (key(chain, i) == key(chain, 0)) {
      ++other_images;
      const auto other = images(i);
      EXPECT_EQ(r.cache.lookup({tokens, other}, chain, {}, r.now).reason, MissReason::kCollision);
    }
    if (key(tenant, 0) == key(chain, 0)) {
      ++other_tenants;
      EXPECT_EQ(r.cache.lookup({tokens, a.images}, tenant, {}, r.now).reason,
                MissReason::kCollision);
    }
  }
  // Equal tokens after another block are other content too.
  const auto second = [&](std::span<const int32_t> first) {
    return chain.next(chain.next(chain.root(), first, {}), part(tokens, 0, 128), {});
  };
  const auto x = random_tokens(kBlockTokens, 1000);
  auto z = x;
  for (uint32_t seed = 1001; z == x || second(z) != second(x); ++seed) {
    z = random_tokens(kBlockTokens, seed);
  }
  for (const auto& first : {x, z}) {
    Sequence b = *r.pool->acquire();
    ASSERT_TRUE(compute(*r.pool, b, joined(first, {tokens.begin(), tokens.begin() + 128})));
    EXPECT_EQ(r.cache.publish(b, 256, chain), first == x ? 2 : 1);
    r.pool->release(b);
  }
  EXPECT_GT(other_images, 0);
  EXPECT_GT(other_tenants, 0);
  EXPECT_EQ(r.cache.lookup({tokens, a.images}, chain, {}, r.now).reason,
            MissReason::kWindowMissing);
}

TEST(PrefixCache, TheSameTextComputedTwiceIsKeptOnce) {
  Reuser r(2, 8);
  const KeyChain chain = shared_chain();
  const auto text = random_tokens(300, 9);
  Sequence a = *r.pool->acquire();
  Sequence b = *r.pool->acquire();
  ASSERT_TRUE(compute(*r.pool, a, text));
  ASSERT_TRUE(compute(*r.pool, b, text));
  EXPECT_EQ(r.pool->free_blocks(), 2);
  EXPECT_EQ(r.cache.publish(a, 300, chain), 2);
  EXPECT_EQ(r.cache.publish(b, 300, chain), 2);
  EXPECT_EQ(r.pool->free_blocks(), 4);
  EXPECT_EQ(a.blocks[1], b.blocks[1]);
  EXPECT_NE(a.blocks[2], b.blocks[2]);
  EXPECT_EQ(r.cache.stats().duplicate_blocks, 2);
  EXPECT_EQ(r.pool->snapshot(b), plain_state(text));
  r.pool->release(a);
  r.pool->release(b);
  EXPECT_EQ(r.pool->free_blocks(), 8);
  r.cache.clear();
  EXPECT_EQ(r.pool->block_pool().free_count(), 8);
  EXPECT_EQ(r.cache.windows().bytes(), 0);
}

// User case 72: the prefix that is about to be loaded is the oldest of a full pool.
TEST(PrefixCache, AHitCannotBeEvictedUnderItsOwner) {
  Reuser r(3, 6);
  const KeyChain chain = shared_chain();
  const auto text = random_tokens(300, 10);
  Sequence a = r.run(text, chain);
  r.pool->release(a);
  PrefixHit hit = r.cache.lookup(view(text), chain, {}, r.now);
  ASSERT_EQ(hit.length, 256);
  Sequence other = r.run(random_tokens(600, 11), chain);
  EXPECT_FALSE(r.status);  // 4 of its 5 blocks are there
  r.pool->release(other);
  r.now += std::chrono::hours(5);  // its windows are held as well
  r.cache.lookup(view(text), chain, {}, r.now).abandon();
  Sequence b = *r.pool->acquire();
  r.cache.adopt(std::move(hit), view(text), b);
  EXPECT_EQ(r.pool->snapshot(b), plain_state({text.begin(), text.begin() + 256}));
  r.pool->release(b);
}

// User case 66: 12 turns with a fixed prefix and fresh tails of any size.
TEST(PrefixCache, EveryTurnReusesTheLastOne) {
  for (const int64_t tail : {0, 700, 1400, 2800}) {
    Reuser r(2, 400);
    const KeyChain chain = shared_chain();
    const auto prefix = random_tokens(1200, 12);
    for (uint32_t turn = 0; turn < 12; ++turn) {
      Sequence a = r.run(joined(prefix, random_tokens(tail, 50 + turn)), chain);
      const int64_t window = r.pool->layout().window_tokens;
      EXPECT_GE(r.hit_tokens, turn == 0 ? 0 : 1200 - kBlockTokens - window) << tail;
      r.pool->release(a);
    }
  }
}

// User case 68: two sessions in turn in a pool 8 times as big as one need not disturb each other.
TEST(PrefixCache, NothingIsEvictedWhileBlocksAreFree) {
  const auto session = [](uint32_t seed, int64_t turn) {
    return random_tokens(5000 + 100 * turn, seed);  // each turn extends the last one
  };
  Reuser both(2, 8 * 50);
  Reuser solo(2, 8 * 50);
  const KeyChain chain = shared_chain();
  for (int64_t turn = 0; turn < 8; ++turn) {
    Sequence alone = solo.run(session(1, turn), chain);
    solo.pool->release(alone);
    for (const uint32_t seed : {1u, 2u}) {
      Sequence a = both.run(session(seed, turn), chain);
      EXPECT_EQ(both.hit_tokens, solo.hit_tokens);
      both.pool->release(a);
    }
  }
  EXPECT_EQ(both.cache.stats().evicted_blocks, 0);
}

// The end of a path goes first, whoever published what: a part of a text is of use without its
// end, and the end is of none without its beginning.
TEST(PrefixCache, APathIsEvictedFromItsEnd) {
  Reuser r(3, 16);
  const KeyChain chain = shared_chain();
  const auto text = random_tokens(400, 15);
  Sequence first = r.run(text, chain);
  // A fork of one who computed the same text, unpublished, and holds it while the twin publishes.
  Sequence a = *r.pool->acquire();
  ASSERT_TRUE(compute(*r.pool, a, part(text, 0, 384)));
  Sequence b = *r.pool->fork(a);
  EXPECT_EQ(r.cache.publish(a, 384, chain), 0);
  r.pool->release(b);
  EXPECT_EQ(r.cache.publish(a, 384, chain), 3);
  r.pool->release(a);
  r.pool->release(first);
  for (int64_t left = 2; left >= 0; --left) {
    EXPECT_TRUE(r.pool->evict_block());
    EXPECT_EQ(r.cache.lookup(view(text), chain, {}, r.now).length, left * 128);
  }
  EXPECT_FALSE(r.pool->evict_block());
}

TEST(PrefixCache, MakeWritableTakesASequenceOutOfTheIndex) {
  Reuser r(2, 16);
  const KeyChain chain = shared_chain();
  const auto text = random_tokens(300, 16);
  Sequence a = r.run(text, chain);
  const auto blocks = a.blocks;
  ASSERT_TRUE(r.pool->make_writable(a, 130));
  EXPECT_EQ(a.keys.size(), 1u);
  EXPECT_EQ(a.blocks[0], blocks[0]);
  EXPECT_NE(a.blocks[1], blocks[1]);
  EXPECT_EQ(a.blocks[2], blocks[2]);  // was its own
  EXPECT_EQ(r.pool->snapshot(a), plain_state(text));
  EXPECT_EQ(r.cache.publish(a, 300, chain), 2);
  EXPECT_EQ(a.blocks, blocks);
  r.pool->release(a);
}

// A conversation goes on from a sequence that was truncated into a published block.
TEST(PrefixCache, WritingIntoAPublishedBlockCopiesItFirst) {
  Reuser r(2, 16);
  const KeyChain chain = shared_chain();
  const auto text = random_tokens(256, 13);
  const auto other = random_tokens(100, 14);
  Sequence a = r.run(text, chain);
  ASSERT_TRUE(r.pool->truncate(a, 253));
  EXPECT_EQ(a.keys.size(), 1u);
  const int32_t published = a.blocks[1];
  EXPECT_EQ(r.pool->blocks_needed(a, 254), 1);
  ASSERT_TRUE(compute(*r.pool, a, other));
  EXPECT_NE(a.blocks[1], published);
  auto expected = std::vector<int32_t>(text.begin(), text.begin() + 253);
  EXPECT_EQ(r.pool->snapshot(a), plain_state(joined(expected, other)));
  r.cache.publish(a, a.length(), chain);
  // Both versions can be found.
  Sequence b = r.run(joined(text, {1}), chain);
  EXPECT_EQ(r.hit_tokens, 256);
  EXPECT_EQ(r.pool->snapshot(b), plain_state(joined(text, {1})));
  EXPECT_FALSE(r.pool->truncate(b, 255));  // never into what was adopted
  r.pool->release(a);
  r.pool->release(b);
}

}  // namespace
}  // namespace tidemill
