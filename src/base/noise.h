// Randomness without state: every number is a function of (seed, position, stream, token), so a
// request draws the same tokens whatever its neighbours in the batch, its drafts or its
// preemptions, and a device can compute the same numbers in any order.
//
// Generator: Philox4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as
// 1, 2, 3", SC'11). Key = seed; counter = {token / 4, position low, position high, stream}; word
// token % 4 of the result belongs to the token.
#pragma once

#include <array>
#include <cassert>
#include <cmath>
#include <cstdint>
#include <span>

#include "base/both_sides.h"

namespace tidemill {

// Uses of noise at one position, independent of each other.
enum class NoiseStream : uint32_t {
  kTarget = 0,    // the token drawn from the target's distribution
  kDraft = 1,     // a draft for rejection sampling
  kAccept = 2,    // is the draft accepted?
  kResidual = 3,  // the token in place of a rejected draft
};

struct NoiseKey {
  uint64_t seed = 0;
  int64_t position = 0;  // in the sequence, prompt included, of the token to be drawn
  NoiseStream stream = NoiseStream::kTarget;
};

using PhiloxWords = std::array<uint32_t, 4>;

TIDEMILL_BOTH_SIDES inline PhiloxWords philox4x32(PhiloxWords counter,
                                                  std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

// Words of the tokens 4 * block to 4 * block + 3.
TIDEMILL_BOTH_SIDES inline PhiloxWords noise_words(const NoiseKey& key, uint32_t block) {
  const auto position = static_cast<uint64_t>(key.position);
  return philox4x32({block, static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32),
                     static_cast<uint32_t>(key.stream)},
                    {static_cast<uint32_t>(key.seed), static_cast<uint32_t>(key.seed >> 32)});
}

// In (0, 1), never an end: odd multiples of 2^-33.
inline double to_uniform(uint32_t word) { return (static_cast<double>(word) + 0.5) * 0x1p-32; }

inline double noise_uniform(const NoiseKey& key, int32_t token) {
  const auto index = static_cast<uint32_t>(token);
  return to_uniform(noise_words(key, index / 4)[index % 4]);
}

// Draws ids[i] with probability weight(i) / sum of weights by an exponential race, which is the
// Gumbel-max trick without the outer logarithm: token t finishes at E_t / w_t, where E_t = -ln(1 -
// noise_uniform(key, t)), and the first wins (the lower id of two at once). E_t belongs to the
// token, not to its place in the list: when other tokens drop out, who is ahead of whom stays.
//
// `ids` ascending and >= 0; weight(i), double, finite and >= 0, with a positive one among them.
template <typename Weight>
int32_t draw(const NoiseKey& key, std::span<const int32_t> ids, Weight weight) {
  assert(!ids.empty());
  uint32_t block = UINT32_MAX;  // of no id
  PhiloxWords words{};
  int32_t winner = ids[0];
  double best = 0.0;  // largest w / E so far
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto token = static_cast<uint32_t>(ids[i]);
    if (token / 4 != block) {
      block = token / 4;
      words = noise_words(key, block);
    }
    const double u = to_uniform(words[token % 4]);
    const double w = weight(i);
    // E >= u, so w / u bounds w / E: nearly every token is dismissed without a logarithm.
    if (w <= best * u) continue;
    const double score = w / -std::log1p(-u);
    if (score > best) {
      best = score;
      winner = ids[i];
    }
  }
  return winner;
}

}  // namespace tidemill
