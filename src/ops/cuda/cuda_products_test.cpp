// Products of weights on tensor cores: against the plain kernels, and a token's bits alone against
// its bits among others, which other kernels compute.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "ops/test_backend.h"
#include "ops/test_host_calls.h"
#include "ops/test_inputs.h"
#include "ops/test_narrow_rows.h"

namespace tidemill {
namespace {

// Both kinds of kernels over host memory.
class CudaProducts : public testing::Test {
 protected:
  void SetUp() override {
    auto fast_backend = cuda_backend_for_tests();
    if (!fast_backend) GTEST_SKIP() << "no CUDA device";
    fast = std::make_unique<HostCalls>(std::move(fast_backend));
    narrow = std::make_unique<NarrowRows>(cuda_backend_for_tests());
    plain = std::make_unique<HostCalls>(cuda_backend_for_tests(CudaKernels::kPlain));
  }
  std::unique_ptr<HostCalls> fast, plain;
  std::unique_ptr<NarrowRows> narrow;
};

// The largest difference in a row over the row's largest magnitude; NaN where one has it alone.
double difference(OwnedRows& a, OwnedRows& b) {
  double worst = 0;
  for (int64_t t = 0; t < a.count; ++t) {
    double largest = 1e-30;
    double apart = 0;
    for (int64_t i = 0; i < a.width; ++i) {
      const double x = a.row(t).f32(0)[i];
      const double y = b.row(t).f32(0)[i];
      if (std::isnan(x) && std::isnan(y)) continue;
      largest = std::max(largest, std::fabs(x));
      if (!(std::fabs(x - y) <= apart)) apart = std::fabs(x - y);
    }
    if (!(apart / largest <= worst)) worst = apart / largest;
  }
  return worst;
}

// The same bits; of what is no number, any.
bool same_rows(OwnedRows& all, OwnedRows& some) {
  for (int64_t t = 0; t < some.count; ++t) {
    for (int64_t i = 0; i < some.width; ++i) {
      const float& a = all.row(t).f32(0)[i];
      const float& b = some.row(t).f32(0)[i];
      if (std::memcmp(&a, &b, sizeof(float)) != 0 && !(std::isnan(a) && std::isnan(b)))
        return false;
    }
  }
  return true;
}

// A quarter of the values or more, but not all.
bool some_are_numbers(OwnedRows& rows) {
  int64_t numbers = 0;
  for (int64_t t = 0; t < rows.count; ++t) {
    const float* row = rows.row(t).f32(0);
    numbers += std::count_if(row, row + rows.width, [](float x) { return std::isfinite(x); });
  }
  return 4 * numbers > rows.count * rows.width && numbers < rows.count * rows.width;
}

constexpr int64_t kTokens = 400;
// Around the switches between kernels and the edges of their tiles.
constexpr int64_t kCounts[] = {1,  2,  7,   8,   9,   16,  17,  32,  33,  64, 65,
                               96, 97, 128, 129, 160, 192, 255, 256, 257, 320};

struct LinearCase {
  const char* name;
  WeightFormat format;
  int64_t rows, cols, groups = 1;
  bool quantise = true;
  bool f32_output = false;
  std::vector<uint8_t> scales = {114, 116, 117, 119, 120};
};

OwnedRows linear(Backend& backend, const LinearCase& c, const OwnedMatrix& w, OwnedRows& x,
                 int64_t tokens) {
  OwnedRows y(tokens, c.rows);
  backend.linear({.w = &w.view,
                  .x = x.view().first(tokens),
                  .y = y.view(),
                  .groups = c.groups,
                  .quantise_input = c.quantise,
                  .f32_output = c.f32_output});
  return y;
}

TEST_F(CudaProducts, LinearIsCloseToPlainAndEqualForAnyCount) {
  using enum WeightFormat;
  const LinearCase cases[] = {
      {"one segment", kFp8Block, 32768, 256},
      {"one segment, longer than several tokens' ring", kFp8Block, 32768, 1280},
      {"four segments", kFp8Block, 8192, 1024, 8, false},
      {"eight segments", kFp8Block, 1280, 2048},
      {"segments longer than several tokens' ring", kFp8Block, 256, 8192},
      {"blocks of 320 rows, or two of 128 a multiprocessor", kFp8Block, 5120, 3072},
      {"segments of more chunks than a warp holds scales", kFp8Block, 256, 40960},
      {"groups of 192 rows", kFp8Block, 1536, 512, 8, false},
      {"groups of 32 rows, for the kernel of few tokens only", kFp8Block, 256, 512, 8, false},
      {"fewer units than segments", kFp8Block, 272, 384},
      {"an odd number of chunks in a segment", kFp8Block, 544, 1664},
      {"bf16", kBf16, 384, 5120, 1, false, true},
      {"bf16, few rows", kBf16, 32, 320, 1, false, true},
      {"fp8, large scales and NaN",
       kFp8Block,
       256,
       512,
       1,
       true,
       true,
       {1, 120, 133, 134, 135, 200, 255}},
  };
  TestInputs in(1);
  for (const LinearCase& c : cases) {
    const OwnedMatrix w = in.matrix(c.format, c.rows, c.cols, c.scales);
    OwnedRows x = in.activations(kTokens, c.cols * c.groups);
    OwnedRows expected = linear(*plain, c, w, x, kTokens);
    OwnedRows all = linear(*fast, c, w, x, kTokens);
    // One rounding to bf16 may fall the other way; float32 sums of products in another order.
    EXPECT_LE(difference(expected, all), c.f32_output ? 1e-5 : 0x1p-7) << c.name;
    for (const int64_t tokens : kCounts) {
      OwnedRows some = linear(*fast, c, w, x, tokens);
      EXPECT_TRUE(same_rows(all, some)) << c.name << ", " << tokens << " tokens";
      OwnedRows halves = linear(*narrow, c, w, x, tokens);
      EXPECT_TRUE(same_rows(all, halves)) << c.name << ", " << tokens << " tokens, rows of bf16";
    }
  }
}

// Each kernel once, with as little as it takes: what racecheck has time for.
TEST_F(CudaProducts, SmallCalls) {
  using enum WeightFormat;
  TestInputs in(5);
  const auto call = [&](const LinearCase& c, std::initializer_list<int64_t> counts) {
    const OwnedMatrix w = in.matrix(c.format, c.rows, c.cols);
    OwnedRows x = in.activations(std::max(counts), c.cols);
    for (const int64_t tokens : counts) {
      OwnedRows expected = linear(*plain, c, w, x, tokens);
      OwnedRows got = linear(*narrow, c, w, x, tokens);
      EXPECT_LE(difference(expected, got), c.f32_output ? 1e-5 : 0x1p-7)
          << c.name << ", " << tokens << " tokens";
    }
  };
  call({"one segment", kFp8Block, 32768, 256}, {2, 12, 130});
  call({"four segments", kFp8Block, 8192, 1024}, {2, 20, 290});
  call({"bf16", kBf16, 384, 640, 1, false, true}, {2, 20});
  call({"bf16, one segment", kBf16, 32768, 128, 1, false, true}, {2, 12});
  EXPECT_EQ(narrow->narrowed(), 6 * 2 + 4);  // x and y, or x alone
}

// Otherwise the tests here would compare plain kernels with themselves.
TEST_F(CudaProducts, AreNotThePlainKernels) {
  TestInputs in(2);
  const LinearCase c{"bf16", WeightFormat::kBf16, 384, 5120, 1, false, true};
  const OwnedMatrix w = in.matrix(c.format, c.rows, c.cols);
  OwnedRows x = in.activations(80, c.cols);
  for (const int64_t tokens : {1, 80}) {
    OwnedRows a = linear(*plain, c, w, x, tokens);
    OwnedRows b = linear(*fast, c, w, x, tokens);
    EXPECT_FALSE(same_rows(a, b)) << tokens;
  }
}

struct Experts {
  std::vector<OwnedMatrix> matrices;
  std::vector<ExpertWeights> experts;  // the shared one last
  std::vector<int32_t> ids;
  std::vector<float> weights;
  int64_t topk;

