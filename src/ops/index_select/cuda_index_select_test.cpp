// The fast lightning indexer against the plain one at the released sizes. Where sums of products
// are exact in float32, which scales that do not lie far apart ensure, both select the same.
#include <gtest/gtest.h>

#include <numeric>

#include "ops/test_backend.h"
#include "ops/test_host_calls.h"
#include "ops/test_inputs.h"

namespace tidemill {
namespace {

constexpr int64_t kHeads = 32;
constexpr int64_t kDim = 128;

struct Shape {
  int64_t rows_per_block = 64;
  int64_t topk = 512;
  int64_t pool_topk = 0;
  int64_t scales = 4;        // powers of two among the scales of keys
  int64_t codes = 256;       // different bytes among the codes
  float weight_mean = 0.0f;  // of the heads
  float weight_deviation = 0.1f;
};

// Tokens of several sequences over keys in pages out of order.
struct Step {
  Shape shape;
  OwnedRows q, weight;
  std::vector<std::byte> pages;
  std::vector<int32_t> sequence, table, selected, pool;
  std::vector<int64_t> visible, table_begin;
  IndexSelectArgs args;

  Step(uint64_t seed, const Shape& s, std::vector<int64_t> seen, std::vector<int32_t> of_sequence)
      : shape(s),
        q(static_cast<int64_t>(seen.size()), kHeads * kDim),
        weight(static_cast<int64_t>(seen.size()), kHeads),
        sequence(std::move(of_sequence)),
        visible(std::move(seen)) {
    TestInputs in(seed);
    const auto tokens = static_cast<int64_t>(visible.size());
    constexpr float kValues[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t k = 0; k < kHeads * kDim; ++k) {
        const float scale = std::ldexp(1.0f, static_cast<int>((k / 32 * 7 + t) % 4) - 5);
        const float value = kValues[in.below(8)] * scale;
        q.row(t).f32(0)[k] = in.below(2) == 0 ? value : -value;
      }
      for (int64_t h = 0; h < kHeads; ++h) {
        weight.row(t).f32(0)[h] = round_bf16(s.weight_mean + in.normal(s.weight_deviation));
      }
    }
    const int32_t sequences = *std::max_element(sequence.begin(), sequence.end()) + 1;
    int64_t blocks = 0;
    for (int32_t i = 0; i < sequences; ++i) {
      int64_t longest = 0;
      for (int64_t t = 0; t < tokens; ++t) {
        if (sequence[static_cast<size_t>(t)] == i) {
          longest = std::max(longest, visible[static_cast<size_t>(t)]);
        }
      }
      table_begin.push_back(blocks);
      blocks += longest / s.rows_per_block + 1;
    }
    const RowFormat format{RowKind::kQ4Index, kDim};
    constexpr int64_t kOffset = 64;
    const int64_t block_bytes = kOffset + s.rows_per_block * format.bytes();
    pages.resize(static_cast<size_t>(blocks * block_bytes));
    for (int64_t b = 0; b < blocks; ++b) {
      for (int64_t i = 0; i < s.rows_per_block; ++i) {
        auto* row = reinterpret_cast<uint8_t*>(pages.data()) + b * block_bytes + kOffset +
                    i * format.bytes();
        for (int64_t k = 0; k < 64; ++k) row[k] = static_cast<uint8_t>(in.below(s.codes));
        for (int64_t k = 64; k < 68; ++k) row[k] = static_cast<uint8_t>(124 + in.below(s.scales));
      }
    }
    table.resize(static_cast<size_t>(blocks));
    std::iota(table.begin(), table.end(), 0);
    for (int64_t i = blocks - 1; i > 0; --i) {
      std::swap(table[static_cast<size_t>(i)], table[static_cast<size_t>(in.below(i + 1))]);
    }
    selected.resize(static_cast<size_t>(tokens * s.topk));
    pool.resize(static_cast<size_t>(tokens * s.pool_topk));
    args.q = q.view();
    args.weight = weight.view();
    args.heads = kHeads;
    args.keys = {pages.data(), block_bytes,  kOffset,           s.rows_per_block,
                 format,       table.data(), table_begin.data()};
    args.sequence = sequence.data();
    args.visible = visible.data();
    args.most_visible = *std::max_element(visible.begin(), visible.end());
    args.topk = s.topk;
    args.selected = selected.data();
    args.pool_block = 8;
    args.pool_topk = s.pool_topk;
  }

