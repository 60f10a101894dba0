// Bugs that users of other engines have met, as tests that need more than one room. The numbers are
// those of docs/user-cases.md, which also says where the other cases are tested.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <sstream>

#include "fixture.h"
#include "state/memory_plan.h"
#include "state/suspend.h"
#include "state/test_state.h"

namespace tidemill {
namespace {

std::vector<int32_t> micro_tokens(int64_t count, uint32_t seed) {
  auto ids = random_tokens(count, seed);
  for (int32_t& id : ids) id %= 318;
  return ids;
}

bool same(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

std::span<const float> row(const std::vector<float>& logits, int64_t number, int64_t width) {
  return std::span(logits).subspan(static_cast<size_t>(number * width), static_cast<size_t>(width));
}

// Case 4: k of n drafts are accepted, for n = 6 and all k, with the first draft at every position
// of a block. The state is the plain one byte for byte, and so are logits after it.
TEST(UserCase, PartOfADraftAcceptedAtEveryPositionOfABlock) {
  constexpr int64_t kDrafts = 6;
  constexpr int64_t kWidth = 320;
  Machine machine(micro_model(), Machine::best());
  StatePool& pool = machine.pool();
  const auto tokens = micro_tokens(300, 4);
  const auto wrong = micro_tokens(300, 5);
  Sequence plain = machine.sequence();
  std::vector<std::vector<std::byte>> states(tokens.size() + 1);
  std::vector<float> logits = machine.run(plain, std::span(tokens).first(127));
  for (size_t p = 127; p < 270; ++p) {
    states[p] = pool.snapshot(plain);
    const auto next = machine.run(plain, std::span(tokens).subspan(p, 1));
    logits.insert(logits.end(), next.begin(), next.end());
  }
  Sequence base = machine.sequence();
  machine.run(base, std::span(tokens).first(127), Logits::kNone);
  for (int64_t start = 127; start <= 257; ++start) {
    for (int64_t accepted = 0; accepted <= kDrafts; ++accepted) {
      // What a verification sees: the anchor, right drafts, wrong drafts.
      std::vector<int32_t> step(tokens.begin() + start, tokens.begin() + start + 1 + accepted);
      step.insert(step.end(), wrong.begin() + start, wrong.begin() + start + kDrafts - accepted);
      Sequence verified = *pool.fork(base);
      machine.run(verified, step, Logits::kNone);
      const int64_t end = start + 1 + accepted;
      ASSERT_TRUE(pool.truncate(verified, end));
      ASSERT_EQ(pool.snapshot(verified), states[static_cast<size_t>(end)])
          << accepted << " of " << kDrafts << " after token " << start;
      if (start % (kDrafts + 1) == accepted) {
        const auto next = machine.run(verified, std::span(tokens).subspan(end, 1));
        ASSERT_TRUE(same(next, row(logits, end, kWidth)))
            << accepted << " of " << kDrafts << " after token " << start;
      }
      pool.release(verified);
    }
    machine.run(base, std::span(tokens).subspan(start, 1), Logits::kNone);
  }
}

// Case 6: the whole pass with blocks and slots that lie past 2 and 4 GiB (in memory that is only
// reserved) gives the bits that it gives with the first ones.
TEST(UserCase, StatePastFourGigabytes) {
  const auto tokens = micro_tokens(300, 6);
  const auto backend = Machine::best();
  const auto layout =
      *StateLayout::build(micro_model().config(), micro_model().topology(), *backend);
  constexpr int64_t kFar = int64_t{1} << 32;
  StatePool pool = *StatePool::create(*backend, layout, kFar / layout.slot_bytes + 2,
                                      kFar / layout.block_bytes + 8);
  const auto weights = placed(micro_model(), *backend);
  Forward forward = *Forward::create(
      micro_model(), *backend, pool,
      {.max_tokens = 300, .weights = weights != nullptr ? &weights->weights() : nullptr});
  const auto logits_of = [&](Sequence& sequence) {
    std::vector<float> all;
    for (size_t begin = 0; begin < tokens.size();) {
      const size_t count = begin < 290 ? std::min<size_t>(145, 290 - begin) : 1;
      const StepItem item{&sequence, std::span(tokens).subspan(begin, count), Logits::kAll};
      const auto output = forward.run({&item, 1});
      EXPECT_TRUE(output) << (output ? "" : output.error().message);
      if (!output) break;
      const Rows& rows = output->logits;
      all.insert(all.end(), rows.f32(0), rows.f32(0) + rows.count * rows.width);
      begin += count;
    }
    return all;
  };
  Sequence near = *pool.acquire();
  const auto expected = logits_of(near);
  const auto state = pool.snapshot(near);
  Sequence taken = *pool.acquire();
  for (const int64_t past : {kFar / 2, kFar}) {
    ASSERT_TRUE(pool.reserve(taken, (past / layout.block_bytes - 8) * kBlockTokens));
    ASSERT_TRUE(pool.reserve(taken, (past / layout.block_bytes - 2) * kBlockTokens));
    Sequence far = *pool.acquire();
    while (far.slot * layout.slot_bytes < past) far = *pool.acquire();
    EXPECT_EQ(logits_of(far), expected);
    EXPECT_GE(far.blocks.back() * layout.block_bytes, past);
    EXPECT_EQ(pool.snapshot(far), state);
  }
}

// Case 13, without real weights: logits at every position of a whole prompt in one step are those
// of one token after the other, up to the end of the context; and on a trained model.
TEST(UserCase, LongPrefillIsDecodeTokenByToken) {
  struct Case {
    const Model& model;
    std::vector<int32_t> ids;
    int64_t decode_from;
  };
  const Case cases[] = {
      {micro_model(), micro_tokens(2048, 13), 1},
      {mini_model(), Npz(vectors("mini/p1100.npz")).values<int32_t>("ids"), 1000},
  };
  for (const Case& one : cases) {
    Machine machine(one.model, Machine::best());
    const int64_t width = one.model.config().vocab_size;
    const auto length = static_cast<int64_t>(one.ids.size());
    Sequence whole = machine.sequence();
    const auto expected = machine.run(whole, one.ids);
    ASSERT_EQ(static_cast<int64_t>(expected.size()), length * width);
    Sequence stepwise = machine.sequence();
    for (int64_t p = 0; p < length;) {
      const int64_t count = p < one.decode_from ? std::min<int64_t>(128, one.decode_from - p) : 1;
      const auto logits = machine.run(stepwise, part(one.ids, p, p + count), Logits::kLast);
      p += count;
      ASSERT_TRUE(same(logits, row(expected, p - 1, width)))
          << "position " << p - 1 << " of a model of " << width << " tokens";
    }
    EXPECT_EQ(machine.pool().snapshot(stepwise), machine.pool().snapshot(whole));
  }
}

// Case 18, for the tier that exists, host copies of preempted requests: every number of blocks
// comes back as it was, around every power of two.
TEST(UserCase, ACopyOfAnyNumberOfBlocksComesBack) {
  for (const int64_t blocks : {1, 2, 63, 64, 65, 127, 128, 129, 255, 256, 257}) {
    for (const int64_t less : {0, 1, 127}) {
      StatePool pool = tiny_pool(2, blocks + 3);
      Sequence a = *pool.acquire();
      ASSERT_TRUE(compute(
          pool, a, random_tokens(blocks * kBlockTokens - less, static_cast<uint32_t>(blocks))));
      const auto state = pool.snapshot(a);
      const SuspendedSequence out = suspend(pool, a);
      // It comes back to other blocks, in another order.
      Sequence other = *pool.acquire();
      ASSERT_TRUE(compute(pool, other, random_tokens(300, 18)));
      Sequence back = *resume(pool, out);
      ASSERT_EQ(pool.snapshot(back), state) << blocks << " blocks less " << less << " tokens";
      ASSERT_EQ(static_cast<int64_t>(back.blocks.size()), blocks);
      pool.release(back);
      pool.release(other);
      EXPECT_EQ(pool.free_blocks(), blocks + 3);
    }
  }
}

// Case 19: the copy is made late, by a step that is still in flight, when the request has given up
// its blocks, another one goes on from half of its prefix and a third wants all memory there is.
TEST(UserCase, ALateCopyOfAPreemptedRequestReadsItsOwnBytes) {
  for (const bool published : {false, true}) {
    Reuser r(4, 12);
    StatePool& pool = *r.pool;
    const KeyChain chain = shared_chain();
    const auto text = random_tokens(700, 19);
    Sequence a;
    if (published) {
      a = r.run(text, chain);
    } else {
      a = *pool.acquire();
      ASSERT_TRUE(compute(pool, a, text));
    }
    const auto state = pool.snapshot(a);
    const SuspendedSequence expected = copy_out(pool, a);
    const Sequence device = a;  // what the device was told
    const int64_t step = pool.begin_step();
    pool.release(a);

    Sequence b = r.run({text.begin(), text.begin() + 300}, chain);
    EXPECT_EQ(r.hit_tokens, published ? 256 : 0);
    Sequence c = r.run(random_tokens(12 * kBlockTokens, 20), chain);
    EXPECT_FALSE(r.status);  // and poison is where something was free
    const SuspendedSequence late = copy_out(pool, device);
    EXPECT_EQ(late.slot, expected.slot);
    EXPECT_EQ(late.blocks, expected.blocks);
    pool.finish_step(step);
    pool.release(b);
    pool.release(c);
    Sequence back = *resume(pool, late);
    EXPECT_EQ(pool.snapshot(back), state);
    pool.release(back);
    r.cache.clear();
    EXPECT_EQ(pool.block_pool().free_count(), 12);
    EXPECT_EQ(pool.free_slots(), 4);
  }
}

// Case 70: bytes per token and per sequence of the released configuration file, by hand. Layers 2,
// 8 and 14 own a cache of one row for two tokens, layer 20 one of a row for each; a row is an entry
// of 512 values (288 bytes) and an index key of 128 (68 bytes). A draft layer owns a ring of window
// rows and nothing else.
TEST(UserCase, BytesOfTheReleasedConfiguration) {
  std::ifstream file(TIDEMILL_SOURCE_DIR "/tests/cases/config/released.json");
  std::stringstream text;
  text << file.rdbuf();
  Config config = *Config::parse(text.str());
  const auto backend = Machine::reference();
  const auto plan_of = [&](const Config& c) {
    return *MemoryPlan::make(
        *StateLayout::build(c, *Topology::build(c), *backend),
        {.budget_bytes = int64_t{1} << 40, .context = 1 << 20, .sequences = 64});
  };
  const MemoryPlan plan = plan_of(config);
  double per_token = 0;
  int64_t per_sequence = 0;
  for (const auto& section : plan.sections) {
    per_token += section.bytes_per_token;
    per_sequence += section.bytes_per_sequence;
    if (section.name.find("entries") == 0) {
      EXPECT_TRUE(section.bytes_per_token == 288 || section.bytes_per_token == 144) << section.name;
    }
  }
  EXPECT_EQ(per_token, (3 / 2.0 + 1) * (288 + 68));
  EXPECT_EQ(plan.block_bytes_per_token, 890);
  // A window, and a block by which it may be passed; rings begin at multiples of 64 bytes.
  constexpr int64_t kRing = (128 + 128) * 528;
  EXPECT_EQ(per_sequence, (40 + 3) * kRing + 3 * 8 * 2 * 512 * 4);
  config.num_nextn_predict_layers = 0;
  const MemoryPlan without = plan_of(config);
  EXPECT_EQ(without.block_bytes_per_token, 890);
  int64_t rest = 0;
  for (const auto& section : without.sections) rest += section.bytes_per_sequence;
  EXPECT_EQ(per_sequence - rest, 3 * kRing);
}

}  // namespace
}  // namespace tidemill
