#include "ops/cuda/many_tokens.cuh"
#include "ops/moe/cuda_experts.cuh"

namespace tidemill::cuda {
namespace {

// Experts are many: their rows have one segment. Warps of their own make inner activations of inner
// products while the next ones are multiplied; a block has a chunk of w2's columns, so that what
// lies together is stored together.
using InnerShape = ManyShape<2, 2, 1, true>;
using OuterShape = ManyShape<3, 1, 2>;
constexpr int kTilesOfBlock = InnerShape::kRows / 64;  // each 32 channels of inner activations
constexpr int kInnerRows = InnerShape::kRows / 2;      // channels: two rows each
struct InnerShared
    : ManyShared<InnerShape, kMostOfItem, 5, 3, InnerShape::kTiles * kMostOfItem / 16> {
  uint32_t largest[2][4][32];  // of the warps that store, by turns: pairs of tokens' magnitudes
  float weights[kMostOfItem];
};
static_assert(kInnerRows == chunk_columns(kRouted) && kTilesOfBlock == 4);
using OuterShared = ManyShared<OuterShape, kMostOfItem, 4, 4, 10>;
template <bool kInner>
using ShapeOf = std::conditional_t<kInner, InnerShape, OuterShape>;
template <bool kInner>
using SharedOf = std::conditional_t<kInner, InnerShared, OuterShared>;

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
                                  : (a.hidden + OuterShape::kRows - 1) / OuterShape::kRows);
    end = a.assignments.count[0] * rows;
    step = static_cast<int>(gridDim.x);
    first = static_cast<int>(blockIdx.x);
  }
  __device__ const Item& item(int tile) const { return a.assignments.items[tile / rows]; }
  // The first row, or channel, of so many.
  __device__ int64_t row(int tile, int of_tile) const { return int64_t{tile % rows} * of_tile; }
};

__device__ inline void sync_storers() {
  asm volatile("bar.sync 1, %0;" ::"n"(InnerShape::kStorers) : "memory");
}

// The bits of a power of two, taken from these, are those of its inverse.
constexpr uint32_t kInverseOf = 0x7F000000u;

// bf16 pairs: the larger magnitude of each; what is not a number loses.
__device__ inline uint32_t larger_bf16x2(uint32_t a, uint32_t b) {
  __nv_bfloat162 x, y;
  memcpy(&x, &a, 4);
  memcpy(&y, &b, 4);
  x = __hmax2(x, y);
  memcpy(&a, &x, 4);
  return a;
}

// Moe::swiglu() of four gates and ups (upper halves), bf16, worked out side by side: no branches
// but one, where a gate is extreme. Otherwise a division of 1 is a step of Newton's, correctly
// rounded as its result is no subnormal.
__device__ inline void swiglu_of_pairs(float limit, const uint4& pairs, float2 weight,
                                       float2 other_weight, float (&inner)[4]) {
  float gate[4], sigmoid[4];
  bool usual = true;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    gate[i] = smaller(__uint_as_float(word(pairs, i) << 16), limit);
    usual &= fabsf(gate[i]) < 87.0f;
    const float divisor = add(1.0f, usual_exp(-gate[i]));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(sigmoid[i]) : "f"(divisor));
    sigmoid[i] = fmaf(sigmoid[i], fmaf(-divisor, sigmoid[i], 1.0f), sigmoid[i]);
  }
  if (!usual) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sigmoid[i] = canonical_sigmoid(gate[i]);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float up = clamped(__uint_as_float(word(pairs, i) & 0xFFFF0000u), limit);
    const float w = i == 0   ? weight.x
                    : i == 1 ? weight.y
                    : i == 2 ? other_weight.x
                             : other_weight.y;
    inner[i] = mul(w, mul(mul(gate[i], sigmoid[i]), up));
  }
}