  // Half of the choices fall on three experts, so that some have many tokens and some none.
  // `extreme`: scales that are more than one factor in bf16, and a few that are no numbers: of
  // every expert's w2, which is seen in some channels, and of the last one's w1.
  Experts(TestInputs& in, int64_t count, int64_t hidden, int64_t inter, int64_t chosen,
          bool extreme)
      : topk(chosen) {
    const std::vector<uint8_t> scales = extreme
                                            ? std::vector<uint8_t>{1, 117, 121, 128, 129, 135, 140}
                                            : std::vector<uint8_t>{117, 118, 119, 120, 121};
    for (int64_t e = 0; e <= count; ++e) {
      const auto format = e < count ? WeightFormat::kFp4Row : WeightFormat::kFp8Block;
      for (int i = 0; i < 3; ++i) {
        OwnedMatrix& w = matrices.emplace_back(
            in.matrix(format, i < 2 ? inter : hidden, i < 2 ? hidden : inter, scales));
        if (extreme && (i == 2 || (i == 0 && e == count - 1))) {
          w.scales[static_cast<size_t>(7 * e + 3) % w.scales.size()] = 255;
        }
      }
    }
    for (size_t i = 0; i < matrices.size(); i += 3) {
      experts.push_back({matrices[i].view, matrices[i + 1].view, matrices[i + 2].view});
    }
    for (int64_t t = 0; t < kTokens; ++t) {
      std::vector<int32_t> ids_of_token;
      while (static_cast<int64_t>(ids_of_token.size()) < topk) {
        const auto id = static_cast<int32_t>(in.below(in.below(2) == 0 ? 3 : count));
        if (std::find(ids_of_token.begin(), ids_of_token.end(), id) == ids_of_token.end()) {
          ids_of_token.push_back(id);
          weights.push_back(in.uniform(0.05f, 0.9f));
        }
      }
      ids.insert(ids.end(), ids_of_token.begin(), ids_of_token.end());
    }
  }

