// Index selection: ties, the pool, then every backend against the reference.
#include "ops/index_select/index_select.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <numeric>

#include "ops/index_select/cpu_select.h"
#include "ops/reference.h"
#include "ops/test_every_backend.h"

namespace tidemill {
namespace {

TEST(SelectLargest, TiesGoToTheLowerIndex) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> score = {1, 3, 2, 3, -infinity, 2, -0.0f, 0, -1, 2};
  const auto select = [&](int64_t k) {
    std::vector<int32_t> out(static_cast<size_t>(k), -9);
    select_largest(score.data(), static_cast<int64_t>(score.size()), k, out.data());
    return out;
  };
  EXPECT_EQ(select(1), (std::vector<int32_t>{1}));
  EXPECT_EQ(select(4), (std::vector<int32_t>{1, 2, 3, 5}));
  EXPECT_EQ(select(7), (std::vector<int32_t>{0, 1, 2, 3, 5, 6, 9}));  // -0 and 0 are equal
  EXPECT_EQ(select(9), (std::vector<int32_t>{0, 1, 2, 3, 5, 6, 7, 8, 9}));
  EXPECT_EQ(select(12), (std::vector<int32_t>{0, 1, 2, 3, 5, 6, 7, 8, 9, -1, -1, -1}));
  std::vector<int32_t> none(2);
  select_largest(nullptr, 0, 2, none.data());
  EXPECT_EQ(none, (std::vector<int32_t>{-1, -1}));
}

TEST(SelectLargest, IsASortWithManyTies) {
  TestInputs in(1);
  for (int round = 0; round < 200; ++round) {
    const int64_t n = 1 + in.below(300);
    const int64_t k = 1 + in.below(100);
    std::vector<float> score(static_cast<size_t>(n));
    for (float& s : score) s = round_bf16(static_cast<float>(in.below(12) - 6) * 0.37f);
    std::vector<int32_t> order(static_cast<size_t>(n));
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      const float x = score[static_cast<size_t>(a)];
      const float y = score[static_cast<size_t>(b)];
      return x > y || (x == y && a < b);
    });
    order.resize(static_cast<size_t>(std::min(n, k)));
    std::sort(order.begin(), order.end());
    order.resize(static_cast<size_t>(k), -1);
    std::vector<int32_t> out(static_cast<size_t>(k));
    select_largest(score.data(), n, k, out.data());
    EXPECT_EQ(out, order);
  }
}

struct Shape {
  int64_t heads, dim, topk, pool_block, pool_topk;
};

// Queries of several sequences over paged keys.
struct Step {
  Shape shape;
  OwnedRows q, weight;
  std::vector<std::byte> pages;
  std::vector<int32_t> sequence, table, selected, pool;
  std::vector<int64_t> visible, table_begin;
  IndexSelectArgs args;

  Step(TestInputs& in, const Shape& s, const std::vector<int64_t>& seen, int64_t per_sequence,
       bool coarse)
      : shape(s), q(0, 0), weight(0, 0), visible(seen) {
    const auto tokens = static_cast<int64_t>(seen.size());
    q = in.activations(tokens, s.heads * s.dim);
    reference_backend().round_rows({.x = q.view(), .kind = RowKind::kQ4Index, .group = s.dim});
    weight = in.activations(tokens, s.heads, 0.1f);
    const RowFormat format{RowKind::kQ4Index, s.dim};
    constexpr int64_t kPerBlock = 32;
    const int64_t longest = *std::max_element(seen.begin(), seen.end());
    const int64_t blocks = longest / kPerBlock + 1;
    const int64_t sequences = (tokens + per_sequence - 1) / per_sequence;
    const int64_t block_bytes = kPerBlock * format.bytes() + 100;
    pages.resize(static_cast<size_t>(sequences * blocks * block_bytes));
    for (int64_t b = 0; b < sequences * blocks; ++b) {
      for (int64_t i = 0; i < kPerBlock; ++i) {
        OwnedRows key = in.activations(1, s.dim);
        if (coarse) std::fill(key.data.begin(), key.data.end(), static_cast<float>(in.below(3)));
        reference::pack_row(format, key.data.data(),
                            pages.data() + b * block_bytes + 100 + i * format.bytes());
      }
      table.push_back(static_cast<int32_t>(sequences * blocks - 1 - b));
    }
    for (int64_t i = 0; i < sequences; ++i) table_begin.push_back(i * blocks);
    for (int64_t t = 0; t < tokens; ++t) {
      sequence.push_back(static_cast<int32_t>(t / per_sequence));
    }
    selected.resize(static_cast<size_t>(tokens * s.topk));
    pool.resize(static_cast<size_t>(tokens * s.pool_topk));
    args.q = q.view();
    args.weight = weight.view();
    args.heads = s.heads;
    args.keys = {pages.data(), block_bytes,       100, kPerBlock, format,
                 table.data(), table_begin.data()};
    args.sequence = sequence.data();
    args.visible = visible.data();
    args.most_visible = longest;
    args.topk = s.topk;
    args.selected = selected.data();
    args.pool_block = s.pool_block;
    args.pool_topk = s.pool_topk;
  }

