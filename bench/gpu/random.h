// Random choices of the GPU benchmarks, made on the host.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

namespace tidemill::gpu {

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}

  int32_t below(int64_t n) { return static_cast<int32_t>(engine_() % static_cast<uint64_t>(n)); }

  // `rows` lists of `count` numbers below `range`, ascending: one from each of `count` equal parts.
  std::vector<int32_t> lists(int64_t rows, int64_t count, int64_t range) {
    const int64_t part = range / count;
    std::vector<int32_t> result(static_cast<size_t>(rows * count));
    for (int64_t i = 0; i < rows * count; ++i) {
      result[static_cast<size_t>(i)] = static_cast<int32_t>(i % count * part) + below(part);
    }
    return result;
  }

  std::vector<int32_t> permutation(int64_t n) {
    std::vector<int32_t> result(static_cast<size_t>(n));
    std::iota(result.begin(), result.end(), 0);
    std::shuffle(result.begin(), result.end(), engine_);
    return result;
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace tidemill::gpu
