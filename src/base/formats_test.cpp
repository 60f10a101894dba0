// Worked vectors of the number formats: conversions, ties, scales, blocks.
#include "base/formats.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace tidemill {
namespace {

TEST(E4m3, WorkedValues) {
  const struct {
    float in;
    uint8_t byte;
    float out;
  } cases[] = {{1, 0x38, 1},     {-1, 0xB8, -1},           {448, 0x7E, 448},
               {464, 0x7E, 448}, {0x1p-9f, 0x01, 0x1p-9f}, {0x1p-10f, 0x00, 0},
               {272, 0x78, 256}, {17, 0x58, 16},           {18, 0x59, 18},
               {19, 0x5A, 20},   {3.3f, 0x45, 3.25f},      {0.07f, 0x19, 0.0703125f},
               {5.75f, 0x4C, 6}, {288, 0x79, 288}};
  for (const auto& c : cases) {
    EXPECT_EQ(e4m3_from_float(c.in), c.byte) << c.in;
    EXPECT_EQ(e4m3_to_float(e4m3_from_float(c.in)), c.out) << c.in;
  }
  EXPECT_TRUE(std::isnan(e4m3_to_float(0x7F)));
  EXPECT_TRUE(std::isnan(e4m3_to_float(0xFF)));
}

TEST(E4m3, EveryByteSurvivesAndNeighboursRoundToTheNearest) {
  for (int byte = 0; byte < 256; ++byte) {
    if ((byte & 0x7F) == 0x7F) continue;
    EXPECT_EQ(e4m3_from_float(e4m3_to_float(static_cast<uint8_t>(byte))), byte);
  }
  for (int byte = 0; byte < 0x7E; ++byte) {
    const float low = e4m3_to_float(static_cast<uint8_t>(byte));
    const float high = e4m3_to_float(static_cast<uint8_t>(byte + 1));
    const float middle = (low + high) / 2;
    EXPECT_EQ(e4m3_from_float(std::nextafter(middle, 0.0f)), byte);
    EXPECT_EQ(e4m3_from_float(std::nextafter(middle, 1e9f)), byte + 1);
    EXPECT_EQ(e4m3_from_float(middle), (byte & 1) ? byte + 1 : byte) << middle;
  }
}

TEST(E2m1, WorkedValuesAndTies) {
  const struct {
    float in;
    int code;
  } cases[] = {{0.25f, 0}, {0.2500001f, 1}, {0.75f, 2},   {1.25f, 2},  {1.75f, 4},   {2.5f, 4},
               {3.5f, 6},  {5.0f, 6},       {5.0001f, 7}, {-0.25f, 8}, {-0.75f, 10}, {-0.0f, 8}};
  for (const auto& c : cases) EXPECT_EQ(e2m1_from_float(c.in), c.code) << c.in;
  for (int code = 0; code < 16; ++code) {
    EXPECT_EQ(e2m1_from_float(e2m1_to_float(static_cast<uint8_t>(code))), code);
  }
}

TEST(E8m0, WorkedValues) {
  EXPECT_EQ(e8m0_to_float(127), 1.0f);
  EXPECT_EQ(e8m0_to_float(128), 2.0f);
  EXPECT_EQ(e8m0_to_float(120), 0x1p-7f);
  EXPECT_EQ(e8m0_to_float(119), 0x1p-8f);
  EXPECT_EQ(e8m0_to_float(105), 0x1p-22f);
  EXPECT_EQ(e8m0_to_float(0), 0x1p-127f);
  EXPECT_EQ(e8m0_to_float(1), 0x1p-126f);
  EXPECT_EQ(e8m0_to_float(254), 0x1p127f);
  EXPECT_TRUE(std::isnan(e8m0_to_float(255)));
  EXPECT_EQ(e8m0_at_least(1.0f), 127);
  EXPECT_EQ(e8m0_at_least(std::nextafter(1.0f, 2.0f)), 128);
}

TEST(Bf16, RoundsToNearestEven) {
  EXPECT_EQ(bf16_from_float(1.0f), 0x3F80);
  EXPECT_EQ(round_bf16(0.3f), 0.30078125f);
  EXPECT_EQ(bf16_from_float(0.5403023f), 0x3F0A);
  EXPECT_EQ(bf16_from_float(0.8414710f), 0x3F57);
  EXPECT_EQ(round_bf16(1.0f + 0x1p-8f), 1.0f);                // tie to even
  EXPECT_EQ(round_bf16(1.0f + 3 * 0x1p-8f), 1.0f + 0x1p-6f);  // tie to even, upwards
  EXPECT_TRUE(std::isnan(round_bf16(std::numeric_limits<float>::quiet_NaN())));
  EXPECT_TRUE(std::isinf(round_bf16(std::numeric_limits<float>::infinity())));
}

std::vector<float> padded(std::vector<float> values, size_t n) {
  values.resize(n);
  return values;
}

TEST(Q8, WorkedBlock) {
  const auto x = padded({1, -2.5f, round_bf16(0.3f), 100}, 32);
  EXPECT_EQ(q8_scale(x.data()), 125);
  const uint8_t codes[] = {0x48, 0xD2, 0x3A, 0x7C};
  const float values[] = {1, -2.5f, 0.3125f, 96};
  std::vector<float> out(32);
  q8_round(x.data(), out.data());
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(q8_code(x[i], 0.25f), codes[i]);
    EXPECT_EQ(out[i], values[i]);
  }
}

