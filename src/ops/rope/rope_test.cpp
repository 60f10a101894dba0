// Rotary embedding: worked frequencies and angles (spec 12.4), then every backend.
#include "ops/rope/rope.h"

#include <gtest/gtest.h>

#include <cmath>

#include "model/config.h"
#include "ops/test_every_backend.h"

namespace tidemill {
namespace {

Config released() {
  Config config;
  config.qk_rope_head_dim = 64;
  return config;  // thetas and YaRN: the defaults are the released values
}

TEST(RopeFrequencies, Worked) {
  const std::vector<float> plain = rope_frequencies(released(), false);
  const std::vector<float> yarn = rope_frequencies(released(), true);
  ASSERT_EQ(plain.size(), 32u);
  const struct {
    size_t i;
    float plain, yarn;
  } cases[] = {{0, 1, 1},
               {1, 0.7498942f, 0.68765604f},
               {15, 0.013335215f, 0.0036355385f},
               {16, 0.01f, 0.0022656249f},
               {20, 0.0031622779f, 2.9697779e-4f},
               {24, 0.001f, 1.9531253e-5f},
               {25, 7.498942e-4f, 5.3723124e-6f},
               {31, 1.3335215e-4f, 5.6805294e-7f}};
  for (const auto& c : cases) {
    EXPECT_NEAR(plain[c.i], c.plain, c.plain * 3e-7f) << c.i;
    EXPECT_NEAR(yarn[c.i], c.yarn, c.yarn * 3e-7f) << c.i;
  }
}

TEST(Rope, RotatesThePairAtTheEndOfTheHead) {
  const int64_t position = 1;
  const float frequency = 1;
  OwnedRows table(1, 2);
  Backend& backend = reference_backend();
  backend.rope_table({.position = &position, .frequencies = &frequency, .table = table.view()});
  EXPECT_FLOAT_EQ(table.data[0], 0.5403023f);
  EXPECT_FLOAT_EQ(table.data[1], 0.8414710f);
  OwnedRows x(1, 4);
  x.data = {5, 6, 1, 0};
  const Rows view{x.data.data(), 1, 4, 4};
  backend.rope({.x = view, .heads = 1, .table = table.view()});
  EXPECT_EQ(bf16_from_float(x.data[2]), 0x3F0A);
  EXPECT_EQ(bf16_from_float(x.data[3]), 0x3F57);
  EXPECT_EQ(x.data[0], 5);
  EXPECT_EQ(x.data[1], 6);
  backend.rope({.x = view, .heads = 1, .table = table.view(), .inverse = true});
  EXPECT_NEAR(x.data[2], 1, 0.01f);
  EXPECT_NEAR(x.data[3], 0, 0.01f);
}

// Bit for bit where the same functions are called; other ones may give the next number.
void expect_same_table(const Backend& backend, const std::vector<float>& got,
                       const std::vector<float>& expected, const std::string& label) {
  if (calls_host_functions(backend)) {
    EXPECT_TRUE(same_bits(got, expected)) << label;
    return;
  }
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_GE(got[i], std::nextafter(expected[i], -2.0f * std::fabs(expected[i]))) << label;
    EXPECT_LE(got[i], std::nextafter(expected[i], 2.0f * std::fabs(expected[i]))) << label;
  }
}

TEST(RopeBackends, Agree) {
  TestInputs in(1);
  struct Shape {
    int64_t tokens, heads, dim, rope;
  };
  for (const Shape& s : {Shape{1, 8, 128, 32},
                         {2, 4, 64, 32},
                         {7, 3, 64, 32},
                         {31, 1, 128, 32},
                         {70, 8, 128, 32},
                         {2, 64, 512, 64},
                         {3, 2, 24, 6},
                         {1, 1, 32, 32}}) {
    std::vector<int64_t> position;
    for (int64_t t = 0; t < s.tokens; ++t) position.push_back(in.below(1 << 20));
    std::vector<float> frequencies;
    for (int64_t i = 0; i < s.rope / 2; ++i) frequencies.push_back(in.uniform(0, 1));
    OwnedRows x = in.activations(s.tokens, s.heads * s.dim);
    const auto table_of = [&](Backend& backend) {
      OwnedRows table(s.tokens, s.rope);
      backend.rope_table(
          {.position = position.data(), .frequencies = frequencies.data(), .table = table.view()});
      return table;
    };
    OwnedRows table = table_of(reference_backend());
    for_each_backend([&](Backend& backend, const std::string& label) {
      expect_same_table(backend, table_of(backend).data, table.data, label);
    });
    for (const bool inverse : {false, true}) {
      const auto rotated = [&](Backend& backend) {
        OwnedRows result = x;
        backend.rope(
            {.x = result.view(), .heads = s.heads, .table = table.view(), .inverse = inverse});
        return result.data;
      };
      const std::vector<float> expected = rotated(reference_backend());
      for_each_backend_and_rows([&](Backend& backend, const std::string& label) {
        EXPECT_TRUE(same_bits(rotated(backend), expected)) << label << ", head of " << s.dim;
      });
    }
  }
}

}  // namespace
}  // namespace tidemill
