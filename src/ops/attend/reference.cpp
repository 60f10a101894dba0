#include "ops/reference.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/canonical.h"

namespace tidemill::reference {
namespace {

constexpr int64_t kChunk = 64;  // keys per step of the online softmax

// All key rows of a query, widened, in list order.
void collect_keys(const AttendArgs& a, int64_t t, std::vector<float>& keys) {
  const int64_t dim = a.window_format.width;
  const int64_t s = a.sequence[t];
  const auto append = [&](const RowFormat& format, const std::byte* row) {
    keys.resize(keys.size() + static_cast<size_t>(dim));
    unpack_row(format, row, keys.data() + keys.size() - dim);
  };
  keys.clear();
  for (int64_t p = a.window_begin[t]; p < a.window_end[t]; ++p) {
    const int64_t bytes = a.window_format.bytes();
    if (p >= a.step_start[s]) {
      append(a.window_format, a.fresh + (a.step_row[s] + p - a.step_start[s]) * bytes);
    } else {
      append(a.window_format,
             a.ring_base + a.ring_add + a.ring_offset[s] + p % a.ring_rows * bytes);
    }
  }
  if (a.entries.format.width == 0) return;
  for (int64_t i = 0; i < a.topk && a.selected[t * a.topk + i] >= 0; ++i) {
    append(a.entries.format, a.entries.row(s, a.selected[t * a.topk + i]));
  }
}

void attend_head(const Context& context, const float* q, const std::vector<float>& keys,
                 int64_t dim, float sink, float* out) {
  const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
  const int64_t count = static_cast<int64_t>(keys.size()) / dim;
  float largest = -1e30f;
  float denominator = 0;
  std::fill(out, out + dim, 0.0f);
  for (int64_t first = 0; first < count; first += kChunk) {
    const int64_t n = std::min(kChunk, count - first);
    const float* chunk = keys.data() + first * dim;
    float p[kChunk];
    float chunk_largest = largest;
    for (int64_t k = 0; k < n; ++k) {
      p[k] = dot(q, chunk + k * dim, dim) * scale;
      chunk_largest = std::max(chunk_largest, p[k]);
    }
    const float rescale = canonical_exp(largest - chunk_largest);
    largest = chunk_largest;
    for (int64_t k = 0; k < n; ++k) p[k] = canonical_exp(p[k] - largest);
    denominator = denominator * rescale + sum(p, n);
    for (int64_t d = 0; d < dim; ++d) out[d] *= rescale;
    for (int64_t k = 0; k < n; ++k) {
      const float weight = context.bf16(p[k]);
      for (int64_t d = 0; d < dim; ++d) out[d] += weight * chunk[k * dim + d];
    }
  }
  if (count == 0) return;  // a query without keys gives 0
  denominator += canonical_exp(sink - largest);
  for (int64_t d = 0; d < dim; ++d) out[d] = context.bf16(out[d] / denominator);
}

}  // namespace

void attend(const Context& context, const AttendArgs& a) {
  const int64_t dim = a.window_format.width;
  context.team.parallel_for(a.q.count, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> keys;
    for (int64_t t = begin; t < end; ++t) {
      collect_keys(a, t, keys);
      for (int64_t h = 0; h < a.heads; ++h) {
        attend_head(context, a.q.f32(t) + h * dim, keys, dim, a.sink.data[h],
                    a.out.f32(t) + h * dim);
      }
    }
  });
}

}  // namespace tidemill::reference
