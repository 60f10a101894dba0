// Attention on tensor cores against the plain kernel.
#include <gtest/gtest.h>

#include <cmath>

#include "ops/attend/test_attend_step.h"
#include "ops/test_backend.h"
#include "ops/test_host_calls.h"

namespace tidemill {
namespace {

HostCalls* host_calls(CudaKernels kernels) {
  auto cuda = cuda_backend_for_tests(kernels);
  return cuda ? new HostCalls(std::move(cuda)) : nullptr;  // never destroyed: see cuda_host_calls
}

class CudaAttend : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    fast_ = host_calls(CudaKernels::kFast);
    plain_ = host_calls(CudaKernels::kPlain);
  }
  void SetUp() override {
    if (fast_ == nullptr) GTEST_SKIP() << make_cuda_backend().error().message;
  }

  // Probabilities are rounded to bf16 relative to another largest score, since window and entries
  // have tiles of their own: each by 2^-9 of itself at most, here and there. So are the results.
  // Sums of such errors stay below the largest result of a head; 2^-7 of that is twice what the
  // roundings of one probability that decides all could make. Where a sink outweighs all keys by
  // 2^126, exp() differs (canonical_exp ends at 88.37) and results may be 0: nobody needs those.
  static void expect_close(AttendStep& step, const std::string& label) {
    const std::vector<float> plain = step.run(*plain_);
    const std::vector<float> fast = step.run(*fast_);
    EXPECT_EQ(step.run_as(*fast_, Element::kBf16, Element::kBf16), fast) << label << ", bf16";
    const int64_t dim = step.args.window_format.width;
    double worst = 0;
    int64_t worst_row = 0;
    for (int64_t t = 0; t < step.args.out.count; ++t) {
      for (int64_t h = 0; h < step.args.heads; ++h) {
        const int64_t at = t * step.args.out.stride + h * dim;
        float largest = 0;
        float difference = 0;
        for (int64_t c = at; c < at + dim; ++c) {
          const auto i = static_cast<size_t>(c);
          largest = std::max(largest, std::abs(plain[i]));
          const float apart = std::abs(fast[i] - plain[i]);
          difference = std::max(difference, std::isnan(apart) ? HUGE_VALF : apart);
        }
        const double ratio = difference <= 0x1p-100f ? 0 : double{difference} / double{largest};
        if (ratio <= worst) continue;
        worst = ratio;
        worst_row = t * step.args.heads + h;
      }
    }
    EXPECT_LE(worst, 0x1p-7) << label << ": token " << worst_row / step.args.heads << ", head "
                             << worst_row % step.args.heads;
  }

  static HostCalls* fast_;
  static HostCalls* plain_;
};
HostCalls* CudaAttend::fast_ = nullptr;
HostCalls* CudaAttend::plain_ = nullptr;

// Query t sees `window` positions up to its own and the first `entries` selected ones.
void set_keys(AttendStep& step, int64_t t, int64_t window, int64_t entries) {
  const auto i = static_cast<size_t>(t);
  step.window_begin[i] = step.window_end[i] - window;
  for (int64_t k = 0; k < step.args.topk; ++k) {
    step.selected[static_cast<size_t>(t * step.args.topk + k)] =
        k < entries ? static_cast<int32_t>((k * 37 + t) % 300) : -1;
  }
}

TEST_F(CudaAttend, NumbersOfKeys) {
  TestInputs in(1);
  const int64_t windows[] = {0, 1, 63, 64, 65, 128};
  const int64_t entries[] = {0, 1, 16, 63, 64, 65, 511, 512};
  for (const AttendShape& shape : {AttendShape{64, 512, 128, 512}, AttendShape{4, 128, 128, 512},
                                   AttendShape{5, 512, 128, 512}, AttendShape{64, 128, 128, 512}}) {
    // Keys of the step, of the ring, and of a ring that has gone round; in one step, or in steps of
    // few tokens, which have kernels of their own.
    for (const std::vector<int64_t>& rows : {std::vector<int64_t>{16, 16, 16}, {8, 4, 4}}) {
      for (int64_t first = 0; first < 48;) {
        AttendStep step(in, shape, {1000, 300, 128}, rows);
        for (int64_t t = 0; t < step.args.q.count; ++t, ++first) {
          set_keys(step, t, windows[first / 8], entries[first % 8]);
        }
        expect_close(step, fmt::format("{} heads of {}, {} tokens up to case {}", shape.heads,
                                       shape.dim, step.args.q.count, first));
      }
    }
  }
}

// Each kernel once, with as little as it takes: what racecheck has time for.
TEST_F(CudaAttend, SmallCalls) {
  TestInputs in(10);
  const std::pair<AttendShape, int64_t> calls[] = {
      {{64, 512, 128, 512}, 2}, {{64, 512, 128, 512}, 26}, {{4, 128, 128, 64}, 2}};
  for (const auto& [shape, tokens] : calls) {
    AttendStep step(in, shape, {500}, {tokens});
    for (int64_t t = 0; t < tokens; ++t) set_keys(step, t, 128, shape.topk - t);
    expect_close(step, fmt::format("{} tokens, heads of {}", tokens, shape.dim));
  }
}

TEST_F(CudaAttend, WindowOnly) {
  TestInputs in(2);
  for (const AttendShape& shape : {AttendShape{64, 512, 128, 0}, AttendShape{4, 128, 128, 0}}) {
    AttendStep step(in, shape, {0, 77, 1 << 20}, {150, 2, 1});
    expect_close(step, fmt::format("{} heads of {}", shape.heads, shape.dim));
  }
}