// By the warps that store: inner activations of a block's channels from both products, which are
// kept. Each warp has eight channels of every 32, as a worker's fragments have them and kFormat
// pairs them, and goes through the tokens, 16 at a time.
template <WeightFormat kFormat>
__device__ void put_inner(const Moe& a, const Item& item, InnerShared& shared, int64_t channel) {
  constexpr int kTiles = InnerShape::kTiles;
  const int thread = static_cast<int>(threadIdx.x) - InnerShape::kFirstStorer;
  const int warp = thread / 32;
  const int lane = thread % 32;
  const int g = lane / 4;
  const int c = lane % 4;
  const int q = g / 2;
  const uint32_t both_of = g % 2 == 0 ? 0x5410u : 0x3276u;
  // Of the pairs of channels a thread puts pair q, of tokens 2 c + g % 2 and the one 8 further.
  const auto place = [&](int m) {
    const int64_t at = place_of_pair<kFormat>(channel + m * 32 + warp * 8, q);
    const auto byte = static_cast<int>(at % kBlockColumns) * 2;
    return reinterpret_cast<uint8_t*>(a.inner + int64_t{item.line} * a.inter) +
           tile_byte(at / kBlockColumns, item.lines, 2 * c + g % 2, byte / 16) + byte % 16;
  };
  for (int t = thread; t < item.lines; t += InnerShape::kStorers) {
    shared.weights[t] =
        t < item.count ? a.assignments.weight(a.assignments.order[item.first + t]) : 0.0f;
  }
  sync_storers();
#pragma unroll 1
  for (int v = 0; v < item.lines / 16; ++v) {
    // Word 2 m + e: of tile m, tokens 8 e + 2 c and the next one.
    uint32_t inner[2 * kTilesOfBlock];
    uint32_t largest[2 * kTilesOfBlock];
#pragma unroll
    for (int m = 0; m < kTilesOfBlock; ++m) {
      const float2 weight = *reinterpret_cast<const float2*>(&shared.weights[16 * v + 2 * c]);
      const float2 further = *reinterpret_cast<const float2*>(&shared.weights[16 * v + 2 * c + 8]);
      float values[4];
      swiglu_of_pairs(a.limit, shared.kept[v * kTiles + m % kTiles][m / kTiles * 128 + thread],
                      weight, further, values);
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        inner[2 * m + e] = result_pair(values[2 * e], values[2 * e + 1]);
        largest[2 * m + e] = inner[2 * m + e] & 0x7FFF7FFFu;
      }
    }
    // Of the eight threads that have the same tokens each gets the largest of one word.
#pragma unroll
    for (int half = kTilesOfBlock; half > 0; half /= 2) {
      const bool upper = (g & half) != 0;
#pragma unroll
      for (int i = 0; i < half; ++i) {
        const uint32_t given = upper ? largest[i] : largest[i + half];
        const uint32_t kept = upper ? largest[i + half] : largest[i];
        largest[i] = larger_bf16x2(kept, __shfl_xor_sync(0xFFFFFFFFu, given, 4 * half));
      }
    }
    auto& of_warps = shared.largest[v % 2];
    of_warps[warp][lane] = largest[0];
    sync_storers();
    uint32_t both = of_warps[0][lane];
#pragma unroll
    for (int w = 1; w < 4; ++w) both = larger_bf16x2(both, of_warps[w][lane]);
    const auto scale_of = [](uint32_t bf16) {
      return __float_as_uint(e8m0_to_float(q8_scale_of(bf16_to_float(bf16))));
    };
    const uint32_t scales = __byte_perm(scale_of(both & 0xFFFFu), scale_of(both >> 16), 0x7632);
    uint32_t pairs[2][kTilesOfBlock];
#pragma unroll
    for (int k = 0; k < 2 * kTilesOfBlock; ++k) {
      const uint32_t of_word = __shfl_sync(0xFFFFFFFFu, scales, 4 * k + c);
      const uint32_t scale = g % 2 == 0 ? of_word << 16 : of_word & 0xFFFF0000u;
      const uint32_t other = __shfl_xor_sync(0xFFFFFFFFu, inner[k], 4);
      const uint32_t two = __byte_perm(inner[k], other, both_of);
      const float2 values =
          q8_values({__uint_as_float(two << 16), __uint_as_float(two & 0xFFFF0000u)},
                    __uint_as_float(scale), __uint_as_float(kInverseOf - scale));
      pairs[k % 2][k / 2] =
          __byte_perm(__float_as_uint(values.x), __float_as_uint(values.y), 0x7632);
    }
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int further = (2 * v + e) * 8 * kLineBytes;
      if constexpr (kFormat == kRouted) {  // they lie next to each other
        *reinterpret_cast<uint4*>(place(0) + further) = {pairs[e][0], pairs[e][1], pairs[e][2],
                                                         pairs[e][3]};
      } else {
#pragma unroll
        for (int m = 0; m < kTilesOfBlock; ++m) {
          *reinterpret_cast<uint32_t*>(place(m) + further) = pairs[e][m];
        }
      }
    }
  }
}

