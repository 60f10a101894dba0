// Kernel of cpu_attend.h over a policy S (simd/avx512.h). Every key row is widened once for all
// heads; scores, sums and value products add in the order of the reference.
#pragma once

#include "ops/attend/cpu_attend.h"
#include "ops/rows/cpu_rows_kernel.h"

namespace tidemill {
namespace {

template <class S>
class AttendHeads {
 public:
  using F = typename S::F;

  explicit AttendHeads(const AttendHeadsArgs& a)
      : a_(a),
        keys_(a.memory),
        p_(keys_ + kAttendChunk * a.dim),
        largest_(p_ + a.heads * kAttendChunk),
        denominator_(largest_ + a.heads),
        rescale_(denominator_ + a.heads),
        scale_(1.0f / __builtin_sqrtf(static_cast<float>(a.dim))) {}

  void run() {
    const int64_t count = a_.window.count + a_.entries.count;
    for (int64_t i = 0; i < a_.heads * a_.dim; i += 16) S::store(a_.out + i, S::zero());
    if (count == 0) return;
    for (int64_t h = 0; h < a_.heads; ++h) {
      largest_[h] = -1e30f;
      denominator_[h] = 0;
    }
    for (int64_t first = 0; first < count; first += kAttendChunk) {
      const int64_t n = count - first < kAttendChunk ? count - first : kAttendChunk;
      widen(first, n);
      score(n);
      for (int64_t h = 0; h < a_.heads; ++h) soften(h, n);
      add_values(n);
    }
    for (int64_t h = 0; h < a_.heads; ++h) {
      const F denominator =
          S::add(S::set(denominator_[h]), exp<S>(S::set(a_.sink[h] - largest_[h])));
      float* out = a_.out + h * a_.dim;
      for (int64_t d = 0; d < a_.dim; d += 16) {
        S::store(out + d, round_bf16<S>(S::div(S::load(out + d), denominator)));
      }
    }
  }

 private:
  void widen(int64_t first, int64_t n) {
    for (int64_t k = 0; k < n; ++k) {
      const int64_t i = first + k;
      const bool windowed = i < a_.window.count;
      const PackedRows& rows = windowed ? a_.window : a_.entries;
      unpack<S>(rows.format, rows.row[windowed ? i : i - a_.window.count], keys_ + k * a_.dim);
    }
    // rows of the last tile beyond the chunk: any finite value
    for (int64_t i = n * a_.dim; i % (S::kTileRows * a_.dim) != 0; i += 16) {
      S::store(keys_ + i, S::zero());
    }
  }

  template <int kHeads>
  void score_heads(int64_t h, int64_t n) {
    const float* q[kHeads];
    for (int i = 0; i < kHeads; ++i) q[i] = a_.q + (h + i) * a_.dim;
    for (int64_t k = 0; k < n; k += S::kTileRows) {
      F sum[kHeads][S::kTileRows];
      for (int i = 0; i < kHeads; ++i) {
        for (int r = 0; r < S::kTileRows; ++r) sum[i][r] = S::zero();
      }
      multiply_tile<S, false, kHeads, S::kTileRows>(keys_ + k * a_.dim, a_.dim, q, a_.dim, sum);
      static_assert(S::kTileRows == 4);
      for (int i = 0; i < kHeads; ++i) {
        S::reduce4(sum[i][0], sum[i][1], sum[i][2], sum[i][3], p_ + (h + i) * kAttendChunk + k);
      }
    }
  }
  void score(int64_t n) {
    int64_t h = 0;
    for (; h + S::kTileTokens <= a_.heads; h += S::kTileTokens) score_heads<S::kTileTokens>(h, n);
    for (; h < a_.heads; ++h) score_heads<1>(h, n);
  }