TEST_F(CudaAttend, RowsOfTheStepOnly) {
  TestInputs in(3);
  AttendStep step(in, {64, 512, 128, 64}, {0}, {140});
  expect_close(step, "from position 0 on");
}

TEST_F(CudaAttend, LargeScores) {  // sums have to be rescaled
  TestInputs in(4);
  for (const int64_t tokens : {4, 40}) {
    for (const float factor : {16.0f, 64.0f}) {
      AttendStep step(in, {64, 512, 128, 512}, {500}, {tokens});
      for (float& value : step.q.data) value *= factor;
      for (int64_t t = 0; t < tokens; ++t) set_keys(step, t, 128, 512 - t);
      expect_close(step, fmt::format("{} queries {} times as large", tokens, factor));
    }
  }
}

// Of rows of either form; one at least is bf16, float32 is what the other tests have.
TEST_F(CudaAttend, FormsGiveTheSameBits) {
  TestInputs in(8);
  const std::pair<Element, Element> forms[] = {{Element::kBf16, Element::kBf16},
                                               {Element::kBf16, Element::kF32},
                                               {Element::kF32, Element::kBf16}};
  for (const AttendShape& shape : {AttendShape{64, 512, 128, 512}, AttendShape{5, 512, 128, 64},
                                   AttendShape{4, 128, 128, 64}, AttendShape{3, 64, 7, 5}}) {
    for (const int64_t tokens : {3, 150}) {
      AttendStep step(in, shape, {500}, {tokens});
      for (HostCalls* backend : {fast_, plain_}) {
        if (backend == plain_ && tokens > 3) continue;
        const std::vector<float> expected = step.run(*backend);
        for (const auto& [of_q, of_out] : forms) {
          EXPECT_EQ(step.run_as(*backend, of_q, of_out), expected)
              << tokens << " tokens, " << shape.heads << " heads of " << shape.dim
              << (backend == plain_ ? ", plain" : "");
        }
      }
    }
  }
}

// A block takes several tokens, one after the other, whatever tiles they have, or none.
TEST_F(CudaAttend, TokensOfABlock) {
  TestInputs in(9);
  for (const int64_t topk : {0, 512}) {
    AttendStep step(in, {64, 512, 128, topk}, {1000}, {700});
    for (int64_t t = 0; t < 700; ++t) set_keys(step, t, in.below(4) * 42, in.below(4) * 50);
    expect_close(step, fmt::format("up to {} entries", topk));
  }
}

TEST_F(CudaAttend, ShapesOfNoReleasedModel) {  // left to the plain kernel
  TestInputs in(5);
  for (const AttendShape& shape : {AttendShape{70, 128, 20, 30}, AttendShape{3, 64, 7, 5}}) {
    AttendStep step(in, shape, {40}, {3});
    EXPECT_EQ(step.run(*fast_), step.run(*plain_));
  }
}

// A key with a NaN spoils the queries that see it and no other.
TEST_F(CudaAttend, NaNStaysWithItsKey) {
  TestInputs in(6);
  for (const int64_t dim : {128, 512}) {
    AttendStep step(in, {4, dim, 128, 64}, {0}, {5});
    for (int64_t t = 0; t < 5; ++t) set_keys(step, t, t + 1, 64);
    step.fresh[static_cast<size_t>(3 * step.args.window_format.bytes() + 5)] = std::byte{0xFF};
    const std::vector<float> out = step.run(*fast_);
    for (int64_t t = 0; t < 5; ++t) {
      for (int64_t c = 0; c < 4 * dim; ++c) {
        const float value = out[static_cast<size_t>(t * step.args.out.stride + c)];
        ASSERT_EQ(std::isnan(value), t >= 3) << "token " << t << ", channel " << c;
      }
    }
  }
}

// The bits of a token are the same whatever is computed beside it.
TEST_F(CudaAttend, ATokenDoesNotDependOnItsBatch) {
  TestInputs in(7);
  for (const AttendShape& shape : {AttendShape{64, 512, 128, 512}, AttendShape{4, 128, 128, 64}}) {
    AttendStep step(in, shape, {700, 190}, {150, 50});
    for (int64_t t = 0; t < 200; ++t) {
      set_keys(step, t, 128 - t % 90, t % 3 == 0 ? shape.topk : in.below(shape.topk + 1));
    }
    const std::vector<float> batch = step.run_as(*fast_, Element::kBf16, Element::kBf16);
    const AttendArgs all = step.args;
    const auto expect_same = [&](int64_t begin, int64_t count) {
      step.args.q = {all.q.f32(begin), count, all.q.width, all.q.stride};
      step.args.out = {all.out.f32(begin), count, all.out.width, all.out.stride};
      step.args.sequence = all.sequence + begin;
      step.args.window_begin = all.window_begin + begin;
      step.args.window_end = all.window_end + begin;
      step.args.selected = all.selected + begin * all.topk;
      const std::vector<float> some = step.run_as(*fast_, Element::kBf16, Element::kBf16);
      for (int64_t t = begin; t < begin + count; ++t) {
        const auto at = t * all.out.stride;
        ASSERT_TRUE(
            std::equal(some.begin() + at, some.begin() + at + all.out.width, batch.begin() + at))
            << "token " << t << " among " << count << ", " << shape.heads << " heads of "
            << shape.dim;
      }
    };
    for (const int64_t t : {0, 1, 2, 77, 149, 150, 199}) expect_same(t, 1);
    expect_same(3, 7);
    expect_same(100, 16);
    expect_same(140, 17);
    expect_same(60, 64);
    expect_same(0, 130);
    expect_same(60, 140);
    step.args = all;
  }
}

}  // namespace
}  // namespace tidemill