template <bool kInner, WeightFormat kFormat>
__device__ BlockRows<kFormat, !kInner> rows_of_item(const Moe& a, const Item& item, int64_t row) {
  const auto fragments = [&](int64_t rows, int of_fragment) {
    return static_cast<int>(min((rows - row) / of_fragment, int64_t{ShapeOf<kInner>::kFragments}));
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
__device__ __forceinline__ void multiply_item(const Work& work, int tile, SharedOf<kInner>& shared,
                                              WorkerPlace& at) {
  const Moe& a = work.a;
  const auto units = static_cast<int>((kInner ? a.hidden : a.inter) / unit_columns(kFormat));
  auto& memory = static_cast<typename SharedOf<kInner>::Base&>(shared);
  for_lines<kLeast, kMostOfItem>(work.item(tile).lines, [&](auto lines) {
    constexpr int kTokens = decltype(lines)::value;
    float acc[ShapeOf<kInner>::kTiles][kTokens / 2];
    multiply_many<kFormat, kTokens, false>(memory, at, units, {1, 0, 1}, acc);
    await_stored(memory, at);
    const auto unchanged = [](uint32_t pair) { return pair; };
    if constexpr (kInner) {
      keep_results<kTokens>(memory, acc, unchanged);
    } else {
      keep_rows<kTokens>(memory, acc, unchanged);
    }
    hand_over(memory, at);
  });
}

// Blocks take turns with tiles.
template <bool kInner>
__global__ void __launch_bounds__(ShapeOf<kInner>::kThreads, 1) many_kernel(Moe a) {
  using Shape = ShapeOf<kInner>;
  constexpr int kRows = kInner ? kInnerRows : Shape::kRows;
  auto& shared = shared_of_block<SharedOf<kInner>>();
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
  const Helper helper = Shape::helper();
  if constexpr (kInner) {
    if (helper == Helper::kStores) {
      Shape::give_storers_registers();
      uint32_t parity = 0;
      for (int tile = work.first; tile < work.end; tile += work.step) {
        const Item& item = work.item(tile);
        const int64_t channel = work.row(tile, kRows);
        await_results(shared, parity);
        if (item.expert < 0) {
          put_inner<kShared>(a, item, shared, channel);
        } else {
          put_inner<kRouted>(a, item, shared, channel);
        }
        shared.stored.arrive();
      }
      return;
    }
  }
  Shape::give_registers();
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
  } else if (!kInner && helper == Helper::kStores) {
    uint32_t parity = 0;
    for (int tile = work.first; tile < work.end; tile += work.step) {
      const Item& item = work.item(tile);
      const int64_t row = work.row(tile, kRows);
      const int32_t* order = a.assignments.order + item.first;
      const int rows = rows_of_item<false, kRouted>(a, item, row).fragments * 16;
      store_rows(shared, parity, item.count, static_cast<uint32_t>(rows * sizeof(uint16_t)),
                 [&](int t) { return a.products + order[t] * a.hidden + row; });
    }
  }
}

template <bool kInner>
void many(Launch& l, const Moe& a, int64_t items) {
  using Shape = ShapeOf<kInner>;
  constexpr int kBytes = shared_bytes<SharedOf<kInner>>();
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