  // Scores of a chunk to probabilities, rounded to bf16; the denominator sums the unrounded ones.
  void soften(int64_t h, int64_t n) {
    float* p = p_ + h * kAttendChunk;
    for (int64_t k = n; k < kAttendChunk; ++k) p[k] = 0;
    F peak = S::set(largest_[h]);
    for (int64_t k = 0; k < n; k += 16) {
      const F score = S::mul(S::load(p + k), S::set(scale_));
      S::store(p + k, score);
      if (k + 16 <= n) {
        peak = S::max(score, peak);
      } else {
        for (int64_t i = k; i < n; ++i) peak = S::max(S::set(p[i]), peak);
      }
    }
    const float largest = S::largest(peak);
    rescale_[h] = first_lane(exp<S>(S::set(largest_[h] - largest)));
    largest_[h] = largest;
    F total = S::zero();
    for (int64_t k = 0; k < n; k += 16) {
      F probability = exp<S>(S::sub(S::load(p + k), S::set(largest)));
      if (k + 16 > n) {
        S::store(p + k, probability);
        for (int64_t i = n; i < k + 16; ++i) p[i] = 0;
        probability = S::load(p + k);
      }
      total = S::add(total, probability);
      S::store(p + k, round_bf16<S>(probability));
    }
    denominator_[h] = denominator_[h] * rescale_[h] + S::reduce(total);
  }

  // out[h] = out[h] * rescale + sum of p[k] key[k], k ascending. A product of a small probability
  // may be subnormal, so it is never fused.
  template <int kHeads, int kRegisters>
  void add_value_columns(int64_t h, int64_t d, int64_t n) {
    F sum[kHeads][kRegisters];
#pragma GCC unroll 16
    for (int i = 0; i < kHeads; ++i) {
      const F rescale = S::set(rescale_[h + i]);
#pragma GCC unroll 16
      for (int v = 0; v < kRegisters; ++v) {
        sum[i][v] = S::mul(S::load(a_.out + (h + i) * a_.dim + d + v * 16), rescale);
      }
    }
    const float* key = keys_ + d;
    const float* p = p_ + h * kAttendChunk;
    for (int64_t k = 0; k < n; ++k, key += a_.dim, ++p) {
#pragma GCC unroll 16
      for (int v = 0; v < kRegisters; ++v) {
        const F value = S::load(key + v * 16);
#pragma GCC unroll 16
        for (int i = 0; i < kHeads; ++i) {
          sum[i][v] = S::add(sum[i][v], S::mul(S::set(p[i * kAttendChunk]), value));
        }
      }
    }
#pragma GCC unroll 16
    for (int i = 0; i < kHeads; ++i) {
#pragma GCC unroll 16
      for (int v = 0; v < kRegisters; ++v) {
        S::store(a_.out + (h + i) * a_.dim + d + v * 16, sum[i][v]);
      }
    }
  }
  template <int kHeads>
  void add_value_heads(int64_t h, int64_t n) {
    constexpr int kRegisters = S::kValueRegisters;
    int64_t d = 0;
    for (; d + kRegisters * 16 <= a_.dim; d += kRegisters * 16) {
      add_value_columns<kHeads, kRegisters>(h, d, n);
    }
    for (; d < a_.dim; d += 16) add_value_columns<kHeads, 1>(h, d, n);
  }
  void add_values(int64_t n) {
    int64_t h = 0;
    for (; h + 4 <= a_.heads; h += 4) add_value_heads<4>(h, n);
    for (; h < a_.heads; ++h) add_value_heads<1>(h, n);
  }

  static float first_lane(F x) {
    float lanes[16];
    S::store(lanes, x);
    return lanes[0];
  }

  const AttendHeadsArgs& a_;
  float* keys_;
  float* p_;  // [heads, kAttendChunk]
  float* largest_;
  float* denominator_;
  float* rescale_;
  float scale_;
};

template <class S>
void attend_heads(const AttendHeadsArgs& a) {
  AttendHeads<S>(a).run();
}

}  // namespace
}  // namespace tidemill
