#include "ops/cuda/many_tokens.cuh"
#include "ops/moe/cuda_experts.cuh"

namespace tidemill::cuda {
namespace {

// Experts are many: their rows have one segment. Results are kept for those who store them, or, of
// inner products, until they are quantised.
using Shape = ManyShape<3, 1, 2>;
struct Shared : ManyShared<Shape, kMostOfItem, 4, 4, Shape::kTiles * kMostOfItem / 16> {
  // What the warps of a warpgroup tell each other about tokens.
  struct Exchange {
    uint4 largest[Shape::kTiles][kMostOfItem / 2];  // of two tokens, in each warp
    float2 scales[Shape::kTiles][kMostOfItem];      // and their inverses
    float weights[kMostOfItem];
  } exchange[Shape::kGroups];
};
constexpr int kInnerRows = Shape::kRows / 2;  // channels: two rows each

__global__ void activations_kernel(Moe a) {
  store_eight<Layout::kLines>(a.x, int64_t{blockIdx.x} * blockDim.x + threadIdx.x, a.x_routed,
                              a.x_shared);
}

// Gathers each item's tile from a.x_routed or a.x_shared (layout kLines). Blocks (blocks of
// columns, items) of 256 threads: eight threads a line.
__global__ void tiles_kernel(Moe a, uint16_t* out) {
  if (static_cast<int>(blockIdx.y) >= *a.assignments.count) return;
  const Item& item = a.assignments.items[blockIdx.y];
  const uint16_t* x = item.expert < 0 ? a.x_shared : a.x_routed;
  const int32_t* order = a.assignments.order + item.first;
  auto* tile = reinterpret_cast<uint8_t*>(out + int64_t{item.line} * a.hidden);
  const auto piece = static_cast<int>(threadIdx.x % 8);
#pragma unroll 4
  for (int line = threadIdx.x / 8; line < item.count; line += blockDim.x / 8) {
    const uint16_t* from = x + a.assignments.token(order[line]) * a.hidden;
    *reinterpret_cast<uint4*>(tile + tile_byte(blockIdx.x, item.lines, line, piece)) =
        *reinterpret_cast<const uint4*>(from + int64_t{blockIdx.x} * kBlockColumns + piece * 8);
  }
}

// Tile `tile` is tile % rows of the rows of item tile / rows.
struct Work {
  const Moe& a;
  int rows;
  int step;
  int first;
  int end;