  using Lists = std::vector<std::vector<int32_t>>;

  // Everything; with a pool built; inside it. `only`: one token by itself.
  Lists run(Backend& backend, int64_t only = -1) {
    IndexSelectArgs a = args;
    if (only >= 0) {
      a.q = q.row(only);
      a.weight = weight.row(only);
      a.sequence += only;
      a.visible += only;
      a.most_visible = *a.visible;
    }
    const auto list = [&](const std::vector<int32_t>& all, int64_t k) {
      return std::vector<int32_t>(all.begin(), all.begin() + a.q.count * k);
    };
    backend.index_select(a);
    Lists lists = {list(selected, a.topk)};
    if (a.pool_topk == 0) return lists;
    a.pool_out = pool.data();
    backend.index_select(a);
    lists.push_back(list(selected, a.topk));
    lists.push_back(list(pool, a.pool_topk));
    a.pool_out = nullptr;
    a.pool_in = pool.data();
    backend.index_select(a);
    lists.push_back(list(selected, a.topk));
    return lists;
  }
};

class CudaIndexSelect : public testing::Test {
 protected:
  static HostCalls* calls(CudaKernels kernels) {
    auto backend = cuda_backend_for_tests(kernels);
    return backend ? new HostCalls(std::move(backend)) : nullptr;
  }
  static void SetUpTestSuite() {
    fast_ = calls(CudaKernels::kFast);
    plain_ = calls(CudaKernels::kPlain);
  }
  void SetUp() override {
    if (fast_ == nullptr) GTEST_SKIP() << "no CUDA device";
  }

  static void expect_equal(Step&& step, const char* what) {
    const Step::Lists expected = step.run(*plain_);
    const Step::Lists got = step.run(*fast_);
    constexpr const char* kNames[] = {"all", "all beside the pool", "pool", "in the pool"};
    ASSERT_EQ(expected.size(), got.size());
    for (size_t i = 0; i < got.size(); ++i) {
      const auto differ =
          std::mismatch(got[i].begin(), got[i].end(), expected[i].begin()).first - got[i].begin();
      if (static_cast<size_t>(differ) == got[i].size()) continue;
      const auto k = i == 2 ? step.shape.pool_topk : step.shape.topk;
      ADD_FAILURE() << what << ", " << kNames[i] << ": token " << differ / k << " (visible "
                    << step.visible[static_cast<size_t>(differ / k)] << "), place " << differ % k
                    << ": " << got[i][static_cast<size_t>(differ)] << ", expected "
                    << expected[i][static_cast<size_t>(differ)];
    }
  }