  // Everything, then with a pool built, then inside that pool.
  std::vector<int32_t> run(Backend& backend) {
    std::vector<int32_t> all;
    const auto keep = [&all](const std::vector<int32_t>& part) {
      all.insert(all.end(), part.begin(), part.end());
    };
    args.pool_in = nullptr;
    args.pool_out = nullptr;
    backend.index_select(args);
    keep(selected);
    if (shape.pool_topk == 0) return all;
    args.pool_out = pool.data();
    backend.index_select(args);
    keep(selected);
    keep(pool);
    args.pool_out = nullptr;
    args.pool_in = pool.data();
    backend.index_select(args);
    keep(selected);
    return all;
  }
};

void expect_all_equal(Step& step) {
  const std::vector<int32_t> expected = step.run(reference_backend());
  for_each_backend([&](Backend& backend, const std::string& label) {
    EXPECT_EQ(step.run(backend), expected) << label << ", " << step.shape.heads << " heads";
  });
}

TEST(IndexSelect, TheNewestBlockIsAlwaysInThePool) {
  TestInputs in(2);
  Step step(in, {4, 64, 8, 8, 2}, {100}, 1, false);
  std::fill(step.weight.data.begin(), step.weight.data.end(), 0.0f);  // every score ties at 0
  const std::vector<int32_t> all = step.run(reference_backend());
  EXPECT_EQ(step.pool, (std::vector<int32_t>{0, 12}));  // lowest of the tied, and the newest
  EXPECT_EQ(step.selected, (std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, 7}));
  expect_all_equal(step);
}

TEST(IndexSelectBackends, Agree) {
  TestInputs in(3);
  const Shape shapes[] = {{4, 64, 64, 8, 32},
                          {3, 64, 12, 4, 5},
                          {1, 32, 5, 0, 0},
                          {7, 32, 3, 2, 3},
                          {32, 128, 50, 8, 9}};
  for (const Shape& shape : shapes) {
    for (const bool coarse : {false, true}) {
      for (const auto& [visible, per_sequence] :
           std::vector<std::pair<std::vector<int64_t>, int64_t>>{
               {{1}, 1},
               {{0}, 1},
               {{63, 64, 65}, 1},
               {{200, 200, 201, 201, 202, 202, 203, 203, 204, 204, 205}, 11},
               {{5, 5, 6, 300, 301, 301, 0, 1, 1}, 3}}) {
        Step step(in, shape, visible, per_sequence, coarse);
        expect_all_equal(step);
      }
    }
  }
}

TEST(IndexSelectBackends, AgreeOnLongContexts) {
  TestInputs in(4);
  Step step(in, {4, 64, 64, 8, 32}, {5000, 5001}, 2, false);
  expect_all_equal(step);
}

TEST(IndexSelectBackends, PageAddressesHave64Bits) {
  TestInputs in(5);
  Step step(in, {4, 64, 16, 8, 6}, {120, 121}, 2, false);
  const std::vector<int32_t> expected = step.run(reference_backend());
  constexpr int64_t kStride = 1039680;
  const size_t size = size_t{5} << 30;
  void* pool = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(pool, MAP_FAILED);
  auto* base = static_cast<std::byte*>(pool);
  const PagedRows small = step.args.keys;
  for (const int64_t past : {int64_t{1} << 31, int64_t{1} << 32}) {
    std::vector<int32_t> table = step.table;
    for (int32_t& block : table) {
      const int64_t far = past / kStride + 1 + block;
      std::memcpy(base + far * kStride + small.offset,
                  small.base + block * small.block_bytes + small.offset,
                  static_cast<size_t>(small.rows_per_block * small.format.bytes()));
      block = static_cast<int32_t>(far);
    }
    step.args.keys.base = base;
    step.args.keys.block_bytes = kStride;
    step.args.keys.table = table.data();
    EXPECT_EQ(step.run(reference_backend()), expected);
    for_each_backend([&](Backend& backend, const std::string& label) {
      EXPECT_EQ(step.run(backend), expected) << label;
    });
  }
  munmap(pool, size);
}

}  // namespace
}  // namespace tidemill