TEST(Q8, ScaleDoesNotJumpAtTheFormatsLargestValue) {
  const struct {
    float amax;
    int byte;
  } cases[] = {{448, 127}, {224, 126}, {3.5f, 120}, {1.0f, 119}, {0, 105}};
  for (const auto& c : cases) EXPECT_EQ(q8_scale(padded({c.amax}, 32).data()), c.byte) << c.amax;
}

TEST(Q4Entry, WorkedBlock) {
  const auto x = padded({8.25f, 4.125f, 3.4375f, -4.8125f}, 16);
  EXPECT_EQ(q4_entry_scale(x.data()), 0x3B);
  const int codes[] = {7, 5, 4, 14};
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(q4_code(x[i], 1.375f), codes[i]);
  EXPECT_EQ(q4_entry_scale(padded({}, 16).data()), 0x01);
}

TEST(Q4Entry, ScaleSaturatesAndHasAFloor) {
  const struct {
    float amax, value;
  } cases[] = {{0, 0},           {0x1p-12f, 0},       {6 * 0x1p-9f, 6 * 0x1p-9f},
               {6 * 1.0625f, 6}, {6 * 1.1875f, 7.5f}, {6 * 448.0f, 2688},
               {1e6f, 2688}};
  for (const auto& c : cases) {
    const auto x = padded({c.amax}, 16);
    const float scale = e4m3_to_float(q4_entry_scale(x.data()));
    EXPECT_EQ(e2m1_to_float(q4_code(x[0], scale)) * scale, c.value) << c.amax;
  }
}

TEST(Q4Index, WorkedBlock) {
  const auto x = padded({8.25f, 4.125f, 3.4375f, -4.8125f}, 32);
  const float scale = e8m0_to_float(q4_index_scale(x.data()));
  EXPECT_EQ(scale, 2.0f);
  const float values[] = {8, 4, 3, -4};
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(e2m1_to_float(q4_code(x[i], scale)) * scale, values[i]);
}

TEST(Quantisers, AreIdempotent) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  for (int round = 0; round < 2000; ++round) {
    std::vector<float> x(32), once(32), twice(32);
    const float size = std::exp2(static_cast<float>(round % 40 - 20));
    for (float& v : x) v = round_bf16(normal(random) * size);
    q8_round(x.data(), once.data());
    q8_round(once.data(), twice.data());
    EXPECT_EQ(once, twice);
    // Below, the entry scale is a subnormal E4M3 with steps so coarse that 6 may become 4.
    if (absolute_max(x.data(), 16) < 6 * 0x1p-6f) continue;
    const float scale = e4m3_to_float(q4_entry_scale(x.data()));
    for (size_t i = 0; i < 16; ++i) once[i] = e2m1_to_float(q4_code(x[i], scale)) * scale;
    const float again = e4m3_to_float(q4_entry_scale(once.data()));
    for (size_t i = 0; i < 16; ++i) {
      EXPECT_EQ(e2m1_to_float(q4_code(once[i], again)) * again, once[i]);
    }
  }
}

}  // namespace
}  // namespace tidemill