  // Never destroyed: at the end of the program the driver may go first.
  static inline HostCalls* fast_ = nullptr;
  static inline HostCalls* plain_ = nullptr;
};

const std::vector<int64_t> kEveryLength = {0, 1, 7, 8, 511, 512, 513, 5000, 70000};

std::vector<int32_t> own_sequences(size_t tokens) {
  std::vector<int32_t> sequence(tokens);
  std::iota(sequence.begin(), sequence.end(), 0);
  return sequence;
}

TEST_F(CudaIndexSelect, SequencesOfEveryLength) {
  for (const int64_t rows : {64, 128}) {
    for (const int64_t pool : {0, 100, 2048}) {
      expect_equal(Step(1, {.rows_per_block = rows, .pool_topk = pool}, kEveryLength,
                        own_sequences(kEveryLength.size())),
                   "every length");
    }
  }
  for (const int64_t visible : kEveryLength) {
    expect_equal(Step(2, {.pool_topk = 100}, {visible}, {0}), "one token");
  }
}

// What racecheck has time for: a list of one slice, and of several.
TEST_F(CudaIndexSelect, SmallCalls) {
  expect_equal(Step(9, {.pool_topk = 40}, {600, 20000}, {0, 1}), "two tokens");
}

TEST_F(CudaIndexSelect, Ties) {
  const std::vector<int64_t> lengths = {600, 3000, 20000, 70000};
  const auto expect = [&](const Shape& shape, const char* what) {
    expect_equal(Step(3, shape, lengths, own_sequences(lengths.size())), what);
  };
  expect({.pool_topk = 128, .scales = 1, .codes = 2}, "few scores");
  expect({.pool_topk = 128, .scales = 1, .codes = 1}, "one score");
  expect({.pool_topk = 128, .weight_deviation = 0}, "all 0");
  expect({.pool_topk = 128, .weight_mean = -0.3f}, "negative ones");
  expect({.pool_topk = 128, .weight_mean = 0.3f}, "positive ones");
}

TEST_F(CudaIndexSelect, RunsOfSeveralSequences) {
  std::vector<int64_t> visible;
  std::vector<int32_t> sequence;
  int32_t s = 0;
  for (const auto& [tokens, first] : std::vector<std::pair<int, int64_t>>{
           {5, 300}, {1, 2000}, {1, 0}, {9, 1020}, {2, 0}, {30, 4090}, {1, 129}, {3, 9000}}) {
    for (int i = 0; i < tokens; ++i) {
      visible.push_back(first + i / 2);
      sequence.push_back(s);
    }
    ++s;
  }
  for (const int64_t pool : {40, 2048}) {
    Step step(4, {.rows_per_block = 128, .topk = 64, .pool_topk = pool}, visible, sequence);
    const Step::Lists all = step.run(*fast_);
    expect_equal(std::move(step), "runs");  // nothing moves
    for (int64_t t = 0; t < static_cast<int64_t>(visible.size()); ++t) {
      const Step::Lists alone = step.run(*fast_, t);
      for (size_t i = 0; i < alone.size(); ++i) {
        const auto begin = all[i].begin() + t * (i == 2 ? pool : 64);
        EXPECT_TRUE(std::equal(alone[i].begin(), alone[i].end(), begin))
            << "token " << t << " alone";
      }
    }
  }
}

TEST_F(CudaIndexSelect, APromptsChunk) {
  std::vector<int64_t> visible(200);
  std::iota(visible.begin(), visible.end(), 6000);
  expect_equal(Step(5, {.pool_topk = 256}, visible, std::vector<int32_t>(200, 0)), "chunk");
}

TEST_F(CudaIndexSelect, ListsOfManySlices) {
  expect_equal(Step(6, {.rows_per_block = 128, .topk = 8192}, {300000, 16385}, {0, 1}), "long");
  expect_equal(Step(7, {.topk = 1, .pool_topk = 1}, {40000, 16384}, {0, 1}), "one");
}

// With scales far apart float32 sums depend on their order: nearly the same is selected.
TEST_F(CudaIndexSelect, ScalesFarApart) {
  Step step(8, {.scales = 100}, {30000, 2000}, {0, 1});
  const auto expected = step.run(*plain_)[0];
  const auto got = step.run(*fast_)[0];
  for (size_t t = 0; t < 2; ++t) {
    const auto begin = static_cast<int64_t>(t * 512);
    std::vector<int32_t> both;
    std::set_intersection(got.begin() + begin, got.begin() + begin + 512, expected.begin() + begin,
                          expected.begin() + begin + 512, std::back_inserter(both));
    EXPECT_GE(both.size(), 500u);
  }
}

}  // namespace
}  // namespace tidemill