  // So many tokens, all with the same choices.
  void send_all_to(TestInputs& in, const std::vector<int32_t>& same, int64_t tokens) {
    topk = static_cast<int64_t>(same.size());
    ids.clear();
    for (int64_t t = 0; t < tokens; ++t) ids.insert(ids.end(), same.begin(), same.end());
    weights.resize(ids.size());
    for (float& weight : weights) weight = in.uniform(0.05f, 0.9f);
  }

  OwnedRows run(Backend& backend, OwnedRows& x, int64_t tokens) const {
    OwnedRows y(tokens, x.width);
    ExpertsArgs args;
    args.x = x.view().first(tokens);
    args.experts = std::span(experts).first(experts.size() - 1);
    args.shared = &experts.back();
    args.ids = ids.data();
    args.weights = weights.data();
    args.topk = topk;
    args.y = y.view();
    backend.experts(args);
    return y;
  }
};

TEST_F(CudaProducts, ExpertsAreCloseToPlainAndEqualForAnyCount) {
  struct Shape {
    int64_t experts, hidden, inter, topk;
    bool extreme = false;
  };
  TestInputs in(3);
  for (const Shape& s : {Shape{16, 256, 128, 6},
                         {10, 640, 768, 4},
                         {16, 768, 640, 6},
                         {5, 5120, 768, 3},
                         {16, 256, 128, 6, true},
                         {24, 768, 640, 6, true}}) {
    const Experts layer(in, s.experts, s.hidden, s.inter, s.topk, s.extreme);
    OwnedRows x = in.activations(kTokens, s.hidden);
    OwnedRows expected = layer.run(*plain, x, kTokens);
    OwnedRows all = layer.run(*fast, x, kTokens);
    // An inner activation at the border of two FP8 codes moves by an eighth of itself at most;
    // where scales are extreme, it may be most of a sum.
    EXPECT_LE(difference(expected, all), s.extreme ? 0x1p-3 : 0x1p-5) << s.hidden;
    EXPECT_EQ(some_are_numbers(all), s.extreme) << s.hidden;
    for (const int64_t tokens : kCounts) {
      OwnedRows some = layer.run(*fast, x, tokens);
      EXPECT_TRUE(same_rows(all, some))
          << s.hidden << (s.extreme ? " extreme, " : ", ") << tokens << " tokens";
    }
  }
}

TEST_F(CudaProducts, SmallCallsOfExperts) {
  TestInputs in(6);
  const Experts layer(in, 4, 256, 128, 2, false);
  OwnedRows x = in.activations(40, 256);
  for (const int64_t tokens : {2, 40}) {
    OwnedRows expected = layer.run(*plain, x, tokens);
    OwnedRows got = layer.run(*fast, x, tokens);
    EXPECT_LE(difference(expected, got), 0x1p-5) << tokens << " tokens";
  }
}

// What the average of an expert says, by which kernels are chosen, is as wrong here as it can be.
TEST_F(CudaProducts, AllTokensMayChooseTheSameExperts) {
  constexpr int64_t kMost = 2048;
  TestInputs in(4);
  Experts layer(in, 384, 256, 128, 6, false);
  layer.send_all_to(in, {383, 0, 31, 200, 32, 1}, kMost);
  OwnedRows x = in.activations(kMost, 256);
  OwnedRows expected = layer.run(*plain, x, kMost);
  OwnedRows all = layer.run(*fast, x, kMost);
  EXPECT_LE(difference(expected, all), 0x1p-5);
  for (const int64_t tokens : {1, 383, 384, 385, 704}) {
    OwnedRows some = layer.run(*fast, x, tokens);
    EXPECT_TRUE(same_rows(all, some)) << tokens << " tokens";
  }
}

}  // namespace
}  // namespace tidemill
