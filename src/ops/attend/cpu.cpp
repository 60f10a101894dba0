// Attention of the cpu backend: tokens over the threads, heads too while tokens are few.
#include <algorithm>

#include "ops/attend/cpu_attend.h"
#include "ops/cpu_backend.h"

namespace tidemill {
namespace {

// Addresses of the keys of a token, in list order.
struct KeyList {
  std::vector<const std::byte*> window;
  std::vector<const std::byte*> entries;

  void collect(const AttendArgs& a, int64_t t) {
    const int64_t s = a.sequence[t];
    const int64_t bytes = a.window_format.bytes();
    window.clear();
    entries.clear();
    for (int64_t p = a.window_begin[t]; p < a.window_end[t]; ++p) {
      window.push_back(p >= a.step_start[s]
                           ? a.fresh + (a.step_row[s] + p - a.step_start[s]) * bytes
                           : a.ring_base + a.ring_add + a.ring_offset[s] + p % a.ring_rows * bytes);
    }
    if (a.entries.format.width == 0) return;
    const int32_t* selected = a.selected + t * a.topk;
    for (int64_t i = 0; i < a.topk && selected[i] >= 0; ++i) {
      entries.push_back(a.entries.row(s, selected[i]));
    }
  }
};

}  // namespace

void CpuBackend::attend(const AttendArgs& a) {
  const int64_t dim = a.window_format.width;
  if (dim % 32 != 0 || a.q.count == 0) return ReferenceBackend::attend(a);
  const int64_t tokens = a.q.count;
  const int64_t threads = context_.team.size();
  // Heads of a unit share the widening of the keys; a multiple of 4 fills the tiles.
  int64_t heads_per_unit = a.heads;
  if (tokens < threads) heads_per_unit = ((a.heads + threads - 1) / threads + 3) / 4 * 4;
  const int64_t units_per_token = (a.heads + heads_per_unit - 1) / heads_per_unit;

  const int64_t memory = (attend_memory(heads_per_unit, dim) + 15) / 16 * 16;
  float* all_memory = thread_.floats(threads * memory);
  std::vector<KeyList> lists(static_cast<size_t>(threads));
  const int64_t keys = a.window_end[tokens - 1] - a.window_begin[tokens - 1] + a.topk;
  for_each_unit(tokens * units_per_token, tokens * a.heads * keys * dim,
                [&](int64_t unit, int rank) {
                  const int64_t t = unit / units_per_token;
                  const int64_t head = unit % units_per_token * heads_per_unit;
                  KeyList& list = lists[static_cast<size_t>(rank)];
                  list.collect(a, t);
                  AttendHeadsArgs args;
                  args.q = a.q.f32(t) + head * dim;
                  args.out = a.out.f32(t) + head * dim;
                  args.heads = std::min(heads_per_unit, a.heads - head);
                  args.dim = dim;
                  args.sink = a.sink.data + head;
                  args.window = {a.window_format, list.window.data(),
                                 static_cast<int64_t>(list.window.size())};
                  args.entries = {a.entries.format, list.entries.data(),
                                  static_cast<int64_t>(list.entries.size())};
                  args.memory = all_memory + rank * memory;
                  kernels_.attend(args);
                });
}

}  // namespace tidemill
