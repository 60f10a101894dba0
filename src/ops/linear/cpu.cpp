// Linear of the cpu backend: activations once, then rows or tokens over the threads.
#include <algorithm>

#include "base/formats.h"
#include "ops/cpu_backend.h"

namespace tidemill {
namespace {

bool has_kernel(const LinearArgs& a) {
  const Matrix& w = *a.w;
  return w.cols % kScaleBlock == 0 && w.format != WeightFormat::kFp8Row;
}

bool has_exact_products(WeightFormat format) {
  return format == WeightFormat::kFp8Block || format == WeightFormat::kFp4Row;
}

}  // namespace

void widen_columns(const Matrix& w, int64_t row, int64_t begin, int64_t end, float* out) {
  std::vector<float> whole(static_cast<size_t>(w.cols));
  reference::widen_row(w, row, whole.data());
  std::copy(whole.begin() + begin, whole.begin() + end, out);
}

TokenRows CpuBackend::prepare(const Rows& x, bool quantise, Scratch& scratch, bool& ordinary) {
  TokenRows out{.data = x.f32(0), .stride = x.stride, .count = x.count};
  float* memory = nullptr;
  if (quantise) {
    out.data = memory = scratch.floats(x.count * x.width);
    out.stride = x.width;
  }
  std::atomic<bool> all_ordinary = true;
  for_each_row(x.count, x.width, [&](int64_t t) {
    float* row = quantise ? memory + t * x.width : nullptr;
    if (!kernels_.prepare(x.f32(t), x.width, quantise, row)) {
      all_ordinary.store(false, std::memory_order_relaxed);
    }
  });
  ordinary = all_ordinary.load();
  return out;
}

void CpuBackend::linear(const LinearArgs& a) {
  if (!has_kernel(a)) return ReferenceBackend::linear(a);
  const Matrix& w = *a.w;
  MatmulArgs whole{.w = &w, .row_begin = 0, .row_end = w.rows};
  whole.y_stride = a.y.stride;
  whole.store = a.accumulate ? Store::kAdd : a.f32_output ? Store::kFloat : Store::kBf16;
  whole.scale = a.scale;
  if (a.quantise_input || has_exact_products(w.format)) {
    whole.x = prepare(a.x, a.quantise_input, x_, whole.ordinary_x);
  } else {
    whole.x = {.data = a.x.f32(0), .stride = a.x.stride, .count = a.x.count};
  }

  // Few tokens: rows over the threads. Many: tokens, each thread walking all rows, so that a matrix
  // of few rows occupies everybody too.
  const int64_t group_rows = w.rows / a.groups;
  const auto part = [&](int64_t row_begin, int64_t row_end, int64_t token_begin,
                        int64_t token_end) {
    for (int64_t row = row_begin; row < row_end;) {
      const int64_t group = row / group_rows;
      MatmulArgs m = whole;
      m.row_begin = row;
      m.row_end = row = std::min(row_end, (group + 1) * group_rows);
      m.x.data = whole.x.row(token_begin) + group * w.cols;
      m.x.count = token_end - token_begin;
      m.y = a.y.f32(token_begin) + m.row_begin;
      kernels_.matmul(m);
    }
  };
  constexpr int64_t kTokensPerUnit = 32;
  const int64_t tokens = a.x.count;
  const int64_t bytes = w.rows * w.row_bytes() * ((tokens + 3) / 4);
  if (tokens >= kTokensPerUnit * context_.team.size()) {
    for_each_unit((tokens + kTokensPerUnit - 1) / kTokensPerUnit, bytes, [&](int64_t unit, int) {
      part(0, w.rows, unit * kTokensPerUnit, std::min(tokens, (unit + 1) * kTokensPerUnit));
    });
  } else {
    // Some units per thread, so that nobody waits long for a slower one.
    const int64_t share = w.rows / (8 * context_.team.size()) / 8 * 8;
    const int64_t rows_per_unit = std::clamp(share, int64_t{8}, int64_t{64});
    for_each_unit((w.rows + rows_per_unit - 1) / rows_per_unit, bytes, [&](int64_t unit, int) {
      part(unit * rows_per_unit, std::min(w.rows, (unit + 1) * rows_per_unit), 0, tokens);
    });
  }
}

}  // namespace tidemill
