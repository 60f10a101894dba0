#include <algorithm>
#include <type_traits>

#include "ops/cuda/many_tokens.cuh"
#include "ops/linear/cuda_product.cuh"

namespace tidemill::cuda {
namespace {

// Blocks that multiply whole rows: 128 rows by 256 tokens, so that what is widened is multiplied by
// as many tokens as there is room for sums; 256 rows by 128 where there are no more.
template <int kTokens>
using WholeShape = std::conditional_t<kTokens == 256, ManyShape<2, 1, 2>, ManyShape<2, 2>>;
template <int kTokens, bool kSegmented>
using WholeShared = std::conditional_t<
    kTokens == 256, ManyShared<WholeShape<256>, 256, kSegmented ? 3 : 4, 3, kSegmented ? 20 : 17>,
    ManyShared<WholeShape<128>, 128, kSegmented ? 4 : 5, 4, kSegmented ? 20 : 17>>;

// Tiles of rows and tokens in an order in which those at work share rows and tokens: bands of
// 2,048 tokens, and in a band all tiles of tokens of a tile of rows, then the next one's.
template <int kTokens>
struct Tiles {
  static constexpr int kBand = 2048 / kTokens;
  static constexpr int kRows = WholeShape<kTokens>::kRows;
  int rows;
  int tokens;

