// A prefix hit puts a sequence into the very state of one that computed the prefix: the real
// forward pass on the micro checkpoint, compared byte for byte with a plain run.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "fixture.h"
#include "state/prefix_cache.h"

namespace tidemill {
namespace {

std::vector<int32_t> random_ids(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % 318);
  return ids;
}

bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// One machine whose free memory is NaN, so that a row that nobody wrote shows in every logit.
class Prefix : public testing::Test {
 protected:
  Prefix()
      : machine_(micro_model(), Machine::best()),
        cache_(machine_.pool(), {}),
        chain_({.weights = "micro", .layout = machine_.pool().layout().fingerprint()}) {
    machine_.pool().set_poison(true);
    machine_.pool().poison_free_memory();
  }

  std::span<const int32_t> part(const std::vector<int32_t>& ids, int64_t begin, int64_t end) {
    return std::span(ids).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
  }
  // Runs ids [length, end) in steps of at most `chunk` that end at block boundaries, publishing and
  // saving on the way. Logits of all tokens.
  std::vector<float> extend(Sequence& sequence, const std::vector<int32_t>& ids, int64_t end,
                            int64_t chunk = kBlockTokens) {
    std::vector<float> logits;
    while (sequence.length() < end) {
      const int64_t begin = sequence.length();
      const int64_t boundary = (begin / kBlockTokens + 1) * kBlockTokens;
      const auto step = part(ids, begin, std::min({end, begin + chunk, boundary}));
      const auto rows = machine_.run(sequence, step);
      logits.insert(logits.end(), rows.begin(), rows.end());
      cache_.publish(sequence, sequence.length(), chain_);
      if (sequence.length() == boundary) {
        EXPECT_TRUE(cache_.save_windows(sequence, boundary, chain_));
      }
    }
    return logits;
  }
  PrefixHit adopt(Sequence& sequence, const std::vector<int32_t>& ids, LookupOptions options = {}) {
    const TokenView view{ids, {}};
    PrefixHit hit = cache_.lookup(view, chain_, options);
    PrefixHit numbers;
    numbers.length = hit.length;
    numbers.text = hit.text;
    cache_.adopt(std::move(hit), view, sequence);
    return numbers;
  }
  // Logits of ids [begin, end) of a run without the cache.
  std::vector<float> plain(const std::vector<int32_t>& ids, int64_t begin, int64_t end,
                           int64_t decoder_floor = 0) {
    Sequence sequence = machine_.sequence();
    sequence.decoder_floor = decoder_floor;
    if (begin > 0) machine_.run(sequence, part(ids, 0, begin), Logits::kNone);
    auto logits = machine_.run(sequence, part(ids, begin, end));
    machine_.pool().release(sequence);
    return logits;
  }
  std::vector<std::byte> plain_state(const std::vector<int32_t>& ids, int64_t end) {
    Sequence sequence = machine_.sequence();
    if (end > 0) machine_.run(sequence, part(ids, 0, end), Logits::kNone);
    auto state = machine_.pool().snapshot(sequence);
    machine_.pool().release(sequence);
    return state;
  }

