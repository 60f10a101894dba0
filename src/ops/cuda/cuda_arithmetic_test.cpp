// The device's formats and functions against the host's: every code, and floats of every exponent.
#include <gtest/gtest.h>

#include <bit>
#include <functional>
#include <random>

#include "base/formats.h"
#include "ops/canonical.h"
#include "ops/cuda/arithmetic_test.h"
#include "ops/test_backend.h"

namespace tidemill::cuda {
namespace {

class CudaArithmetic : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda_backend_for_tests() == nullptr) GTEST_SKIP() << make_cuda_backend().error().message;
  }
};

bool is_nan(uint32_t bits) { return (bits & 0x7FFFFFFFu) > 0x7F800000u; }

// Results that are numbers: any NaN equals any NaN.
void expect_equal(Function function, const std::string& name,
                  const std::vector<uint32_t>& arguments, bool numbers,
                  const std::function<uint32_t(uint32_t)>& host) {
  std::string error;
  const auto got = on_device(function, arguments, error);
  ASSERT_EQ(got.size(), arguments.size()) << name << ": " << error;
  int64_t different = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const uint32_t want = host(arguments[i]);
    if (got[i] == want || (numbers && is_nan(got[i]) && is_nan(want))) continue;
    if (++different <= 5) {
      ADD_FAILURE() << fmt::format("{}({:#010x} = {}) is {:#x}, expected {:#x}", name, arguments[i],
                                   std::bit_cast<float>(arguments[i]), got[i], want);
    }
  }
  EXPECT_EQ(different, 0) << name << ": of " << got.size();
}

uint32_t bits_of(float value) { return std::bit_cast<uint32_t>(value); }

TEST_F(CudaArithmetic, EveryCode) {
  const auto codes = [](uint32_t n) {
    std::vector<uint32_t> all(n);
    for (uint32_t i = 0; i < n; ++i) all[i] = i;
    return all;
  };
  expect_equal(Function::kBf16ToFloat, "bf16_to_float", codes(65536), true,
               [](uint32_t c) { return bits_of(bf16_to_float(static_cast<uint16_t>(c))); });
  expect_equal(Function::kE8m0ToFloat, "e8m0_to_float", codes(256), true,
               [](uint32_t c) { return bits_of(e8m0_to_float(static_cast<uint8_t>(c))); });
  expect_equal(Function::kE4m3ToFloat, "e4m3_to_float", codes(256), true,
               [](uint32_t c) { return bits_of(e4m3_to_float(static_cast<uint8_t>(c))); });
  expect_equal(Function::kE2m1ToFloat, "e2m1_to_float", codes(16), true,
               [](uint32_t c) { return bits_of(e2m1_to_float(static_cast<uint8_t>(c))); });
}

// The upper 24 bits of a float in all ways, the lower 8 at both ends, in the middle and at random:
// every tie of the roundings, and both of its neighbours.
TEST_F(CudaArithmetic, FloatsOfEveryExponent) {
  std::mt19937 random(1);
  for (const int low : {0x00, 0x01, 0xFF, -1}) {
    std::vector<uint32_t> all(size_t{1} << 24);
    for (size_t i = 0; i < all.size(); ++i) {
      all[i] = static_cast<uint32_t>(i << 8) |
               (low >= 0 ? static_cast<uint32_t>(low) : static_cast<uint32_t>(random() & 255u));
    }
    expect_equal(Function::kRoundBf16, "round_bf16", all, true,
                 [](uint32_t b) { return bits_of(round_bf16(std::bit_cast<float>(b))); });
    expect_equal(Function::kE4m3FromFloat, "e4m3_from_float", all, false,
                 [](uint32_t b) { return e4m3_from_float(std::bit_cast<float>(b)); });
    expect_equal(Function::kE2m1FromFloat, "e2m1_from_float", all, false,
                 [](uint32_t b) { return e2m1_from_float(std::bit_cast<float>(b)); });
    expect_equal(Function::kE8m0AtLeast, "e8m0_at_least", all, false,
                 [](uint32_t b) { return e8m0_at_least(std::bit_cast<float>(b)); });
    expect_equal(Function::kExp, "canonical_exp", all, true,
                 [](uint32_t b) { return bits_of(canonical_exp(std::bit_cast<float>(b))); });
    expect_equal(Function::kSigmoid, "canonical_sigmoid", all, true,
                 [](uint32_t b) { return bits_of(canonical_sigmoid(std::bit_cast<float>(b))); });
  }
}

