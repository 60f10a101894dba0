// Small random numbers for the tests of draft scheduling: the same on every platform.
#pragma once

#include <cstdint>
#include <random>

namespace tidemill {

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  // 0 to below `end`.
  int32_t below(int64_t end) {
    return static_cast<int32_t>(engine_() % static_cast<uint64_t>(end));
  }
  double uniform() { return below(1 << 20) * 0x1p-20; }

 private:
  std::mt19937 engine_;
};

}  // namespace tidemill