  struct Place {
    int64_t row;
    int64_t token;
  };
  __host__ __device__ int count() const { return rows * tokens; }
  __device__ Place operator[](int tile) const {
    const int band = tile / (kBand * rows);
    const int width = min(kBand, tokens - band * kBand);
    const int inside = tile - band * kBand * rows;
    return {int64_t{inside / width} * kRows, int64_t{band * kBand + inside % width} * kTokens};
  }
};

__device__ inline const uint8_t* activations_at(const Product& a, int64_t row, int64_t token) {
  const int64_t line = token % kTileTokens;
  return reinterpret_cast<const uint8_t*>(a.x + (token - line) * a.width) +
         row / a.group_rows * a.w.cols * (kTileTokens * int64_t{sizeof(uint16_t)}) +
         line * kLineBytes;
}

template <WeightFormat kFormat>
__device__ int units_of(const Product& a) {
  return static_cast<int>(a.w.cols / unit_columns(kFormat));
}

template <WeightFormat kFormat, typename OfShape>
__device__ BlockRows<kFormat, true> block_rows(const Product& a, int64_t row) {
  const int64_t fragments = min((a.w.rows - row) / 16, int64_t{OfShape::kFragments});
  return {{a.w.data}, {a.w.scales}, a.w.cols, row, static_cast<int>(fragments)};
}

// Calls `body` with as many tokens as are multiplied where there are so many: kMost or half of it.
template <int kMost, typename Body>
__device__ __forceinline__ void for_tokens(int tokens, const Body& body) {
  if (tokens > kMost / 2) {
    body(std::integral_constant<int, kMost>{});
  } else {
    body(std::integral_constant<int, kMost / 2>{});
  }
}
template <int kMost>
__device__ int padded_tokens(int tokens) {
  return tokens > kMost / 2 ? kMost : kMost / 2;
}

template <typename Shape>
__device__ void sync_workers() {
  asm volatile("bar.sync 1, %0;" ::"n"(Shape::kWorkers) : "memory");
}

// A worker's results where they belong: those that are float32.
template <typename Shape, int kTokens>
__device__ __forceinline__ void put_results(const Product& a, int64_t row, int64_t token,
                                            float (&acc)[Shape::kTiles][kTokens / 2]) {
  const int first_token = threadIdx.x % 4 * 2;
#pragma unroll
  for (int m = 0; m < Shape::kTiles; ++m) {
    const int64_t r = row + row_in_block<Shape>(threadIdx.x, m);
    if (r >= a.w.rows) continue;
    float* y = a.y.f32(token + first_token) + r;
    auto left = static_cast<int>(min(int64_t{kTokens}, a.tokens - token)) - first_token;
#pragma unroll
    for (int i = 0; i < kTokens / 2; i += 4) {
      if (left > 0) a.put_two_wide(y, acc[m][i], acc[m][i + 2]);
      if (left > 1) a.put_two_wide(y + a.y.stride, acc[m][i + 1], acc[m][i + 3]);
      y += 8 * a.y.stride;
      left -= 8;
      asm volatile("" : "+l"(y), "+r"(left));  // one after the other
    }
  }
}

template <WeightFormat kFormat, bool kSegmented, int kMostTokens>
__global__ void __launch_bounds__(WholeShape<kMostTokens>::kThreads, 1)
    many_kernel(Product a, Tiles<kMostTokens> tiles) {
  using Shape = WholeShape<kMostTokens>;
  auto& shared = shared_of_block<WholeShared<kMostTokens, kSegmented>>();
  shared.init();
  const auto step = static_cast<int>(gridDim.x);
  const auto first = static_cast<int>(blockIdx.x);
  const int units = units_of<kFormat>(a);
  const int all_segments = kSegmented ? a.segments : 1;
  const Segments segments{all_segments, 0, all_segments};
  const auto tokens_of = [&](int tile) {
    return static_cast<int>(min(int64_t{kMostTokens}, a.tokens - tiles[tile].token));
  };
  if (Shape::multiplies()) {
    Shape::take_registers();
    WorkerPlace at;
    for (int tile = first; tile < tiles.count(); tile += step) {
      for_tokens<kMostTokens>(tokens_of(tile), [&](auto padded) {
        constexpr int kTokens = decltype(padded)::value;
        float acc[Shape::kTiles][kTokens / 2];
        multiply_many<kFormat, kTokens, kSegmented, true>(shared, at, units, segments, acc);
        if (a.wide()) {
          const auto [row, token] = tiles[tile];
          put_results<Shape, kTokens>(a, row, token, acc);
          return;
        }
        await_stored(shared, at);
        if constexpr (kSegmented) sync_workers<Shape>();  // no one's sums lie there any more
        keep_rows<kTokens>(shared, acc, [&](uint32_t pair) {
          return result_pair(mul(__uint_as_float(pair << 16), a.scale),
                             mul(__uint_as_float(pair & 0xFFFF0000u), a.scale));
        });
        hand_over(shared, at);
      });
    }
    return;
  }
  Shape::give_registers();
  const Helper helper = Shape::helper();
  if (helper == Helper::kBringsActivations) {
    if (threadIdx.x % 32 != 0) return;
    RingPlace at;
    constexpr int kBlocks = unit_columns(kFormat) / kBlockColumns;
    for (int tile = first; tile < tiles.count(); tile += step) {
      const auto [row, token] = tiles[tile];
      const int64_t apart = kTileTokens * a.width * int64_t{sizeof(uint16_t)};
      const int tokens = padded_tokens<kMostTokens>(tokens_of(tile));
      const uint8_t* from = activations_at(a, row, token);
      shared.bring_two(at, from, apart, 0, units * kBlocks, tokens);
    }
  } else if (helper == Helper::kBringsWeights) {
    RingPlace at;
    for (int tile = first; tile < tiles.count(); tile += step) {
      shared.bring(at, block_rows<kFormat, Shape>(a, tiles[tile].row),
                   segments.first_chunk<kFormat>(units), segments.last_chunk<kFormat>(units));
    }
    wait_copies<0>();
  } else if (!a.wide()) {
    uint32_t parity = 0;
    for (int tile = first; tile < tiles.count(); tile += step) {
      const auto [row, token] = tiles[tile];
      const int tokens = tokens_of(tile);
      const int rows = block_rows<kFormat, Shape>(a, row).fragments * 16;
      if (a.y.element == Element::kBf16) {
        auto* y = a.y.bf16(token) + row;
        store_rows(shared, parity, tokens, static_cast<uint32_t>(rows * sizeof(uint16_t)),
                   [&](int t) { return y + t * a.y.stride; });
      } else {
        auto* y = a.y.f32(token) + row;
        store_wide_rows(shared, parity, tokens, rows, [&](int t) { return y + t * a.y.stride; });
      }
    }
  }
}

template <WeightFormat kFormat, bool kSegmented, int kTokens>
void whole(const Product& a, cudaStream_t stream) {
  using Shape = WholeShape<kTokens>;
  constexpr int kBytes = shared_bytes<WholeShared<kTokens, kSegmented>>();
  const auto kernel = many_kernel<kFormat, kSegmented, kTokens>;
  static const int blocks =
      blocks_at_once(reinterpret_cast<const void*>(kernel), Shape::kThreads, kBytes);
  const Tiles<kTokens> tiles{static_cast<int>(blocks_for(a.w.rows, Tiles<kTokens>::kRows)),
                             static_cast<int>(blocks_for(a.tokens, kTokens))};
  kernel<<<std::min(blocks, tiles.count()), Shape::kThreads, kBytes, stream>>>(a, tiles);
}

template <WeightFormat kFormat, bool kSegmented>
void whole(const Product& a, cudaStream_t stream) {
  if (a.tokens > 128) {
    whole<kFormat, kSegmented, 256>(a, stream);
  } else {
    whole<kFormat, kSegmented, 128>(a, stream);
  }
}

}  // namespace

template <WeightFormat kFormat>
void linear_many(Launch& l, const LinearArgs& a) {
  const int64_t rows = (a.x.count + kTileTokens - 1) / kTileTokens * kTileTokens;
  const auto* x = store_activations<kFormat, Layout::kTiles>(l, a, rows);
  if (x == nullptr) return;
  const Product product = product_of(a, x);
  product.segments > 1 ? whole<kFormat, true>(product, l.stream)
                       : whole<kFormat, false>(product, l.stream);
}
template void linear_many<WeightFormat::kFp8Block>(Launch&, const LinearArgs&);
template void linear_many<WeightFormat::kBf16>(Launch&, const LinearArgs&);

}  // namespace tidemill::cuda
