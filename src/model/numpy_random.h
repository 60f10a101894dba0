// numpy's default random generator, as far as Engram's hash multipliers need it.
#pragma once

#include <cstdint>

namespace tidemill {

// numpy.random.default_rng(seed): PCG64 (XSL RR 128/64) seeded through SeedSequence.
// Sources: numpy/random/bit_generator.pyx (SeedSequence), M. O'Neill, "PCG" (2014), D. Lemire,
// "Fast random integer generation in an interval" (2019).
class NumpyRandom {
 public:
  explicit NumpyRandom(uint64_t seed);

  uint64_t next();

  // .integers(0, bound, dtype=int64) for 2^32 < bound < 2^63; smaller bounds take another path in
  // numpy.
  int64_t integer_below(int64_t bound);

 private:
  __extension__ using Wide = unsigned __int128;
  void step();

  Wide state_ = 0;
  Wide increment_ = 0;
};

}  // namespace tidemill