// Where exp is neither 0 nor saturated, 2^22 arguments in equal steps.
TEST_F(CudaArithmetic, ExpOnADenseGrid) {
  std::vector<uint32_t> all;
  for (int i = 0; i < (1 << 22); ++i) {
    all.push_back(bits_of(-88.0f + static_cast<float>(i) * (177.0f / (1 << 22))));
  }
  expect_equal(Function::kExp, "canonical_exp", all, true,
               [](uint32_t b) { return bits_of(canonical_exp(std::bit_cast<float>(b))); });
}

// Blocks of a common magnitude, of every exponent; some with zeros, infinities and NaN.
TEST_F(CudaArithmetic, Quantisers) {
  constexpr size_t kBlocks = 1 << 19;
  std::mt19937 random(2);
  std::vector<float> values(kBlocks * 32);
  for (size_t b = 0; b < kBlocks; ++b) {
    const auto exponent = static_cast<uint32_t>(b % 255);
    for (size_t k = 0; k < 32; ++k) {
      const auto bits = static_cast<uint32_t>(random());
      const uint32_t smaller = std::min(exponent, (bits >> 23) % 12);
      values[b * 32 + k] = std::bit_cast<float>((bits & 0x807FFFFFu) | (exponent - smaller) << 23);
    }
    if (b % 7 == 0) values[b * 32 + b % 32] = b % 2 == 0 ? 0.0f : -0.0f;
    if (b % 101 == 0) values[b * 32 + b % 31] = std::numeric_limits<float>::infinity();
    if (b % 103 == 0) values[b * 32 + b % 29] = std::numeric_limits<float>::quiet_NaN();
    // bf16, as activations are: values on the ties of codes.
    for (size_t k = 0; b % 2 == 0 && k < 32; ++k) {
      values[b * 32 + k] = round_bf16(values[b * 32 + k]);
    }
  }
  std::string error;
  const auto got = quantised_on_device(values, error);
  ASSERT_EQ(got.size(), kBlocks) << error;
  int64_t different = 0;
  const auto expect = [&](uint32_t is, uint32_t want, const char* name, size_t b, size_t k) {
    if (is == want || ++different > 8) return;
    ADD_FAILURE() << fmt::format("{} of block {}, value {} = {}: {:#x}, expected {:#x}", name, b, k,
                                 values[b * 32 + k], is, want);
  };
  for (size_t b = 0; b < kBlocks; ++b) {
    const float* x = values.data() + b * 32;
    const Quantised& q = got[b];
    expect(q.q8_scale, q8_scale(x), "q8_scale", b, 0);
    expect(q.q4_index_scale, q4_index_scale(x), "q4_index_scale", b, 0);
    for (size_t half = 0; half < 2; ++half) {
      expect(q.q4_entry_scale[half], q4_entry_scale(x + half * 16), "q4_entry_scale", b, half * 16);
    }
    for (size_t k = 0; k < 32; ++k) {
      expect(q.q8[k], q8_code(x[k], e8m0_to_float(q8_scale(x))), "q8_code", b, k);
      expect(q.q4_index[k], q4_code(x[k], e8m0_to_float(q4_index_scale(x))), "q4 index code", b, k);
      expect(q.q4_entry[k], q4_code(x[k], e4m3_to_float(q4_entry_scale(x + k / 16 * 16))),
             "q4 entry code", b, k);
    }
  }
  EXPECT_EQ(different, 0);
}

}  // namespace
}  // namespace tidemill::cuda
