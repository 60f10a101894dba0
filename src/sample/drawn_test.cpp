#include "sample/drawn.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "ops/draw/test_draw_rows.h"
#include "ops/test_every_backend.h"
#include "sample/sampler.h"

namespace tidemill {
namespace {

SamplingParams random_params(TestInputs& in) {
  const DrawRow row = random_draw_row(in);
  SamplingParams params;
  params.seed = row.key.seed;
  params.temperature = row.temperature;
  params.min_p = any_of(in, {0.0f, 0.0f, 0.01f, 1.0f});
  params.top_k = row.top_k;
  params.top_p = row.top_p;
  return params;
}

void for_reference_and_device(const std::function<void(Backend&)>& body) {
  body(reference_backend());
  if (Backend* cuda = cuda_host_calls()) body(*cuda);
}

// Compares `rounds` calls of so many rows; returns how many of their tokens were not decided.
int64_t compare(Backend& backend, int64_t width, int64_t rounds, int64_t rows_each) {
  TestInputs in(7);
  Sampler sampler(width);
  int64_t undecided = 0;
  for (int64_t round = 0; round < rounds; ++round) {
    OwnedRows logits(rows_each, width);
    std::vector<SamplingParams> params;
    std::vector<DrawRow> rows;
    const int64_t position = in.below(1'000'000);
    for (int64_t t = 0; t < rows_each; ++t) {
      fill_draw_row(in, {logits.view().f32(t), static_cast<size_t>(width)});
      params.push_back(random_params(in));
      rows.push_back(draw_row(params.back(), {params.back().seed, position, NoiseStream::kTarget}));
    }
    std::vector<Drawn> drawn(rows.size());
    backend.draw({.logits = logits.view(), .rows = rows.data(), .drawn = drawn.data()});
    for (size_t t = 0; t < rows.size(); ++t) {
      const std::span<const float> row(logits.view().f32(static_cast<int64_t>(t)),
                                       static_cast<size_t>(width));
      const auto expected = sampler.sample(row, params[t], {}, position);
      const auto got = drawn_token(rows[t], drawn[t]);
      if (!expected) {  // all tokens are masked
        EXPECT_FALSE(got);
        continue;
      }
      undecided += !got;
      if (!got) continue;
      EXPECT_EQ(*got, *expected) << backend.name() << ", round " << round << ", row " << t
                                 << ": temperature " << params[t].temperature << ", min_p "
                                 << params[t].min_p << ", top_k " << params[t].top_k << ", top_p "
                                 << params[t].top_p << ", " << drawn[t].count << " named";
    }
  }
  return undecided;
}

TEST(Drawn, AreTheTokensOfTheSampler) {
  for_reference_and_device([](Backend& backend) {
    EXPECT_LE(compare(backend, 7, 100, 16), 16) << backend.name();
    EXPECT_LE(compare(backend, 500, 100, 16), 4) << backend.name();
    EXPECT_LE(compare(backend, 129'280, 4, 32), 2) << backend.name();
  });
}

// What a device may leave open: the row where top-p ends within its rounding.
TEST(Drawn, NothingWhereTopPEndsTooClose) {
  const std::vector<float> logits{1, 1, 1, 1};
  SamplingParams params;
  params.top_p = 0.5f;
  Rows rows{const_cast<float*>(logits.data()), 1, 4, 4};
  for_reference_and_device([&](Backend& backend) {
    int64_t decided = 0;
    for (int64_t position = 0; position < 64; ++position) {
      const DrawRow row = draw_row(params, {params.seed, position, NoiseStream::kTarget});
      Drawn drawn;
      backend.draw({.logits = rows, .rows = &row, .drawn = &drawn});
      const auto token = drawn_token(row, drawn);
      if (!token) continue;
      ++decided;
      EXPECT_EQ(*token, *Sampler(4).sample(logits, params, {}, position));
    }
    EXPECT_LT(decided, 64) << backend.name();
  });
}

// The host's choice among those that are named.
TEST(Drawn, OfSeveralTheSamplers) {
  TestInputs in(9);
  Sampler sampler(4);
  for (int64_t position = 0; position < 500; ++position) {
    const std::vector<float> logits = in.normals(4, 1.0f);
    SamplingParams params;
    params.temperature = 0.7f;
    params.seed = 5;
    const DrawRow row = draw_row(params, {params.seed, position, NoiseStream::kTarget});
    const float largest = *std::max_element(logits.begin(), logits.end());
    Drawn drawn{.count = 4, .id = {0, 1, 2, 3}};
    for (size_t i = 0; i < 4; ++i) drawn.scaled[i] = (logits[i] - largest) / params.temperature;
    EXPECT_EQ(drawn_token(row, drawn), *sampler.sample(logits, params, {}, position));
  }
}

}  // namespace
}  // namespace tidemill
