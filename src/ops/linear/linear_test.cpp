// Linear: against a double-precision expansion, then every backend against the reference.
#include "ops/linear/linear.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ops/canonical.h"
#include "ops/reference.h"
#include "ops/test_every_backend.h"

namespace tidemill {
namespace {

struct Shape {
  int64_t tokens, rows, cols, groups = 1;
};

struct Case {
  WeightFormat format;
  bool quantise;
  bool f32_output;
  float scale = 1;
  bool accumulate = false;
};

OwnedRows run(Backend& backend, const Case& c, const OwnedMatrix& w, OwnedRows& x, int64_t groups) {
  OwnedRows y(x.count, w.view.rows);
  backend.linear({.w = &w.view,
                  .x = x.view(),
                  .y = y.view(),
                  .groups = groups,
                  .quantise_input = c.quantise,
                  .f32_output = c.f32_output,
                  .scale = c.scale,
                  .accumulate = c.accumulate});
  return y;
}

void expect_all_equal(const Case& c, const OwnedMatrix& w, OwnedRows& x, int64_t groups = 1) {
  Expected expected([&](Backend& backend) { return run(backend, c, w, x, groups).data; });
  for_each_backend_and_rows([&](Backend& backend, const std::string& label) {
    EXPECT_TRUE(same_bits(run(backend, c, w, x, groups).data, expected[backend]))
        << label << ", format " << static_cast<int>(c.format) << ", " << x.count << " tokens, "
        << w.view.rows << " x " << w.view.cols;
  });
}

constexpr Case kCases[] = {
    {WeightFormat::kFp8Block, true, false},      {WeightFormat::kFp8Block, false, false},
    {WeightFormat::kFp4Row, true, false},        {WeightFormat::kBf16, false, false, 0.0625f},
    {WeightFormat::kBf16, false, true, 1, true}, {WeightFormat::kBf16, false, true},
    {WeightFormat::kF32, false, true},
};

// Q8 input, FP8 and FP4 weights, scales from the whole range (user case 2): the exact sum.
TEST(Linear, IsTheProductOfTheDecodedValues) {
  TestInputs inputs(1);
  OwnedRows x = inputs.activations(2, 128);
  for (const WeightFormat format : {WeightFormat::kFp8Block, WeightFormat::kFp4Row}) {
    const OwnedMatrix w = inputs.matrix(format, 40, 128, {1, 60, 119, 120, 127, 200});
    const OwnedRows y = run(reference_backend(), {format, true, true}, w, x, 1);
    for (int64_t t = 0; t < x.count; ++t) {
      std::vector<float> rounded(128);
      for (int64_t k = 0; k < 128; k += 32) q8_round(x.view().f32(t) + k, rounded.data() + k);
      for (int64_t n = 0; n < w.view.rows; ++n) {
        double sum = 0;
        double magnitude = 0;
        for (int64_t k = 0; k < 128; ++k) {
          const auto* codes = static_cast<const uint8_t*>(w.view.data);
          const bool fp8 = format == WeightFormat::kFp8Block;
          const double code =
              fp8 ? e4m3_to_float(codes[n * 128 + k])
                  : e2m1_to_float(static_cast<uint8_t>(codes[(n * 128 + k) / 2] >> (k % 2 * 4)));
          const uint8_t byte = w.view.scales[(fp8 ? n / 32 : n) * 4 + k / 32];
          const double product = code * std::ldexp(1.0, byte - 127) *
                                 static_cast<double>(rounded[static_cast<size_t>(k)]);
          sum += product;
          magnitude += std::fabs(product);
        }
        EXPECT_NEAR(y.data[static_cast<size_t>(t * y.stride + n)], sum, magnitude * 2e-6);
      }
    }
  }
}

// canonical.h: the odd element of a pair before the even one, pairs 16 apart in one lane.
TEST(Linear, AddsInPairLanes) {
  const auto product = [](const std::vector<std::pair<int, float>>& elements) {
    std::vector<float> a(64), ones(64, 1.0f);
    for (const auto& [k, value] : elements) a[static_cast<size_t>(k)] = value;
    return dot_pairs(a.data(), ones.data(), 64);
  };
  EXPECT_EQ(product({{0, 1}, {1, 0x1p24f}, {32, 1}}), 0x1p24f);       // (2^24 + 1) + 1
  EXPECT_EQ(product({{0, 1}, {1, 1}, {32, 0x1p24f}}), 0x1p24f + 2);   // (1 + 1) + 2^24
  EXPECT_EQ(product({{1, 0x1p24f}, {32, 1}, {33, -0x1p24f}}), 1.0f);  // (2^24 - 2^24) + 1
  EXPECT_EQ(product({{2, 1}, {3, 1}, {0, 0x1p24f}}), 0x1p24f + 2);    // lanes 0 and 1
}

// Per 32 elements an even and an odd chain from 0, their sum added to the total.
TEST(Linear, AddsInTileOrder) {
  const auto product = [](const std::vector<std::pair<int, float>>& elements) {
    std::vector<float> a(67), ones(67, 1.0f);
    for (const auto& [k, value] : elements) a[static_cast<size_t>(k)] = value;
    return dot_tiles(a.data(), ones.data(), 67);
  };
  EXPECT_EQ(product({{0, 0x1p24f}, {2, 1}, {4, 1}}), 0x1p24f);                 // (2^24 + 1) + 1
  EXPECT_EQ(product({{0, 0x1p24f}, {1, 1}, {31, 1}}), 0x1p24f + 2);            // 2^24 + (1 + 1)
  EXPECT_EQ(product({{0, 0x1p24f}, {32, 1}, {33, 1}}), 0x1p24f + 2);           // the same
  EXPECT_EQ(product({{0, 0x1p24f}, {32, 1}, {64, 1}}), 0x1p24f);               // three blocks
  EXPECT_EQ(product({{1, 1}, {32, 0x1p24f}, {34, -0x1p24f}, {66, 2}}), 3.0f);  // the last is short
}

TEST(Linear, ScaleBytesAreExponents) {
  TestInputs inputs(2);
  OwnedRows x(1, 32);
  std::fill(x.data.begin(), x.data.end(), 1.0f);
  for (const WeightFormat format : {WeightFormat::kFp8Block, WeightFormat::kFp4Row}) {
    for (const int byte : {0, 1, 119, 120, 127, 254}) {
      OwnedMatrix w = inputs.matrix(format, 1, 32, {static_cast<uint8_t>(byte)});
      std::fill(w.data.begin() + 1, w.data.end(), uint8_t{0});
      w.data[1] = format == WeightFormat::kFp8Block ? 0x38 : 0x02;  // 1 in column 0
      const Case c{format, true, true};
      EXPECT_EQ(run(reference_backend(), c, w, x, 1).data[0], std::ldexp(1.0f, byte - 127));
      expect_all_equal(c, w, x);
    }
    const OwnedMatrix nan = inputs.matrix(format, 1, 32, {255});
    EXPECT_TRUE(std::isnan(run(reference_backend(), {format, true, true}, nan, x, 1).data[0]));
    expect_all_equal({format, true, true}, nan, x);
  }
}

TEST(LinearBackends, AgreeOnSmallAndOddShapes) {
  TestInputs inputs(3);
  const Shape shapes[] = {{1, 1, 32},   {2, 5, 64},    {3, 33, 96},  {4, 7, 128},  {5, 17, 192},
                          {7, 31, 384}, {17, 40, 576}, {31, 12, 32}, {66, 3, 128}, {100, 9, 1056}};
  for (const Case& c : kCases) {
    for (const Shape& shape : shapes) {
      const OwnedMatrix w = inputs.matrix(c.format, shape.rows, shape.cols);
      OwnedRows x = inputs.activations(shape.tokens, shape.cols);
      expect_all_equal(c, w, x);
    }
  }
}

// The matrices of the bundled model, of the test model, and a few rows of the released one.
TEST(LinearBackends, AgreeOnModelShapes) {
  TestInputs inputs(4);
  const Shape shapes[] = {{1, 192, 384},   {1, 1024, 192}, {2, 128, 384}, {3, 384, 256},
                          {64, 192, 384},  {1, 64, 128},   {6, 256, 64},  {1, 48, 5120},
                          {3, 70, 5120},   {40, 16, 5120}, {2, 33, 8192}, {1, 40, 2304},
                          {33, 1024, 192}, {1, 512, 128},  {3, 128, 256}, {33, 256, 256}};
  for (const Case& c : kCases) {
    for (const Shape& shape : shapes) {
      const OwnedMatrix w = inputs.matrix(c.format, shape.rows, shape.cols);
      OwnedRows x = inputs.activations(shape.tokens, shape.cols);
      expect_all_equal(c, w, x);
    }
  }
}

TEST(LinearBackends, AgreeOnGroups) {
  TestInputs inputs(5);
  for (const Shape& shape : {Shape{1, 256, 256, 4},
                             {5, 64, 128, 2},
                             {70, 256, 256, 4},
                             {3, 30, 64, 3},
                             {1, 80, 4096, 8}}) {
    const OwnedMatrix w = inputs.matrix(WeightFormat::kFp8Block, shape.rows, shape.cols);
    OwnedRows x = inputs.activations(shape.tokens, shape.cols * shape.groups);
    expect_all_equal({WeightFormat::kFp8Block, false, false}, w, x, shape.groups);
  }
}

// Every way through the kernels: tiles of 1 to 6 tokens, one or several tiles, blocks of tokens and
// of columns (wider than 640 and 1280), rows that fill no tile, no block and no unit.
TEST(LinearBackends, AgreeOnEveryTile) {
  TestInputs inputs(10);
  for (const Case& c : kCases) {
    for (const int64_t tokens : {1,  2,  3,  4,  5,  6,  7,  8,   9,   12,  13,  15,  16,
                                 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 130, 257, 290}) {
      const int64_t rows = tokens < 20 ? 47 : 39;
      const int64_t cols = tokens > 20 ? 672 : tokens % 3 == 0 ? 2624 : tokens % 3 == 1 ? 1312 : 96;
      const OwnedMatrix w = inputs.matrix(c.format, rows, cols);
      OwnedRows x = inputs.activations(tokens, cols);
      expect_all_equal(c, w, x);
    }
  }
}

// As many rows, columns and tokens as kernels take at once, and more: rows in groups that end in a
// short one, several chunks of columns, one unusual row; outputs larger than the caches of a
// thread.
TEST(LinearBackends, AgreeOnSeveralBlocks) {
  TestInputs inputs(14);
  OwnedMatrix w = inputs.matrix(WeightFormat::kFp8Block, 203, 704);
  w.data[1 + 704 * 170] = 0x7F;
  for (const int64_t tokens : {48, 301}) {
    OwnedRows x = inputs.activations(tokens, 704);
    expect_all_equal({WeightFormat::kFp8Block, true, false}, w, x);
  }
  const OwnedMatrix wide = inputs.matrix(WeightFormat::kFp4Row, 2 * 5 * 32 + 40, 64);
  OwnedRows x = inputs.activations(1030, 64);
  expect_all_equal({WeightFormat::kFp4Row, true, false, 0.5f}, wide, x);
  const OwnedMatrix tall = inputs.matrix(WeightFormat::kFp8Block, 6000, 32);
  OwnedRows few = inputs.activations(400, 32);
  expect_all_equal({WeightFormat::kFp8Block, true, true}, tall, few);
}

// Every code of every format with every ordinary scale, against 1 and -1; alone, and among others
// that are all normal.
TEST(LinearBackends, AgreeOnEveryCode) {
  TestInputs inputs(11);
  for (const auto& [format, others] : {std::pair{WeightFormat::kFp8Block, uint8_t{0}},
                                       {WeightFormat::kFp8Block, uint8_t{0x3A}},
                                       {WeightFormat::kFp4Row, uint8_t{0}},
                                       {WeightFormat::kFp4Row, uint8_t{0x3A}}}) {
    for (int byte = 67; byte <= 187; byte += 5) {
      OwnedMatrix w = inputs.matrix(format, 256, 32, {static_cast<uint8_t>(byte)});
      const int64_t row_bytes = w.view.row_bytes();
      for (int64_t n = 0; n < 256; ++n) {
        std::fill_n(w.data.begin() + 1 + n * row_bytes, row_bytes, others);
        const bool nan = format == WeightFormat::kFp8Block && (n & 0x7F) == 0x7F;
        w.data[static_cast<size_t>(1 + n * row_bytes + n % row_bytes)] =
            nan ? uint8_t{0} : static_cast<uint8_t>(n);
      }
      OwnedRows x(2, 32);
      std::fill(x.data.begin(), x.data.begin() + x.stride, 1.0f);
      std::fill(x.data.begin() + x.stride, x.data.end(), -1.0f);
      expect_all_equal({format, true, true}, w, x);
    }
  }
}

// One weight outside the ordinary range, wherever it lies; the rows around it stay ordinary.
TEST(LinearBackends, AgreeOnAnUnusualWeight) {
  TestInputs inputs(12);
  const std::vector<uint16_t> words = {0x0001, 0x8001, 0x007F, 0x2000,  // subnormal, 2^-63
                                       0x2180, 0x217F, 0x5DFF, 0x5E00,  // the bounds
                                       0x7F7F, 0x7F80, 0xFF80, 0x7FC0};
  for (const int64_t tokens : {1, 4, 9, 40}) {
    OwnedRows x = inputs.activations(tokens, 1344);
    for (const uint16_t word : words) {
      OwnedMatrix w = inputs.matrix(WeightFormat::kBf16, 21, 1344);
      const int64_t at = inputs.below(21 * 1344);  // alone in its row: a tiny one would vanish
      std::memset(w.data.data() + 1 + 2 * (at / 1344 * 1344), 0, 2 * 1344);
      std::memcpy(w.data.data() + 1 + 2 * at, &word, 2);
      expect_all_equal({WeightFormat::kBf16, false, true}, w, x);
      expect_all_equal({WeightFormat::kBf16, false, true, 1, true}, w, x);
    }
    for (const int code : {0x7F, 0xFF}) {
      OwnedMatrix w = inputs.matrix(WeightFormat::kFp8Block, 70, 1344);
      w.data[static_cast<size_t>(1 + inputs.below(70 * 1344))] = static_cast<uint8_t>(code);
      expect_all_equal({WeightFormat::kFp8Block, true, true}, w, x);
    }
    for (const WeightFormat format : {WeightFormat::kFp8Block, WeightFormat::kFp4Row}) {
      for (const int scale : {0, 66, 188, 255}) {
        OwnedMatrix w = inputs.matrix(format, 70, 1344);
        w.scales[static_cast<size_t>(inputs.below(static_cast<int64_t>(w.scales.size())))] =
            static_cast<uint8_t>(scale);
        expect_all_equal({format, true, true}, w, x);
      }
    }
  }
}

// At the ends of the ordinary range: sums that nearly cancel are the smallest numbers that hardware
// without subnormals keeps; one magnitude below, another way must be taken.
TEST(LinearBackends, AgreeAtTheEndsOfTheOrdinaryRange) {
  TestInputs inputs(13);
  constexpr float kNext = 1 + 0x1p-7f;
  for (const float magnitude : {0x1p-50f, 0x1p-51f, 0x1p-53f, 0x1p50f, 0x1p51f}) {
    for (const int64_t tokens : {1, 5, 30}) {
      OwnedRows x(tokens, 192);
      for (float& value : x.data) {
        value = magnitude * static_cast<float>(inputs.below(3) - 1);
        if (inputs.below(2) == 0) value *= kNext;
      }
      for (const int scale : {67, 68, 187}) {
        OwnedMatrix w =
            inputs.matrix(WeightFormat::kFp8Block, 40, 192, {static_cast<uint8_t>(scale)});
        if (scale < 127) {
          for (uint8_t& code : w.data) code = static_cast<uint8_t>((code & 0x80) | (code & 1));
        }
        expect_all_equal({WeightFormat::kFp8Block, false, true}, w, x);
      }
      for (const int upper : {0x21, 0x1E, 0x1B, 0x5D}) {  // 2^-60 (1 + m), 2^-66, 2^-72, 2^60
        OwnedMatrix w = inputs.matrix(WeightFormat::kBf16, 40, 192);
        for (size_t i = 2; i < w.data.size(); i += 2) {
          w.data[i] = static_cast<uint8_t>((w.data[i] & 0x80) | upper);
          w.data[i - 1] = static_cast<uint8_t>(0x80 | (w.data[i - 1] & 1));
        }
        expect_all_equal({WeightFormat::kBf16, false, true}, w, x);
      }
    }
  }
}

// Widths that no kernel takes.
TEST(LinearBackends, AgreeOnWidthsThatFitNoBlock) {
  TestInputs inputs(6);
  for (const int64_t cols : {1, 16, 144, 40}) {
    const OwnedMatrix w = inputs.matrix(WeightFormat::kBf16, 3, cols);
    OwnedRows x = inputs.activations(2, cols);
    expect_all_equal({WeightFormat::kBf16, false, false}, w, x);
  }
}

// Products that underflow or overflow, where a fused multiply-add would differ; codes that are NaN.
TEST(LinearBackends, AgreeOnExtremeScalesAndActivations) {
  TestInputs inputs(7);
  for (const Case& c : kCases) {
    if (c.format == WeightFormat::kF32) continue;
    for (const std::vector<uint8_t>& bytes : std::vector<std::vector<uint8_t>>{
             {0, 1, 2, 5}, {250, 252, 254}, {0, 119, 120, 254}, {66, 67, 187, 188}, {118, 255}}) {
      const OwnedMatrix w = inputs.matrix(c.format, 40, 96, bytes);
      for (const float deviation : {1e-38f, 1e-20f, 1e-5f, 1.0f, 1e20f, 1e37f}) {
        for (const int64_t tokens : {1, 5, 70}) {
          OwnedRows x = inputs.activations(tokens, 96, deviation);
          expect_all_equal(c, w, x);
        }
      }
    }
  }
  OwnedMatrix nan = inputs.matrix(WeightFormat::kFp8Block, 70, 64);
  nan.data[64 * 33 + 9] = 0x7F;
  OwnedRows x = inputs.activations(1, 64);
  expect_all_equal({WeightFormat::kFp8Block, true, true}, nan, x);
  for (const float odd :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(), 3.3e38f}) {
    x.data[5] = odd;
    for (const Case& c : kCases) {
      const OwnedMatrix w = inputs.matrix(c.format, 40, 64);
      expect_all_equal(c, w, x);
    }
  }
}

// A float32 value between the bf16 ones: products are no longer exact.
TEST(LinearBackends, AgreeOnActivationsThatAreNotBf16) {
  TestInputs inputs(8);
  const OwnedMatrix w = inputs.matrix(WeightFormat::kFp8Block, 64, 256);
  OwnedRows x = inputs.activations(3, 256);
  x.data[100] = 1.2345678f;
  expect_all_equal({WeightFormat::kFp8Block, false, true}, w, x);
}

TEST(LinearBackends, ARowDoesNotDependOnItsBatch) {
  TestInputs inputs(9);
  const OwnedMatrix w = inputs.matrix(WeightFormat::kFp8Block, 96, 384);
  OwnedRows x = inputs.activations(13, 384);
  const Case c{WeightFormat::kFp8Block, true, false};
  for_each_backend_and_rows([&](Backend& backend, const std::string& label) {
    OwnedRows batch = run(backend, c, w, x, 1);
    for (int64_t t = 0; t < x.count; ++t) {
      OwnedRows one(1, 384);
      std::memcpy(one.data.data(), x.view().f32(t), 384 * sizeof(float));
      const OwnedRows alone = run(backend, c, w, one, 1);
      EXPECT_EQ(std::memcmp(alone.data.data(), batch.view().f32(t), 96 * sizeof(float)), 0)
          << label;
    }
  });
}

}  // namespace
}  // namespace tidemill