  Machine machine_;
  PrefixCache cache_;
  KeyChain chain_;
};

// User case 1, and every alignment around block ends, for inputs of odd and even length.
TEST_F(Prefix, TheStateAfterAHitIsTheComputedState) {
  const auto ids = random_ids(330, 1);
  Sequence first = machine_.sequence();
  extend(first, ids, 300);
  machine_.pool().release(first);
  for (const int64_t length : {127, 128, 129, 130, 255, 256, 257, 258, 299, 300}) {
    const std::vector<int32_t> prompt(ids.begin(), ids.begin() + length);
    Sequence second = machine_.sequence();
    const PrefixHit hit = adopt(second, prompt);
    ASSERT_EQ(hit.length, (length - 1) / 128 * 128) << hit.text;
    ASSERT_EQ(machine_.pool().snapshot(second), plain_state(ids, hit.length)) << length;
    // The rest of the prompt, then odd steps of decode across the next block end.
    for (const int64_t chunk : {length - hit.length, int64_t{1}, int64_t{3}}) {
      const int64_t begin = second.length();
      const int64_t end = std::min<int64_t>(330, begin + std::max<int64_t>(chunk, 5));
      EXPECT_TRUE(same(extend(second, ids, end, chunk), plain(ids, begin, end)))
          << length << " from " << begin;
    }
    machine_.pool().release(second);
  }
}

TEST_F(Prefix, DraftsAfterAHitAreThePlainDrafts) {
  const auto ids = random_ids(280, 2);
  Sequence first = machine_.sequence();
  extend(first, ids, 257);
  const auto expected = machine_.draft(first, 17);
  Sequence second = machine_.sequence();
  ASSERT_EQ(adopt(second, {ids.begin(), ids.begin() + 257}).length, 256);
  extend(second, ids, 257);
  const auto draft = machine_.draft(second, 17);
  EXPECT_EQ(draft.ids, expected.ids);
  EXPECT_TRUE(same(draft.logits, expected.logits));
  EXPECT_TRUE(same(draft.confidence, expected.confidence));
}

// In decode a verification step passes the boundary and part of it is undone; the windows saved
// then are those of the boundary.
TEST_F(Prefix, WindowsSavedAfterPassingABoundaryAreThoseOfTheBoundary) {
  const auto ids = random_ids(300, 3);
  const auto wrong = random_ids(8, 4);
  for (const int64_t start : {250, 251, 254, 255}) {
    for (int64_t accepted = 256 - start; accepted <= 6; ++accepted) {
      cache_.clear();
      Sequence first = machine_.sequence();
      machine_.run(first, part(ids, 0, start), Logits::kNone);
      std::vector<int32_t> step(ids.begin() + start, ids.begin() + start + accepted);
      step.insert(step.end(), wrong.begin(), wrong.begin() + (6 - accepted));
      machine_.run(first, step, Logits::kAll);
      ASSERT_TRUE(machine_.pool().truncate(first, start + accepted));
      ASSERT_EQ(cache_.publish(first, first.length(), chain_), 2);
      ASSERT_TRUE(cache_.save_windows(first, 256, chain_)) << start << " + " << accepted;
      machine_.pool().release(first);

      Sequence second = machine_.sequence();
      ASSERT_EQ(adopt(second, ids).length, 256);
      EXPECT_EQ(machine_.pool().snapshot(second), plain_state(ids, 256));
      machine_.pool().release(second);
    }
  }
}

// Under bounded replay the decoder runs on the tail only, with or without a hit, so the windows of
// the encoder half are enough and the result is the same to the bit.
TEST_F(Prefix, BoundedReplayNeedsTheEncoderHalfOnly) {
  const auto ids = random_ids(330, 5);
  Sequence first = machine_.sequence();
  first.decoder_floor = 290 - 40;
  for (const int64_t end : {128, 256, 290}) {
    machine_.run(first, part(ids, first.length(), end), Logits::kNone);
    cache_.publish(first, end, chain_);
    if (end < 290) {
      ASSERT_TRUE(cache_.save_windows(first, end, chain_));
    }
  }
  machine_.pool().release(first);
  const std::vector<int32_t> prompt(ids.begin(), ids.begin() + 300);
  // Exact reuse would need the decoder's windows as well.
  EXPECT_EQ(cache_.lookup({prompt, {}}, chain_).length, 0);
  Sequence second = machine_.sequence();
  const PrefixHit hit = adopt(second, prompt, {.reuse = Reuse::kDecoderTail, .tail = 40});
  ASSERT_EQ(hit.length, 256) << hit.text;
  EXPECT_EQ(second.decoder_floor, 256);
  second.decoder_floor = 300 - 40;
  const auto got = machine_.run(second, part(ids, 256, 330));
  EXPECT_TRUE(same(got, plain(ids, 256, 330, 300 - 40)));
  // Blocks of a replayed prompt are exact: they do not depend on the decoder half.
  Sequence exact = machine_.sequence();
  machine_.run(exact, part(ids, 0, 330), Logits::kNone);
  for (const size_t block : {0u, 1u}) {
    const StatePool& pool = machine_.pool();
    EXPECT_EQ(pool.read(pool.block(exact.blocks[block])),
              pool.read(pool.block(second.blocks[block])));
  }
}

// Several completions of one prompt: each goes on as if alone.
TEST_F(Prefix, ForksGoOnAsIfAlone) {
  for (const int64_t length : {127, 128, 129, 201}) {
    const auto prompt = random_ids(length, static_cast<uint32_t>(length));
    Sequence first = machine_.sequence();
    extend(first, prompt, length);
    std::vector<Sequence> all = {first, *machine_.pool().fork(first), *machine_.pool().fork(first)};
    for (uint32_t i = 0; i < 3; ++i) {
      auto ids = prompt;
      const auto more = random_ids(60, 70 + i);
      ids.insert(ids.end(), more.begin(), more.end());
      EXPECT_TRUE(same(extend(all[i], ids, length + 60, 7), plain(ids, length, length + 60)))
          << length << " completion " << i;
    }
    for (Sequence& sequence : all) machine_.pool().release(sequence);
  }
}

// User case 15: the same request again and again on one machine.
TEST_F(Prefix, TheFiftiethRequestGetsTheFirstOnesLogits) {
  const auto ids = random_ids(200, 6);
  const auto expected = plain(ids, 199, 200);
  for (int i = 0; i < 50; ++i) {
    Sequence sequence = machine_.sequence();
    const PrefixHit hit = adopt(sequence, ids);
    EXPECT_EQ(hit.length, i == 0 ? 0 : 128);
    const auto logits = extend(sequence, ids, 200);
    EXPECT_TRUE(same({logits.end() - 320, logits.end()}, expected)) << i;
    machine_.pool().release(sequence);
    if (i % 3 == 0) {  // one that is aborted in between
      Sequence other = machine_.sequence();
      extend(other, random_ids(150, 100 + static_cast<uint32_t>(i)), 140);
      machine_.pool().release(other);
    }
  }
}

}  // namespace
}  // namespace tidemill
