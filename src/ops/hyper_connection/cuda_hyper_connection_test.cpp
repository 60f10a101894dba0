// hc_mix on tensor cores against the plain kernel.
#include <gtest/gtest.h>

#include <cmath>

#include "ops/test_backend.h"
#include "ops/test_host_calls.h"
#include "ops/test_inputs.h"

namespace tidemill {
namespace {

HostCalls* host_calls(CudaKernels kernels) {
  auto cuda = cuda_backend_for_tests(kernels);
  return cuda ? new HostCalls(std::move(cuda)) : nullptr;  // never destroyed: see cuda_host_calls
}

constexpr int64_t kStreams = 4;
constexpr int64_t kFnRows = (2 + kStreams) * kStreams;

class CudaHcMix : public testing::Test {
 protected:
  // Products of the size that trained ones have: coefficients that no exponential exaggerates.
  struct Inputs {
    TestInputs in{1};
    std::vector<float> fn, base, scale;
    OwnedRows h;
    HcWeights weights;
    Inputs(int64_t tokens, int64_t hidden)
        : fn(in.normals(kFnRows * kStreams * hidden,
                        1 / std::sqrt(static_cast<float>(kStreams * hidden)))),
          base(in.normals(kFnRows, 1)),
          scale({0.7f, -1.3f, 1.1f}),
          h(in.activations(tokens, kStreams * hidden, 2)),
          weights{{WeightFormat::kF32, kFnRows, kStreams * hidden, fn.data(), nullptr},
                  {base.data(), kFnRows},
                  {scale.data(), 3}} {}
  };

  static void SetUpTestSuite() {
    fast_ = host_calls(CudaKernels::kFast);
    plain_ = host_calls(CudaKernels::kPlain);
  }
  void SetUp() override {
    if (fast_ == nullptr) GTEST_SKIP() << make_cuda_backend().error().message;
  }

  // A row for each of `count` tokens from `first`: pre, post and comb.
  static std::vector<float> run(Backend& backend, Inputs& inputs, int64_t first, int64_t count) {
    OwnedRows pre(count, kStreams, 0);
    OwnedRows post(count, kStreams, 0);
    OwnedRows comb(count, kStreams * kStreams, 0);
    Rows h = inputs.h.view();
    h.data = h.f32(first);
    h.count = count;
    backend.hc_mix({.weights = &inputs.weights,
                    .h = h,
                    .streams = kStreams,
                    .sinkhorn_iterations = 20,
                    .norm_eps = 1e-6f,
                    .hc_eps = 1e-6f,
                    .pre = pre.view(),
                    .post = post.view(),
                    .comb = comb.view()});
    std::vector<float> all;
    for (int64_t t = 0; t < count; ++t) {
      for (OwnedRows* part : {&pre, &post, &comb}) {
        const float* row = part->view().f32(t);
        all.insert(all.end(), row, row + part->width);
      }
    }
    return all;
  }

  struct Case {
    int64_t tokens, hidden;
  };
  // Sums of 20,480 products in float32, in two orders: a few millionths of their usual size apart,
  // which a coefficient shows relative to itself.
  static void expect_close(std::initializer_list<Case> cases) {
    for (const Case& c : cases) {
      Inputs inputs(c.tokens, c.hidden);
      const std::vector<float> plain = run(*plain_, inputs, 0, c.tokens);
      const std::vector<float> fast = run(*fast_, inputs, 0, c.tokens);
      double worst = 0;
      for (size_t i = 0; i < plain.size(); ++i) {
        const double apart = std::abs(double{fast[i]} - double{plain[i]}) / double{plain[i]};
        worst = std::max(worst, std::isnan(apart) ? HUGE_VAL : apart);
      }
      EXPECT_LE(worst, 1e-5) << c.tokens << " tokens, hidden " << c.hidden;
    }
  }

  static HostCalls* fast_;
  static HostCalls* plain_;
};
HostCalls* CudaHcMix::fast_ = nullptr;
HostCalls* CudaHcMix::plain_ = nullptr;

TEST_F(CudaHcMix, CloseToThePlainKernel) {
  expect_close({{1, 5120}, {7, 5120}, {8, 256}, {9, 4096}, {65, 512}, {600, 5120}});
}

// What racecheck has time for.
TEST_F(CudaHcMix, SmallCalls) { expect_close({{1, 512}, {9, 512}}); }

TEST_F(CudaHcMix, ATokenHasTheSameBitsAmongOthers) {
  constexpr int64_t kTokens = 1100;  // a block for each slice, several tiles to a block
  Inputs inputs(kTokens, 5120);
  const std::vector<float> all = run(*fast_, inputs, 0, kTokens);
  struct Range {
    int64_t first, count;
  };
  for (const Range& r :
       {Range{0, 1}, {1, 1}, {9, 1}, {1099, 1}, {3, 8}, {5, 70}, {400, 512}, {13, 900}}) {
    const std::vector<float> some = run(*fast_, inputs, r.first, r.count);
    const auto* const expected = all.data() + r.first * kFnRows;
    EXPECT_TRUE(std::equal(some.begin(), some.end(), expected))
        << r.count << " tokens from " << r.first;
  }
}

// Rows that slices do not divide.
TEST_F(CudaHcMix, OtherShapesAreThePlainKernels) {
  Inputs inputs(5, 384);
  EXPECT_EQ(run(*fast_, inputs, 0, 5), run(*plain_, inputs, 0, 5));
}

}  // namespace
}  // namespace tidemill