  __device__ Work(const Moe& moe, bool inner) : a(moe) {
    rows = static_cast<int>(inner ? (a.inter + kInnerRows - 1) / kInnerRows
                                  : (a.hidden + Shape::kRows - 1) / Shape::kRows);
    end = a.assignments.count[0] * rows;
    step = static_cast<int>(gridDim.x);
    first = static_cast<int>(blockIdx.x);
  }
  __device__ const Item& item(int tile) const { return a.assignments.items[tile / rows]; }
  // The first row, or channel, of so many.
  __device__ int64_t row(int tile, int of_tile) const { return int64_t{tile % rows} * of_tile; }
};

__device__ inline void sync_warpgroup(int group) {
  asm volatile("bar.sync %0, 128;" ::"r"(1 + group) : "memory");
}

// bf16 pairs: the larger magnitude of each; what is not a number loses.
__device__ inline uint32_t larger_bf16x2(uint32_t a, uint32_t b) {
  __nv_bfloat162 x, y;
  memcpy(&x, &a, 4);
  memcpy(&y, &b, 4);
  x = __hmax2(x, y);
  memcpy(&a, &x, 4);
  return a;
}

// Inner activations of a tile's channels from both products, which are kept: 32 channels lie as
// a warpgroup's fragments have them, eight in each warp, as kFormat pairs them.
template <WeightFormat kFormat>
__device__ void put_inner(const Moe& a, const Item& item, Shared& shared, int64_t channel) {
  int worker = threadIdx.x;
  asm volatile("" : "+r"(worker));  // what depends on it is not kept in registers meanwhile
  const int group = worker / 128;
  const int thread = worker % 128;
  const int warp = thread / 32;
  const int g = thread % 32 / 4;
  const int c = thread % 4;
  auto& exchange = shared.exchange[group];
  for (int t = thread; t < item.lines; t += 128) {
    exchange.weights[t] =
        t < item.count ? a.assignments.weight(a.assignments.order[item.first + t]) : 0.0f;
  }
  sync_warpgroup(group);
  const int vectors = item.lines / 16;
#pragma unroll 1
  for (int i = 0; i < vectors * Shape::kTiles; ++i) {
    const int m = i % Shape::kTiles;
    uint4& kept = shared.kept[i][worker];
    const uint4 pairs = kept;
    uint32_t two[2];  // inner activations of tokens 8 j + 2 c and the next
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int j = i / Shape::kTiles * 2 + e;
      const float2 weight = *reinterpret_cast<const float2*>(&exchange.weights[8 * j + 2 * c]);
      const auto inner = [&](uint32_t pair, float w) {
        return a.swiglu(__uint_as_float(pair << 16), __uint_as_float(pair & 0xFFFF0000u), w);
      };
      two[e] = __float_as_uint(inner(word(pairs, 2 * e), weight.x)) >> 16 |
               __float_as_uint(inner(word(pairs, 2 * e + 1), weight.y));
      uint32_t largest = two[e] & 0x7FFF7FFFu;
#pragma unroll
      for (int apart = 4; apart < 32; apart *= 2) {
        largest = larger_bf16x2(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, apart));
      }
      if (g == 0) reinterpret_cast<uint32_t*>(&exchange.largest[m][4 * j + c])[warp] = largest;
    }
    kept.x = two[0];
    kept.y = two[1];
  }
  sync_warpgroup(group);
  for (int i = thread; i < Shape::kTiles * item.lines; i += 128) {
    const int m = i / item.lines;
    const int t = i % item.lines;
    const uint4 of = exchange.largest[m][t / 2];
    const uint32_t both = larger_bf16x2(larger_bf16x2(of.x, of.y), larger_bf16x2(of.z, of.w));
    const uint32_t byte = q8_scale_of(bf16_to_float(t % 2 == 0 ? both & 0xFFFFu : both >> 16));
    exchange.scales[m][t] = {e8m0_to_float(byte), q8_inverse_scale(byte)};
  }
  sync_warpgroup(group);
  const int q = g / 2;
  const uint32_t both_of = g % 2 == 0 ? 0x5410u : 0x3276u;
  auto* tile = reinterpret_cast<uint8_t*>(a.inner + int64_t{item.line} * a.inter);
#pragma unroll 1
  for (int i = 0; i < vectors * Shape::kTiles; ++i) {
    const int m = i % Shape::kTiles;
    const int64_t eight = channel + (group * Shape::kTiles + m) * 32 + warp * 8;
    const int64_t at = place_of_pair<kFormat>(eight, q);
    const auto byte = static_cast<int>(at % kBlockColumns) * 2;
    uint8_t* to =
        tile + tile_byte(at / kBlockColumns, item.lines, 2 * c + g % 2, byte / 16) + byte % 16;
    const uint4 kept = shared.kept[i][worker];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int j = i / Shape::kTiles * 2 + e;
      const float4 scales = *reinterpret_cast<const float4*>(&exchange.scales[m][8 * j + 2 * c]);
      const uint32_t two = word(kept, e);
      const uint32_t mine =
          __float_as_uint(q8_value(__uint_as_float(two << 16), scales.x, scales.y)) >> 16 |
          __float_as_uint(q8_value(__uint_as_float(two & 0xFFFF0000u), scales.z, scales.w));
      const uint32_t other = __shfl_xor_sync(0xFFFFFFFFu, mine, 4);
      if (eight < a.inter) {
        *reinterpret_cast<uint32_t*>(to + j * 8 * kLineBytes) = __byte_perm(mine, other, both_of);
      }
    }
  }
}

template <bool kInner, WeightFormat kFormat>
__device__ BlockRows<kFormat, !kInner> rows_of_item(const Moe& a, const Item& item, int64_t row) {
  const auto fragments = [&](int64_t rows, int of_fragment) {
    return static_cast<int>(min((rows - row) / of_fragment, int64_t{Shape::kFragments}));
  };
  if constexpr (kInner) {
    return {{item.w1.data, item.w3.data},
            {item.w1.scales, item.w3.scales},
            a.hidden,
            row,
            fragments(a.inter, 8)};
  } else {
    return {{item.w2.data}, {item.w2.scales}, a.inter, row, fragments(a.hidden, 16)};
  }
}

// Calls `body` with the lines of an item: from kLeast on.
template <int kLeast, int kMost, typename Body>
__device__ __forceinline__ void for_lines(int lines, const Body& body) {
  if constexpr (kMost > kLeast) {
    if (lines < kMost) return for_lines<kLeast, kMost - kLinesStep>(lines, body);
  }
  body(std::integral_constant<int, kMost>{});
}

template <bool kInner, WeightFormat kFormat, int kLeast>
__device__ __forceinline__ void multiply_item(const Work& work, int& tile, Shared& shared,
                                              WorkerPlace& at) {
  const Moe& a = work.a;
  const auto units = static_cast<int>((kInner ? a.hidden : a.inter) / unit_columns(kFormat));
  auto& memory = static_cast<Shared::Base&>(shared);
  for_lines<kLeast, kMostOfItem>(work.item(tile).lines, [&](auto lines) {
    constexpr int kTokens = decltype(lines)::value;
    float acc[Shape::kTiles][kTokens / 2];
    multiply_many<kFormat, kTokens, false>(memory, at, units, {1, 0, 1}, acc);
    if (!kInner) await_stored(memory, at);
    keep_results<kTokens>(memory, acc, [](uint32_t pair) { return pair; });
  });
  asm volatile("" : "+r"(tile));  // nothing else is kept in registers meanwhile
  if constexpr (kInner) {
    put_inner<kFormat>(a, work.item(tile), shared, work.row(tile, kInnerRows));
  } else {
    hand_over(memory, at);
  }
}

