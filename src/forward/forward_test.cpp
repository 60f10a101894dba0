// Properties of the forward pass: its result is a function of a sequence's tokens alone.
#include "forward/forward.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "forward/test_bench.h"

namespace tidemill {
namespace {

using testing::HasSubstr;

TEST(Forward, PrefillChunksAndDecodeGiveTheSameBits) {
  for (const int64_t length : {1, 2, 3, 31, 32, 33, 65, 127, 128, 129, 255, 256, 257, 300}) {
    const auto tokens = random_tokens(length, static_cast<uint32_t>(length));
    Bench bench;
    Sequence whole = bench.sequence();
    const auto expected = bench.run(whole, tokens, {length});
    ASSERT_TRUE(finite(expected)) << length;
    const auto state = bench.pool().snapshot(whole);
    const std::vector<std::vector<int64_t>> cuts = {{1}, {2}, {7}, {32}, {3, 64, 1, 5}, {128, 1}};
    for (const auto& cut : cuts) {
      Sequence pieces = bench.sequence();
      EXPECT_TRUE(same(bench.run(pieces, tokens, cut), expected))
          << length << " tokens in chunks of " << cut[0];
      EXPECT_EQ(bench.pool().snapshot(pieces), state) << length;
      bench.pool().release(pieces);
    }
  }
}

TEST(Forward, ThreadsCannotBeSeen) {
  const auto tokens = random_tokens(150);
  std::vector<std::vector<float>> results;
  for (const int threads : {1, 2, 3, 5}) {
    Bench bench(threads);
    Sequence sequence = bench.sequence();
    results.push_back(bench.run(sequence, tokens, {64, 1, 9}));
  }
  for (size_t i = 1; i < results.size(); ++i) EXPECT_TRUE(same(results[i], results[0])) << i;
}

// With little memory, experts come from slots, from the disk or from the mapping, as it happens.
TEST(Forward, WhereTheWeightsAreCannotBeSeen) {
  if (testing_cuda_only()) GTEST_SKIP() << "a device holds all weights";
  const auto tokens = random_tokens(150);
  Bench bench(2);
  Sequence sequence = bench.sequence();
  const auto expected = bench.run(sequence, tokens, {64, 1, 9});
  const WeightResidency r = WeightResidency::of(Bench::model());
  for (const int64_t experts : {7, 20}) {
    const auto pager = WeightPager::create(Bench::model(), r.always + experts * r.slot_bytes());
    ASSERT_TRUE(pager) << pager.error().message;
    bench.make_forward({.max_tokens = 600, .pager = pager->get()});
    Sequence again = bench.sequence();
    EXPECT_TRUE(same(bench.run(again, tokens, {64, 1, 9}), expected)) << experts;
    const WeightPager::Counters& c = (*pager)->counters();
    // With 7 places an expert is seldom still there, and one that is being read is a miss.
    EXPECT_GT(c.hits, experts == 20 ? 0 : -1);
    EXPECT_GT(c.misses, 0);
    EXPECT_EQ(c.mapped > 0, experts == 7);
    bench.pool().release(again);
  }
}

TEST(Forward, NeighboursInABatchCannotBeSeen) {
  Bench bench(2);
  std::vector<std::vector<int32_t>> prompts;
  for (const uint32_t n : {40u, 1u, 77u, 130u}) prompts.push_back(random_tokens(n, 7 + n));
  std::vector<std::vector<float>> alone;
  for (const auto& prompt : prompts) {
    Sequence sequence = bench.sequence();
    alone.push_back(bench.run(sequence, prompt, {static_cast<int64_t>(prompt.size())}));
    bench.pool().release(sequence);
  }
  // One step holds prefill of some and single tokens of others.
  std::vector<Sequence> sequences;
  for (size_t i = 0; i < prompts.size(); ++i) sequences.push_back(bench.sequence());
  std::vector<std::vector<float>> together(prompts.size());
  for (size_t step = 0; step < 200; ++step) {
    std::vector<StepItem> items;
    std::vector<size_t> who;
    for (size_t i = 0; i < prompts.size(); ++i) {
      const auto done = static_cast<size_t>(sequences[i].length());
      if (done == prompts[i].size() || (step < 3 && i == 3)) continue;
      const size_t count = std::min(prompts[i].size() - done, 1 + (step * 7 + i * 5) % 11);
      items.push_back({&sequences[i], std::span(prompts[i]).subspan(done, count), Logits::kAll});
      who.push_back(i);
    }
    if (items.empty()) break;
    const auto output = bench.forward().run(items);
    ASSERT_TRUE(output);
    int64_t row = 0;
    for (size_t k = 0; k < items.size(); ++k) {
      for (size_t t = 0; t < items[k].tokens.size(); ++t, ++row) {
        const float* values = output->logits.f32(row);
        together[who[k]].insert(together[who[k]].end(), values, values + output->logits.width);
      }
    }
  }
  for (size_t i = 0; i < prompts.size(); ++i) EXPECT_TRUE(same(together[i], alone[i])) << i;
}

// Accept k of n drafts at every alignment to pairs and block ends: the state afterwards, and every
// logit after it, equal plain decoding.
TEST(Forward, RollbackLeavesNoTrace) {
  const auto tokens = random_tokens(300, 3);
  const auto wrong = random_tokens(300, 4);
  for (const int64_t start : {1, 2, 30, 31, 32, 33, 126, 127, 128, 129, 254, 255}) {
    Bench bench;
    for (int64_t drafts = 0; drafts <= 5; ++drafts) {
      for (int64_t accepted = 0; accepted <= drafts; ++accepted) {
        // What a verification sees: the anchor, right drafts, wrong drafts.
        std::vector<int32_t> step(tokens.begin() + start, tokens.begin() + start + 1 + accepted);
        step.insert(step.end(), wrong.begin(), wrong.begin() + (drafts - accepted));
        const int64_t end = start + 1 + accepted;

        Sequence verified = bench.sequence();
        bench.run(verified, std::span(tokens).first(static_cast<size_t>(start)), {start});
        bench.run(verified, step, {drafts + 1});
        ASSERT_TRUE(bench.pool().truncate(verified, end));

        Sequence plain = bench.sequence();
        bench.run(plain, std::span(tokens).first(static_cast<size_t>(start)), {start});
        bench.run(plain, std::span(tokens).subspan(static_cast<size_t>(start), end - start), {1});

        ASSERT_EQ(bench.pool().snapshot(verified), bench.pool().snapshot(plain))
            << start << " + " << accepted << " of " << drafts;
        const auto rest = std::span(tokens).subspan(static_cast<size_t>(end), 4);
        EXPECT_TRUE(same(bench.run(verified, rest, {1}), bench.run(plain, rest, {1})))
            << start << " + " << accepted << " of " << drafts;
        bench.pool().release(verified);
        bench.pool().release(plain);
      }
    }
  }
}

std::vector<float> replayed(ReplayForm form, const std::vector<int32_t>& tokens, int64_t keep,
                            std::vector<int64_t> chunks, std::vector<std::byte>* state = nullptr) {
  Bench bench(1, form);
  Sequence sequence = bench.sequence();
  sequence.decoder_floor = std::max<int64_t>(0, static_cast<int64_t>(tokens.size()) - 10 - keep);
  auto logits = bench.run(sequence, tokens, std::move(chunks));
  if (state != nullptr) *state = bench.pool().snapshot(sequence);
  return logits;
}

TEST(Forward, BoundedReplayMaskAndCompactAgree) {
  for (const int64_t length : {50, 97, 139, 200, 257}) {
    // The last 10 tokens are decoded after the replayed prefill of the others.
    const auto tokens = random_tokens(length + 10, 11);
    for (const int64_t keep : {32, 33, 40}) {
      const std::vector<std::vector<int64_t>> cuts = {{length, 1}, {30, 50, 7}, {16}, {1}};
      std::vector<std::byte> state;
      const auto expected = replayed(ReplayForm::kCompact, tokens, keep, cuts[0], &state);
      ASSERT_EQ(expected.size(), static_cast<size_t>((keep + 10) * 320));
      ASSERT_TRUE(finite(expected));
      for (const auto& cut : cuts) {
        for (const ReplayForm form : {ReplayForm::kCompact, ReplayForm::kMask}) {
          std::vector<std::byte> other;
          EXPECT_TRUE(same(replayed(form, tokens, keep, cut, &other), expected))
              << length << " keep " << keep << " chunk " << cut[0];
          EXPECT_EQ(other, state);
        }
      }
    }
  }
}

TEST(Forward, ReplayOfAShortPromptIsExact) {
  const auto tokens = random_tokens(42, 12);
  Bench bench;
  Sequence sequence = bench.sequence();
  EXPECT_TRUE(
      same(replayed(ReplayForm::kCompact, tokens, 32, {32, 1}), bench.run(sequence, tokens, {42})));
}

TEST(Forward, DraftsAreAFunctionOfTheSequenceAndLeaveNoTrace) {
  const auto tokens = random_tokens(140, 5);
  Bench bench(2);
  Sequence whole = bench.sequence();
  bench.run(whole, tokens, {140});
  const auto before = bench.pool().snapshot(whole);
  const auto expected = bench.draft(whole, 17);
  EXPECT_TRUE(finite(expected));
  EXPECT_EQ(bench.pool().snapshot(whole), before);

  // The same from a chunked prefill, and beside a neighbour.
  Sequence pieces = bench.sequence();
  bench.run(pieces, tokens, {50, 1, 33});
  Sequence other = bench.sequence();
  bench.run(other, random_tokens(9, 6), {9});
  const Forward::DraftItem pair[] = {{&pieces, 17}, {&other, 4}};
  EXPECT_TRUE(same(bench.draft(pair), expected));
}

TEST(Forward, RefusalsNameTheNumbersAndChangeNothing) {
  Bench bench(1, ReplayForm::kCompact, 64);
  Sequence sequence = bench.sequence();
  const auto attempt = [&](const std::vector<int32_t>& tokens) {
    const StepItem item{&sequence, tokens, Logits::kLast};
    const auto output = bench.forward().run({&item, 1});
    EXPECT_EQ(sequence.length(), 0);
    EXPECT_TRUE(sequence.blocks.empty());
    return output ? std::string() : output.error().message;
  };
  EXPECT_THAT(attempt({1, 320}), HasSubstr("token id 320 is outside the vocabulary of 320"));
  EXPECT_THAT(attempt({-1}), HasSubstr("token id -1"));
  EXPECT_THAT(attempt(random_tokens(65)), HasSubstr("65 tokens"));
  EXPECT_THAT(attempt({}), HasSubstr("at least one token"));
  EXPECT_THAT(attempt(random_tokens(2049)), HasSubstr("2049 tokens exceed the context of 2048"));

  bench.run(sequence, random_tokens(20), {20});
  EXPECT_FALSE(bench.pool().truncate(sequence, 13));  // more than the rollback positions
  EXPECT_TRUE(bench.pool().truncate(sequence, 14));
}

}  // namespace
}  // namespace tidemill
