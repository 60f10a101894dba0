// Properties of the forward pass: its result is a function of a sequence's tokens alone.
#include "forward/forward.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>

namespace tidemill {
namespace {

using testing::HasSubstr;

// The micro checkpoint (window 32, ratios 0/2/1, pool and top-k that bite, Engram, drafter) on one
// backend with its own state.
class Bench {
 public:
  explicit Bench(int threads = 1, ReplayForm form = ReplayForm::kCompact, int64_t max_tokens = 600,
                 int64_t sequences = 6)
      : team_(threads) {
    backend_ = make_backend(team_);
    auto layout = StateLayout::build(model().config(), model().topology(), *backend_);
    pool_ = std::make_unique<StatePool>(
        *StatePool::create(*backend_, std::move(*layout), sequences, 16 * sequences));
    // Whoever reads what nobody wrote sees NaN.
    pool_->poison_free_memory();
    forward_ = std::make_unique<Forward>(*Forward::create(
        model(), *backend_, *pool_, {.max_tokens = max_tokens, .replay_form = form}));
  }

  static const Model& model() {
    static const std::unique_ptr<Model> model =
        std::move(*Model::load(TIDEMILL_SOURCE_DIR "/tests/vectors/micro"));
    return *model;
  }
  static std::unique_ptr<Backend> make_backend(ThreadTeam& team) {
    auto cpu = make_cpu_backend(team);  // any x86-64 machine with AVX2; otherwise the reference
    return cpu ? std::move(*cpu) : make_reference_backend(team);
  }

  Forward& forward() { return *forward_; }
  StatePool& pool() { return *pool_; }
  Sequence sequence() { return *pool_->acquire(); }

  // Logits of all tokens, run in the given chunk sizes (the last one repeats).
  std::vector<float> run(Sequence& sequence, std::span<const int32_t> tokens,
                         std::vector<int64_t> chunks) {
    std::vector<float> all;
    size_t begin = 0;
    for (size_t i = 0; begin < tokens.size(); ++i) {
      const auto chunk = static_cast<size_t>(chunks[std::min(i, chunks.size() - 1)]);
      const size_t count = std::min(chunk, tokens.size() - begin);
      const StepItem item{&sequence, tokens.subspan(begin, count), Logits::kAll};
      const auto output = forward_->run({&item, 1});
      EXPECT_TRUE(output) << (output ? "" : output.error().message);
      if (!output) return all;
      const Rows& rows = output->logits;
      all.insert(all.end(), rows.f32(0), rows.f32(0) + rows.count * rows.width);
      begin += count;
    }
    return all;
  }

 private:
  ThreadTeam team_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<StatePool> pool_;
  std::unique_ptr<Forward> forward_;
};

std::vector<int32_t> random_tokens(int64_t count, uint32_t seed = 1) {
  std::mt19937 random(seed);
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& id : tokens) id = static_cast<int32_t>(random() % 318);
  return tokens;
}

// Byte for byte, so that NaN and the sign of zero count.
bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

bool finite(const std::vector<float>& values) {
  return std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); });
}

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
  const auto draft_of = [&](Bench& bench, Sequence& sequence,
                            std::span<const Forward::DraftItem> items) {
    (void)sequence;
    std::vector<float> out;
    EXPECT_TRUE(bench.forward().draft(items));
    std::vector<int32_t> previous;
    for (const auto& item : items) previous.push_back(item.anchor);
    for (int64_t k = 0; k < 3; ++k) {
      const auto row = bench.forward().draft_logits(k, previous);
      EXPECT_TRUE(row);
      out.push_back(row->confidence[0]);
      out.insert(out.end(), row->logits.f32(0), row->logits.f32(0) + row->logits.width);
      for (int32_t& id : previous) id = static_cast<int32_t>(10 + k);
    }
    return out;
  };
  Bench bench(2);
  Sequence whole = bench.sequence();
  bench.run(whole, tokens, {140});
  const auto before = bench.pool().snapshot(whole);
  const Forward::DraftItem one{&whole, 17};
  const auto expected = draft_of(bench, whole, {&one, 1});
  EXPECT_TRUE(finite(expected));
  EXPECT_EQ(bench.pool().snapshot(whole), before);

  // The same from a chunked prefill, and beside a neighbour.
  Sequence pieces = bench.sequence();
  bench.run(pieces, tokens, {50, 1, 33});
  Sequence other = bench.sequence();
  bench.run(other, random_tokens(9, 6), {9});
  const Forward::DraftItem pair[] = {{&pieces, 17}, {&other, 4}};
  EXPECT_TRUE(same(draft_of(bench, pieces, pair), expected));
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