// Blocks take turns with tiles.
template <bool kInner>
__global__ void __launch_bounds__(Shape::kThreads, 1) many_kernel(Moe a) {
  constexpr int kRows = kInner ? kInnerRows : Shape::kRows;
  auto& shared = shared_of_block<Shared>();
  shared.init();
  const Work work(a, kInner);
  const int64_t width = kInner ? a.hidden : a.inter;
  if (Shape::multiplies()) {
    Shape::take_registers();
    WorkerPlace at;
    for (int tile = work.first; tile < work.end; tile += work.step) {
      if (work.item(tile).expert < 0) {
        multiply_item<kInner, kShared, kMostOfItem>(work, tile, shared, at);
      } else {
        multiply_item<kInner, kRouted, kLeastLines>(work, tile, shared, at);
      }
    }
    return;
  }
  Shape::give_registers();
  const Helper helper = Shape::helper();
  if (helper == Helper::kBringsActivations) {
    if (threadIdx.x % 32 != 0) return;
    RingPlace at;
    const uint16_t* tiles = kInner ? a.tiles : a.inner;
    for (int tile = work.first; tile < work.end; tile += work.step) {
      const Item& item = work.item(tile);
      shared.bring(at, reinterpret_cast<const uint8_t*>(tiles + int64_t{item.line} * width),
                   item.lines, 0, static_cast<int>(width / kBlockColumns), item.lines);
    }
  } else if (helper == Helper::kBringsWeights) {
    RingPlace at;
    for (int tile = work.first; tile < work.end; tile += work.step) {
      const Item& item = work.item(tile);
      const int64_t row = work.row(tile, kRows);
      if (item.expert < 0) {
        shared.bring(at, rows_of_item<kInner, kShared>(a, item, row), 0,
                     static_cast<int>(width / chunk_columns(kShared)));
      } else {
        shared.bring(at, rows_of_item<kInner, kRouted>(a, item, row), 0,
                     static_cast<int>(width / chunk_columns(kRouted)));
      }
    }
    wait_copies<0>();
  } else if (!kInner) {
    uint32_t parity = 0;
    for (int tile = work.first; tile < work.end; tile += work.step) {
      const Item& item = work.item(tile);
      const int64_t row = work.row(tile, kRows);
      const int32_t* order = a.assignments.order + item.first;
      store_results<uint16_t>(
          static_cast<Shared::Base&>(shared), parity, item.count,
          rows_of_item<false, kRouted>(a, item, row).fragments,
          [&](int t) { return t < item.count ? a.products + order[t] * a.hidden + row : nullptr; },
          [](uint16_t* to, int r, uint32_t pair) { *reinterpret_cast<uint32_t*>(to + r) = pair; });
    }
  }
}

template <bool kInner>
void many(Launch& l, const Moe& a, int64_t items) {
  constexpr int kBytes = shared_bytes<Shared>();
  const auto kernel = many_kernel<kInner>;
  static const int blocks =
      blocks_at_once(reinterpret_cast<const void*>(kernel), Shape::kThreads, kBytes);
  const int64_t tiles =
      items * (kInner ? blocks_for(a.inter, kInnerRows) : blocks_for(a.hidden, Shape::kRows));
  kernel<<<static_cast<unsigned>(min(tiles, int64_t{blocks})), Shape::kThreads, kBytes, l.stream>>>(
      a);
}

}  // namespace

void experts_many(Launch& l, Moe& a, const ExpertsArgs& e, int64_t items, int64_t lines) {
  auto* tiles = static_cast<uint16_t*>(l.tiles.take(lines * a.hidden * int64_t{2}, l.stream));
  if (tiles == nullptr || !take_activations(l, a)) return;
  a.tiles = tiles;
  assign(l.stream, a.assignments, e.table, *e.shared, static_cast<int64_t>(e.experts.size()),
         kMostOfItem);
  activations_kernel<<<blocks_for(a.x.count * (a.hidden / 8), 256), 256, 0, l.stream>>>(a);
  tiles_kernel<<<dim3(blocks_for(a.hidden, kBlockColumns), static_cast<unsigned>(items)), 256, 0,
                 l.stream>>>(a, tiles);
  many<true>(l, a, items);
  many<false>(l, a, items);
}

}  // namespace tidemill::cuda
