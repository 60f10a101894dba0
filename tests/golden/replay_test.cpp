// Encoder replay through the prefix cache: hits whose windows are gone, on the real forward pass.
// What a replay computes is checked in src/forward; here, when there is one and what it may touch.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cstring>

#include "fixture.h"
#include "state/prefix_cache.h"

namespace tidemill {
namespace {

constexpr LookupOptions kReplay = {.reuse = Reuse::kEncoderReplay};

bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// The bundled model: window 128, as released. Windows are never kept.
class EncoderReplay : public testing::TestWithParam<ReplayForm> {
 protected:
  EncoderReplay()
      : machine_(mini_model(), Machine::best(), GetParam()),
        cache_(machine_.pool(), {.budget_bytes = 0}),
        chain_({.weights = "mini", .layout = machine_.pool().layout().fingerprint()}),
        ids_(Npz(vectors("mini/p1100.npz")).values<int32_t>("ids")) {
    machine_.pool().set_poison(true);
    machine_.pool().poison_free_memory();
  }

  std::span<const int32_t> part(int64_t begin, int64_t end) const {
    return std::span(ids_).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
  }
  TokenView prompt(int64_t length) const { return {part(0, length), {}}; }
  void publish(int64_t length) {
    Sequence sequence = machine_.sequence();
    machine_.run(sequence, part(0, length), Logits::kNone);
    cache_.publish(sequence, length, chain_);
    machine_.pool().release(sequence);
  }
  // A request whose decoder runs on the tail: the sequence before its first step.
  Sequence start(int64_t length) {
    Sequence sequence = machine_.sequence();
    cache_.adopt(cache_.lookup(prompt(length), chain_, kReplay), prompt(length), sequence);
    sequence.decoder_floor = length - machine_.pool().layout().recomputed_tail();
    return sequence;
  }
  std::vector<std::byte> bytes(const Sequence& sequence) {
    std::vector<std::byte> all;
    for (int64_t i = 0; i < sequence.adopted / kBlockTokens; ++i) {
      const StatePool& pool = machine_.pool();
      const auto block = pool.read(pool.block(sequence.blocks[static_cast<size_t>(i)]));
      all.insert(all.end(), block.begin(), block.end());
    }
    return all;
  }
  // Logits of the last prompt token and of three that are decoded.
  std::vector<float> finish(Sequence& sequence, int64_t length, int64_t chunk) {
    std::vector<float> logits;
    while (sequence.length() < length + 3) {
      const int64_t begin = sequence.length();
      const int64_t end = begin < length ? std::min(length, begin + chunk) : begin + 1;
      const auto row = machine_.run(sequence, part(begin, end), Logits::kLast);
      if (end >= length) logits.insert(logits.end(), row.begin(), row.end());
    }
    return logits;
  }

  Machine machine_;
  PrefixCache cache_;
  KeyChain chain_;
  std::vector<int32_t> ids_;
};

// A hit no longer than the window would recompute all of it: it is none.
TEST_P(EncoderReplay, HitsOfOneWindowAreNotAdopted) {
  publish(600);
  const int64_t tail = machine_.pool().layout().recomputed_tail();
  for (const int64_t length : {128 + tail, 255 + tail}) {
    const PrefixHit hit = cache_.lookup(prompt(length), chain_, kReplay);
    EXPECT_EQ(hit.length, 0);
    EXPECT_EQ(hit.adopted, 0);
    EXPECT_EQ(hit.replay_from, -1);
    EXPECT_EQ(hit.reason, MissReason::kWindowMissing) << hit.text;
  }
  const PrefixHit hit = cache_.lookup(prompt(256 + tail), chain_, kReplay);
  EXPECT_EQ(hit.adopted, 256) << hit.text;
  EXPECT_EQ(hit.replay_from, 128);
}

// Two requests with the same hit, the second cut into other chunks, a third cancelled in its
// replay: equal logits, and the cached bytes are those from before. Nothing approximate is
// published.
TEST_P(EncoderReplay, RequestsWithTheSameHitGetTheSameLogits) {
  publish(700);
  for (const int64_t length : {256 + 134, 256 + 135, 512 + 134, 512 + 188}) {
    Sequence first = start(length);
    ASSERT_EQ(first.adopted, length < 512 ? 256 : 512);
    ASSERT_EQ(first.length(), first.adopted - 128);
    const auto cached = bytes(first);
    const std::vector<int32_t> blocks = first.blocks;
    const auto expected = finish(first, length, 2048);
    EXPECT_EQ(cache_.publish(first, first.length(), chain_), first.adopted / kBlockTokens);
    EXPECT_FALSE(cache_.save_windows(first, first.adopted, chain_));
    machine_.pool().release(first);

    Sequence cancelled = start(length);
    machine_.run(cancelled, part(cancelled.length(), cancelled.length() + 50), Logits::kNone);
    machine_.pool().release(cancelled);

    for (const int64_t chunk : {128, 127, 100}) {
      Sequence second = start(length);
      EXPECT_TRUE(same(finish(second, length, chunk), expected)) << length << " in " << chunk;
      EXPECT_EQ(bytes(second), cached);
      EXPECT_TRUE(std::equal(blocks.begin(), blocks.end(), second.blocks.begin()));
      machine_.pool().release(second);
    }
  }
}

// What a replay costs in exactness.
TEST_P(EncoderReplay, IsWithinAStatedBoundOfTheExactPass) {
  publish(1000);
  for (const int64_t length : {400, 700, 1000}) {
    Sequence exact = machine_.sequence();
    const auto want = finish(exact, length, 512);
    machine_.pool().release(exact);
    Sequence replayed = start(length);
    ASSERT_GT(replayed.replay_from, 0);
    const auto got = finish(replayed, length, 512);
    machine_.pool().release(replayed);
    const auto d = compare(got, want, {0, 1, 2, 3}, mini_model().config().vocab_size);
    fmt::print("prompt of {}: logits differ by {:.3f} in the mean, {:.3f} at most, KL {:.5f}\n",
               length, d.mean, d.max, d.kl);
    EXPECT_GT(d.max, 0);
    EXPECT_LT(d.mean, quality_bound("replay_mean_difference_at_most"));
    EXPECT_LT(d.kl, quality_bound("replay_kl_at_most"));
    EXPECT_TRUE(d.argmax_by_gap);
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, EncoderReplay,
                         testing::Values(ReplayForm::kCompact, ReplayForm::kMask),
                         [](const auto& form) {
                           return form.param == ReplayForm::kMask ? "mask" : "compact";
                         });

}  // namespace
}  // namespace tidemill
