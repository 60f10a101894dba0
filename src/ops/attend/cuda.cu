// Attention on tensor cores. Where tokens are many, a block takes one at a time (cuda_many.cuh).
// Few tokens are divided among more blocks (cuda_few.cuh). Every sum is the same sequence of
// products in both, so a token's bits do not depend on how many there are.
#include <algorithm>
#include <cmath>

#include "ops/attend/cuda_few.cuh"
#include "ops/attend/cuda_many.cuh"
#include "ops/cuda/vectors.cuh"

namespace tidemill::cuda {
namespace {

// ---- which calls this is for
bool aligned(const void* data, int64_t offset, int64_t bytes) {
  return (reinterpret_cast<uintptr_t>(data) + static_cast<uintptr_t>(offset)) %
             static_cast<uintptr_t>(bytes) ==
         0;
}
bool fits(const AttendArgs& a) {
  const int64_t dim = a.window_format.width;
  if ((dim != 128 && dim != 512) || a.heads > kTile) return false;
  if (a.window_format.kind != RowKind::kQ8) return false;
  for (const Rows* rows : {&a.q, &a.out}) {
    if (!aligned(rows->data, rows->stride * bytes_of(rows->element), 16)) return false;
    if (!aligned(rows->data, 0, 16)) return false;
  }
  const int64_t window_bytes = dim == 512 ? 16 : 4;
  if (!aligned(a.fresh, 0, window_bytes) || !aligned(a.ring_base, a.ring_add, window_bytes)) {
    return false;
  }
  if (a.entries.format.width == 0) return true;
  const int64_t entry_bytes = dim == 512 ? 16 : 8;
  return a.entries.format.kind == RowKind::kQ4Entry && a.entries.format.width == dim &&
         aligned(a.entries.base, a.entries.offset, entry_bytes) &&
         a.entries.block_bytes % entry_bytes == 0;
}

// Up to so many tokens blocks of one token each would leave multiprocessors without work.
constexpr int64_t kFewTokens = 24;
constexpr int64_t kManyRounds = 32;  // tokens of a block in a call

int64_t most_tiles(const AttendArgs& a) {
  const int64_t topk = a.entries.format.width == 0 ? 0 : a.topk;
  return std::max<int64_t>((a.ring_rows + kTile - 1) / kTile + (topk + kTile - 1) / kTile, 1);
}

void attend_many(Launch& l, const AttendArgs& a, float scale) {
  const int64_t most = most_tiles(a);
  const int64_t size = a.q.count * most * static_cast<int64_t>(sizeof(FoundTile));
  auto* found = static_cast<FoundTile*>(l.products.take(size, l.stream));
  if (found == nullptr) return;
  allow_shared<many_kernel>(sizeof(ManyShared));
  launch_alike(false, find_rows_kernel, dim3(static_cast<unsigned>(a.q.count)), dim3(kFinders * 32),
               0, l.stream, a, found, static_cast<int>(most));
  launch_early(many_kernel,
               dim3(static_cast<unsigned>(std::min<int64_t>(a.q.count, multiprocessors()))),
               dim3(kThreads), sizeof(ManyShared), l.stream, a, scale,
               static_cast<const FoundTile*>(found), static_cast<int>(most));
}

template <int kDim>
void attend_few(Launch& l, const AttendArgs& a, float scale) {
  const int64_t tokens = a.q.count;
  const int64_t most = most_tiles(a);
  const int64_t size = tokens * most * static_cast<int64_t>(sizeof(TileScores));
  auto* scores = static_cast<TileScores*>(l.products.take(size, l.stream));
  if (scores == nullptr) return;
  const int64_t parts = std::clamp<int64_t>(multiprocessors() / tokens, 1, most);
  const size_t score_bytes = sizeof(SharedScores<kDim>);
  allow_shared<few_scores_kernel<kDim>>(static_cast<int>(score_bytes));
  allow_shared<few_values_kernel<kDim>>(sizeof(SharedSlice));
  const dim3 score_grid(static_cast<unsigned>(parts), static_cast<unsigned>(tokens));
  launch_alike(false, few_scores_kernel<kDim>, score_grid, dim3(kScoreThreads<kDim>), score_bytes,
               l.stream, a, scores, static_cast<int>(most));
  launch_early(few_values_kernel<kDim>, dim3(kDim / kSlice, static_cast<unsigned>(tokens)),
               dim3(kThreads), sizeof(SharedSlice), l.stream, a, scale,
               static_cast<const TileScores*>(scores), static_cast<int>(most));
}

// The first `count` tokens, and those behind them.
AttendArgs first_tokens(AttendArgs a, int64_t count) {
  a.q.count = a.out.count = count;
  return a;
}
void* row_of(const Rows& rows, int64_t row) {
  return static_cast<std::byte*>(rows.data) + row * rows.stride * bytes_of(rows.element);
}
AttendArgs without_tokens(AttendArgs a, int64_t count) {
  for (Rows* rows : {&a.q, &a.out}) {
    rows->data = row_of(*rows, count);
    rows->count -= count;
  }
  a.sequence += count;
  a.window_begin += count;
  a.window_end += count;
  a.selected += count * a.topk;
  return a;
}

// Four values a thread.
__global__ void convert_kernel(Rows from, Rows to) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t fours = from.width / 4;
  const int64_t t = i / fours;
  const int64_t c = i % fours * 4;
  if (t >= from.count) return;
  if (from.element == Element::kF32) {
    const float4 x = *reinterpret_cast<const float4*>(from.f32(t) + c);
    *reinterpret_cast<uint2*>(to.bf16(t) + c) = {bf16_pair(x.x, x.y), bf16_pair(x.z, x.w)};
  } else {
    const uint2 x = *reinterpret_cast<const uint2*>(from.bf16(t) + c);
    *reinterpret_cast<uint4*>(to.f32(t) + c) = {x.x << 16, x.x & 0xFFFF0000u, x.y << 16,
                                                x.y & 0xFFFF0000u};
  }
}
void convert(Launch& l, const Rows& from, const Rows& to) {
  convert_kernel<<<blocks_for(from.count * (from.width / 4), 256), 256, 0, l.stream>>>(from, to);
}

// The kernels read and write bf16. Rows of float32 have copies in scratch memory.
void attend_some(Launch& l, const AttendArgs& a, float scale) {
  AttendArgs bf16 = a;
  const int64_t values = a.q.count * a.q.width;
  const bool narrow_q = a.q.element == Element::kF32;
  const bool widen_out = a.out.element == Element::kF32;
  if (narrow_q || widen_out) {
    auto* copies = static_cast<uint16_t*>(l.quantised.take(2 * values * 2, l.stream));
    if (copies == nullptr) return;
    if (narrow_q) bf16.q = {copies, a.q.count, a.q.width, a.q.width, Element::kBf16};
    if (widen_out) bf16.out = {copies + values, a.q.count, a.q.width, a.q.width, Element::kBf16};
  }
  if (narrow_q) convert(l, a.q, bf16.q);
  if (a.window_format.width != kManyDim) {
    attend_few<128>(l, bf16, scale);
  } else if (a.q.count <= kFewTokens) {
    attend_few<kManyDim>(l, bf16, scale);
  } else {
    attend_many(l, bf16, scale);
  }
  if (widen_out) convert(l, bf16.out, a.out);
}

}  // namespace

void attend(Launch& l, const AttendArgs& a) {
  if (l.plain || !fits(a)) return plain::attend(l, a);
  const int64_t dim = a.window_format.width;
  const float scale = kLog2E / kKeyFactor / std::sqrt(static_cast<float>(dim));
  // Some at a time: scratch memory has an end.
  const bool bf16 = a.q.element == Element::kBf16 && a.out.element == Element::kBf16;
  const int64_t most = dim == kManyDim ? (bf16 ? kManyRounds : 2) * multiprocessors() : 128;
  for (AttendArgs rest = a; rest.q.count > 0;) {
    const int64_t some = std::min(rest.q.count, most);
    attend_some(l, first_tokens(rest, some), scale);
    rest = without_tokens(rest, some);
  }
}

}  // namespace tidemill::cuda
