#include "model/numpy_random.h"

#include <array>
#include <bit>
#include <cassert>
#include <cstddef>

namespace tidemill {

namespace {

using Pool = std::array<uint32_t, 4>;

uint32_t fold(uint32_t value) { return value ^ (value >> 16); }

// A running hash: each call hashes differently.
class Hash {
 public:
  Hash(uint32_t start, uint32_t multiplier) : constant_(start), multiplier_(multiplier) {}
  uint32_t operator()(uint32_t value) {
    value ^= constant_;
    constant_ *= multiplier_;
    return fold(value * constant_);
  }

 private:
  uint32_t constant_;
  uint32_t multiplier_;
};

uint32_t mix(uint32_t a, uint32_t b) { return fold(0xca01f9ddu * a - 0x4973f715u * b); }

Pool seed_pool(uint64_t seed) {
  Hash hash(0x43b0d7e5u, 0x931e8875u);
  const Pool entropy = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32), 0, 0};
  Pool pool;
  for (std::size_t i = 0; i < pool.size(); ++i) pool[i] = hash(entropy[i]);
  for (std::size_t from = 0; from < pool.size(); ++from) {
    for (std::size_t to = 0; to < pool.size(); ++to) {
      if (from != to) pool[to] = mix(pool[to], hash(pool[from]));
    }
  }
  return pool;
}

}  // namespace

NumpyRandom::NumpyRandom(uint64_t seed) {
  const Pool pool = seed_pool(seed);
  Hash hash(0x8b51f9ddu, 0x58f38dedu);
  std::array<uint64_t, 4> words;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const uint64_t low = hash(pool[2 * i % pool.size()]);
    words[i] = low | uint64_t{hash(pool[(2 * i + 1) % pool.size()])} << 32;
  }
  increment_ = ((Wide{words[2]} << 64 | words[3]) << 1) | 1;
  step();
  state_ += Wide{words[0]} << 64 | words[1];
  step();
}

void NumpyRandom::step() {
  constexpr Wide kMultiplier = Wide{2549297995355413924u} << 64 | 4865540595714422341u;
  state_ = state_ * kMultiplier + increment_;
}

uint64_t NumpyRandom::next() {
  step();
  const auto folded = static_cast<uint64_t>(state_ >> 64) ^ static_cast<uint64_t>(state_);
  return std::rotr(folded, static_cast<int>(state_ >> 122));
}

int64_t NumpyRandom::integer_below(int64_t bound) {
  assert(bound > int64_t{1} << 32);
  const auto range = static_cast<uint64_t>(bound);
  const uint64_t rejected = (0 - range) % range;  // 2^64 mod bound values would be drawn too often
  Wide product = 0;
  do {
    product = Wide{next()} * range;
  } while (static_cast<uint64_t>(product) < rejected);
  return static_cast<int64_t>(product >> 64);
}

}  // namespace tidemill
