#include "base/noise.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>
#include <vector>

#include "base/chi_square.h"

namespace tidemill {
namespace {

// Known answers published with the generator (Random123, kat_vectors).
TEST(Noise, PhiloxKnownAnswers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (PhiloxWords{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (PhiloxWords{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxWords{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Noise, UniformNeverReachesAnEnd) {
  EXPECT_GT(to_uniform(0), 0.0);
  EXPECT_LT(to_uniform(UINT32_MAX), 1.0);
}

TEST(Noise, EveryPartOfTheKeyCounts) {
  std::set<double> values;
  size_t keys = 0;
  for (const uint64_t seed : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 32, UINT64_MAX}) {
    for (const int64_t position : {int64_t{0}, int64_t{1}, int64_t{1} << 32, INT64_MAX}) {
      for (const auto stream : {NoiseStream::kTarget, NoiseStream::kDraft, NoiseStream::kAccept,
                                NoiseStream::kResidual}) {
        for (const int32_t token : {0, 1, 4, 129279, INT32_MAX}) {
          values.insert(noise_uniform({seed, position, stream}, token));
          ++keys;
        }
      }
    }
  }
  EXPECT_EQ(values.size(), keys);
}

TEST(Noise, NeighbouringKeysAreUniformAndIndependent) {
  // 8 x 8 cells of (u at one position, u at the next), over positions, tokens and streams.
  std::vector<int64_t> counts(64);
  for (int64_t position = 0; position < 20000; ++position) {
    const int32_t token = static_cast<int32_t>(position % 5);
    const double a = noise_uniform({42, position, NoiseStream::kTarget}, token);
    const double b = noise_uniform({42, position + 1, NoiseStream::kTarget}, token);
    const double c = noise_uniform({42, position, NoiseStream::kDraft}, token);
    ++counts[static_cast<size_t>(a * 8) * 8 + static_cast<size_t>(b * 8)];
    ++counts[static_cast<size_t>(a * 8) * 8 + static_cast<size_t>(c * 8)];
  }
  EXPECT_LT(chi_square_z(counts, std::vector<double>(64, 1.0 / 64)), 4.0);
}

// The definition: every token's finishing time, no short cut.
int32_t draw_naive(const NoiseKey& key, std::span<const int32_t> ids,
                   const std::vector<double>& weights) {
  int32_t winner = -1;
  double best = 0.0;
  for (size_t i = 0; i < ids.size(); ++i) {
    const double score = weights[i] / -std::log1p(-noise_uniform(key, ids[i]));
    if (winner < 0 || score > best) {
      best = score;
      winner = ids[i];
    }
  }
  return winner;
}

TEST(Noise, DrawFollowsItsDefinition) {
  std::mt19937 generator(1);
  std::uniform_real_distribution<double> log_weight(-20.0, 0.0);
  for (int64_t position = 0; position < 500; ++position) {
    std::vector<int32_t> ids;
    std::vector<double> weights;
    const auto step = 1 + generator() % 7;  // dense and sparse lists
    for (int32_t id = static_cast<int32_t>(generator() % 9); ids.size() < 300;
         id += static_cast<int32_t>(1 + generator() % step)) {
      ids.push_back(id);
      weights.push_back(generator() % 4 == 0 ? 0.0 : std::exp(log_weight(generator)));
    }
    const NoiseKey key{7, position, NoiseStream::kResidual};
    EXPECT_EQ(draw(key, ids, [&](size_t i) { return weights[i]; }), draw_naive(key, ids, weights));
  }
}

TEST(Noise, DrawsHaveTheGivenDistribution) {
  const std::vector<int32_t> ids = {3, 4, 10, 11, 12, 500};
  const std::vector<double> probabilities = {0.5, 0.0, 0.3, 0.001, 0.149, 0.05};
  std::vector<int64_t> counts(ids.size());
  for (int64_t position = 0; position < 200000; ++position) {
    const int32_t token = draw({3, position, NoiseStream::kTarget}, ids,
                               [&](size_t i) { return 0.25 * probabilities[i]; });
    ++counts[std::find(ids.begin(), ids.end(), token) - ids.begin()];
  }
  EXPECT_LT(chi_square_z(counts, probabilities), 4.0);
}

// A request that is repeated after an upgrade gets the same tokens: these never change.
TEST(Noise, DrawsAreStable) {
  std::vector<int32_t> ids(1000);
  for (int32_t i = 0; i < 1000; ++i) ids[i] = i;
  std::vector<int32_t> drawn;
  for (int64_t position = 0; position < 8; ++position) {
    drawn.push_back(draw({1234, position, NoiseStream::kTarget}, ids, [](size_t) { return 1.0; }));
  }
  EXPECT_THAT(drawn, testing::ElementsAre(818, 785, 470, 660, 472, 85, 166, 857));
}

}  // namespace
}  // namespace tidemill
