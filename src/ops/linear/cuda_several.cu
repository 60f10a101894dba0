#include <algorithm>

#include "ops/cuda/bulk_copy.cuh"
#include "ops/cuda/wgmma_sizes.cuh"
#include "ops/linear/cuda_product.cuh"

// More tokens than one matrix instruction of a warp takes, fewer than give every multiprocessor
// tiles of its own. A block has one segment of up to 320 rows, so that there are enough blocks. Its
// warps copy their own rows as those of few_tokens.cuh do, none waiting for another, and widen them
// in registers; what the warps share, activations, lies in shared memory for the whole segment, or
// as much of it as there is room for.
//
// The segments' sums go through memory, and a kernel of its own adds them up. A cluster of blocks
// could add them in shared memory, but begins only where so many multiprocessors of one GPC are
// free at once: an H200 has room for 15 clusters of eight, not 16, so a grid of 128 blocks takes
// twice the time of one wave.

namespace tidemill::cuda {
namespace {

// Scales of a warp's 16 rows, which lie in one row of blocks: of 64 chunks, two in a lane's word,
// and of the next 64.
class WarpScales {
 public:
  // `scales`: the row's. Chunks [begin, end), each for next() in turn.
  __device__ WarpScales(const uint8_t* scales, int begin, int end)
      : words_(reinterpret_cast<const uint32_t*>(scales) + threadIdx.x % 32),
        lane_end_((end + 1) / 2 - static_cast<int>(threadIdx.x % 32)),
        byte_(0x4440 + ThreadRows<WeightFormat::kFp8Block>::scale_at(begin) % 4),
        now_(load(begin / 64 * 32)),
        next_(load((begin + 63) / 64 * 32)) {}
  // This thread's scale.
  __device__ uint32_t next(unsigned chunk) {
    if (chunk % 64 == 0) {
      now_ = next_;
      next_ = load(static_cast<int>(chunk) / 2 + 32);
    }
    const uint32_t scale = __byte_perm(__shfl_sync(0xFFFFFFFFu, now_, chunk / 2), 0, byte_);
    byte_ ^= 2;
    return scale;
  }

 private:
  __device__ uint32_t load(int first) const { return first < lane_end_ ? words_[first] : 0; }

  const uint32_t* words_;
  int lane_end_;
  uint32_t byte_;  // as __byte_perm selects it
  uint32_t now_;
  uint32_t next_;
};

// A warp's 16 rows of a segment, kDepth chunks on their way. Every thread copies what it reads
// itself. Rows 2 g and 2 g + 1 are at places g and g + 8 of fragments, so that results are pairs.
template <WeightFormat kFormat, int kDepth>
class RowStream {
 public:
  static constexpr bool kScaled = ThreadRows<kFormat>::kScaled;
  static constexpr int kPieces = 32 * kPieceBytes;  // of a row of each thread
  static constexpr int kSlotBytes = 2 * kPieces;
  static constexpr int kBytes = kDepth * kSlotBytes;

  // `memory`: this warp's; chunks [begin, end) of rows `row` on.
  __device__ RowStream(const Matrix& w, uint32_t memory, int64_t row, int begin, int end)
      : scales_(kScaled ? w.scales + row / 32 * (w.cols / 32) : nullptr, kScaled ? begin : 0,
                kScaled ? end : 0),
        coming_(begin),
        end_(end) {
    const int lane = threadIdx.x % 32;
    row_bytes_ = ThreadRows<kFormat>::row_bytes(w.cols);
    pieces_ = static_cast<const uint8_t*>(w.data) + (row + lane / 4 * 2) * row_bytes_ +
              lane % 4 * kPieceBytes + int64_t{begin} * kChunkBytes;
    first_ = memory + lane * kPieceBytes;
    asm volatile("" : "+r"(first_));  // computed once
    for (int i = 0; i < kDepth; ++i) issue(first_ + i * kSlotBytes);
    slot_ = first_;
  }
  // `chunk`, the next one.
  __device__ void next(Chunk<kFormat>& now, int chunk) {
    wait_copies<kDepth - 1>();
    now.piece[0] = load_shared(slot_);
    now.piece[1] = load_shared(slot_ + kPieces);
    if constexpr (kScaled) now.scale[0] = now.scale[1] = scales_.next(static_cast<unsigned>(chunk));
    issue(slot_);  // after it has been read: shared memory is accessed in order
    slot_ += kSlotBytes;
    if (slot_ == first_ + kBytes) slot_ = first_;
  }

 private:
  __device__ void issue(uint32_t slot) {
    if (coming_ < end_) {
      copy_async<16>(slot, pieces_);
      copy_async<16>(slot + kPieces, pieces_ + row_bytes_);
      pieces_ += kChunkBytes;
      ++coming_;
    }
    commit_copies();
  }

  WarpScales scales_;
  const uint8_t* pieces_;
  int64_t row_bytes_;
  int coming_;
  int end_;
  uint32_t first_;
  uint32_t slot_;
};

// Whose turn it is in a ring of stages, each with a unit of activations.
struct Turn {
  int stage = 0;
  uint32_t parity = 0;

  __device__ void advance(int stages) {
    if (++stage == stages) stage = 0, parity ^= 1;
  }
};
// Thread 0 fills a stage anew so many units later: by then others, too, have read it, as a rule.
constexpr int kBehind = 2;

// A block: warpgroups that multiply 64 rows each by so many tokens.
template <WeightFormat kFormat, int kGroups, int kTokens>
struct Block {
  static constexpr int kRows = 64 * kGroups;
  static constexpr int kWarps = 4 * kGroups;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kDepth = kTokens > 16 ? 3 : 4;
  // Of a multiprocessor, where there is shared memory for them.
  static constexpr int kMostBlocks = std::max(1, (kTokens > 32 ? 4 : 6) / kGroups);
  using Stream = RowStream<kFormat, kDepth>;

  // Shared memory: stages of activations, then chunks of weights.
  static constexpr int kMostStages = 32;
  static constexpr int kStageBytes = kTokens * kLineBytes;
  static constexpr int kWeightBytes = kWarps * Stream::kBytes;
  static constexpr int kAlignment = 1024;  // that wgmma() wants of a stage
  static constexpr int kOwnBytes = 2 * kMostStages * int{sizeof(Barrier)};
  static constexpr int kReserved = 1 << 10;  // of a block's

  static constexpr int bytes(int stages) {
    return kAlignment - 1 + stages * kStageBytes + kWeightBytes;
  }
  // So that so many blocks are at work on a multiprocessor, or as many as can be.
  static constexpr int most_bytes(int blocks) {
    return (228 << 10) / blocks - kReserved - kOwnBytes;
  }
  static constexpr int most_stages(int blocks) {
    return std::min(kMostStages,
                    std::max(kBehind + 1, (most_bytes(blocks) - bytes(0)) / kStageBytes));
  }
};

// The registers were read until here, so nothing else is in them.
template <int kCount>
__device__ __forceinline__ void keep(const uint32_t (&a)[kCount][4]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    asm volatile("" ::"r"(a[i][0]), "r"(a[i][1]), "r"(a[i][2]), "r"(a[i][3]));
  }
}

// Grid (segments, tiles of rows, tiles of tokens). a.x has layout kTiles. With several segments
// their sums go to sums[segment][token][row].
template <WeightFormat kFormat, int kGroups, int kTokens>
__global__ void __launch_bounds__(Block<kFormat, kGroups, kTokens>::kThreads,
                                  Block<kFormat, kGroups, kTokens>::kMostBlocks)
    several_kernel(Product a, int stages, float* sums) {
  using Block = Block<kFormat, kGroups, kTokens>;
  extern __shared__ uint8_t memory[];
  __shared__ Barrier full[Block::kMostStages];
  __shared__ Barrier empty[Block::kMostStages];
  allow_next();
  constexpr int kChunks = unit_columns(kFormat) / chunk_columns(kFormat);
  const auto units = static_cast<int>(a.w.cols / unit_columns(kFormat));
  const auto segment = static_cast<int>(blockIdx.x);
  const int begin = segment_begin(segment, units, a.segments);
  const int end = segment_begin(segment + 1, units, a.segments);
  const int64_t row_of_block = int64_t{blockIdx.y} * Block::kRows;
  const int64_t token = int64_t{blockIdx.z} * kTokens;
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  uint8_t* stage = memory + (-reinterpret_cast<uintptr_t>(memory) & (Block::kAlignment - 1));
  const auto weights =
      static_cast<uint32_t>(__cvta_generic_to_shared(stage + stages * Block::kStageBytes));
  // Warps behind the last row multiply that which there is.
  const int64_t row = row_of_block + warp * 16;
  using Stream = typename Block::Stream;
  Stream stream(a.w, weights + warp * Stream::kBytes, min(row, a.w.rows - 16), begin * kChunks,
                end * kChunks);
  const int64_t line = token % kTileTokens;
  const int64_t group = row_of_block / a.group_rows;
  const auto* x = reinterpret_cast<const uint8_t*>(a.x + (token - line) * a.width) +
                  group * a.w.cols * (kTileTokens * int64_t{sizeof(uint16_t)}) +
                  (int64_t{begin} * kTileTokens + line) * kLineBytes;
  if (threadIdx.x == 0) {
    for (int i = 0; i < stages; ++i) {
      full[i].init(1);
      empty[i].init(Block::kWarps);
    }
    fence_barriers();
  }
  __syncthreads();
  await_previous();
  Turn filling;
  int coming = begin;
  const auto fill = [&] {
    empty[filling.stage].wait(filling.parity ^ 1);
    full[filling.stage].arrive_expecting(Block::kStageBytes);
    bulk_copy(stage + filling.stage * Block::kStageBytes, x, Block::kStageBytes,
              full[filling.stage]);
    x += kTileTokens * kLineBytes;
    filling.advance(stages);
    ++coming;
  };
  while (threadIdx.x == 0 && coming < min(end, begin + stages)) fill();
  __syncwarp();
  float acc[kTokens / 2] = {};
  constexpr int kParts = chunk_columns(kFormat) / 16;  // of a chunk
  constexpr int kStep = 2;                             // parts that are multiplied at once
  uint32_t w[2][kStep][4] = {};
  Turn at;
  int before = 0;  // the stage
  const bool ring = stages < end - begin;
  const uint64_t tiles = swizzled_tile(stage);
#pragma unroll 1
  for (int unit = begin; unit < end; ++unit) {
    const uint64_t b = tiles + at.stage * (Block::kStageBytes / 16);
    Chunk<kFormat> now;
    bool large = false;
#pragma unroll
    for (int i = 0; i < kChunks * kParts; i += kStep) {
      if (i % kParts == 0) {
        stream.next(now, unit * kChunks + i / kParts);
        large = Stream::kScaled && __any_sync(0xFFFFFFFFu, now.large());
      }
      auto& mine = w[i / kStep % 2];
#pragma unroll
      for (int part = 0; part < kStep; ++part) {
        now.fragment(i % kParts + part, mine[part]);
        if (large) now.enlarge(mine[part]);
      }
      if (i == 0) full[at.stage].wait(at.parity);
      wgmma_fence();
#pragma unroll
      for (int part = 0; part < kStep; ++part) wgmma(acc, mine[part], b + (i + part) * 2);
      wgmma_commit();
      wgmma_wait<1>();
      keep(w[(i / kStep + 1) % 2]);
    }
    if (ring) {
      // For the whole warp, which has waited for what read the stage.
      if (lane == 0 && unit > begin) empty[before].arrive();
      if (threadIdx.x == 0 && unit >= begin + kBehind && coming < end) fill();
      __syncwarp();
    }
    before = at.stage;
    at.advance(stages);
  }
  wgmma_wait<0>();
  wgmma_done(acc);
  if (row >= a.w.rows) return;
  const int64_t r = row + lane / 4 * 2;
  const int64_t first = token + lane % 4 * 2;
  const int64_t tokens = a.tokens - first;
  const auto put_all = [&](const auto& put) {
#pragma unroll
    for (int i = 0; i < kTokens / 4; ++i) {
      const int t = i / 2 * 8 + i % 2;
      const int d = i / 2 * 4 + i % 2;
      if (t < tokens) put(t, acc[d], acc[d + 2]);
    }
  };
  if (a.segments > 1) {
    float* to = sums + (segment * a.tokens + first) * a.w.rows + r;
    put_all([&](int64_t t, float one, float other) {
      *reinterpret_cast<float2*>(to + t * a.w.rows) = {one, other};
    });
  } else {
    a.put_pairs(first, r, put_all);
  }
}

// Adds up the segments, four rows of a token a thread. Grid (fours, tokens).
constexpr int kAddThreads = 128;

__global__ void __launch_bounds__(kAddThreads)
    add_segments_kernel(Product a, int units, const float* sums) {
  allow_next();
  await_previous();
  const int64_t row = (int64_t{blockIdx.x} * kAddThreads + threadIdx.x) * 4;
  const int64_t token = blockIdx.y;
  if (row >= a.w.rows) return;
  float4 of[kMostSegments];
#pragma unroll
  for (int s = 0; s < kMostSegments; ++s) {
    if (s >= a.segments) break;
    of[s] = *reinterpret_cast<const float4*>(sums + (s * a.tokens + token) * a.w.rows + row);
  }
  float4 total = {};
  bool first = true;
#pragma unroll
  for (int s = 0; s < kMostSegments; ++s) {
    if (s >= a.segments) break;
    if (segment_begin(s, units, a.segments) == segment_begin(s + 1, units, a.segments)) continue;
    total.x = first ? of[s].x : add(total.x, of[s].x);
    total.y = first ? of[s].y : add(total.y, of[s].y);
    total.z = first ? of[s].z : add(total.z, of[s].z);
    total.w = first ? of[s].w : add(total.w, of[s].w);
    first = false;
  }
  a.put_two(token, row, total.x, total.y);
  a.put_two(token, row + 2, total.z, total.w);
}

// False: rows of a group do not make whole blocks, or, if `at_once`, not all blocks are at work at
// once with as many stages as there is room for.
template <WeightFormat kFormat, int kTokens, int kGroups>
bool several(Launch& l, const Product& a, float* sums, bool at_once) {
  using Block = Block<kFormat, kGroups, kTokens>;
  if (a.group_rows != a.w.rows && a.group_rows % Block::kRows != 0) return false;
  const auto units = static_cast<int>(a.w.cols / unit_columns(kFormat));
  const int stages = std::min(Block::most_stages(at_once ? 1 : Block::kMostBlocks),
                              static_cast<int>(blocks_for(units, a.segments)));
  const int bytes = Block::bytes(stages);
  const dim3 grid(static_cast<unsigned>(a.segments), blocks_for(a.w.rows, Block::kRows),
                  blocks_for(a.tokens, kTokens));
  int blocks = Block::kMostBlocks;
  while (blocks > 1 && bytes > Block::most_bytes(blocks)) --blocks;
  if (at_once && int64_t{grid.x} * grid.y * grid.z > blocks * multiprocessors()) return false;
  const auto kernel = several_kernel<kFormat, kGroups, kTokens>;
  static const cudaError_t allowed = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Block::most_bytes(1));
  if (allowed == cudaSuccess) {
    launch_early(kernel, grid, Block::kThreads, bytes, l.stream, a, stages, sums);
  }
  return true;
}

// As few rows a block as let all blocks be at work at once. Otherwise as many as there can be, so
// that few blocks read the same activations; of 128 tokens 128 rows, so that two blocks share a
// multiprocessor: their sums leave five warpgroups too few registers.
template <WeightFormat kFormat, int kTokens>
bool several(Launch& l, const Product& a, float* sums) {
  if (several<kFormat, kTokens, 1>(l, a, sums, true) ||
      several<kFormat, kTokens, 2>(l, a, sums, true) ||
      several<kFormat, kTokens, 4>(l, a, sums, true)) {
    return true;
  }
  if constexpr (kTokens < 128) {
    if (several<kFormat, kTokens, 5>(l, a, sums, false) ||
        several<kFormat, kTokens, 4>(l, a, sums, false)) {
      return true;
    }
  }
  return several<kFormat, kTokens, 2>(l, a, sums, false) ||
         several<kFormat, kTokens, 1>(l, a, sums, false);
}

}  // namespace

template <WeightFormat kFormat>
void linear_several(Launch& l, const LinearArgs& args) {
  Product a = product_of(args, nullptr);
  const int64_t rows = (a.tokens + kTileTokens - 1) / kTileTokens * kTileTokens;
  a.x = store_activations<kFormat, Layout::kTiles>(l, args, rows);
  if (a.x == nullptr) return;
  float* sums = nullptr;
  if (a.segments > 1) {
    const int64_t floats = a.segments * a.tokens * a.w.rows;
    sums = static_cast<float*>(l.sums.take(floats * int64_t{sizeof(float)}, l.stream));
    if (sums == nullptr) return;
  }
  if (a.tokens <= 16) {
    several<kFormat, 16>(l, a, sums);
  } else if (a.tokens <= 32) {
    several<kFormat, 32>(l, a, sums);
  } else if (a.tokens <= 64) {
    several<kFormat, 64>(l, a, sums);
  } else {
    several<kFormat, 128>(l, a, sums);
  }
  if (a.segments > 1) {
    const dim3 grid(blocks_for(a.w.rows, 4 * kAddThreads), static_cast<unsigned>(a.tokens));
    launch_early(add_segments_kernel, grid, kAddThreads, 0, l.stream, a,
                 static_cast<int>(a.w.cols / unit_columns(kFormat)), sums);
  }
}
template void linear_several<WeightFormat::kFp8Block>(Launch&, const LinearArgs&);
template void linear_several<WeightFormat::kBf16>(Launch&, const LinearArgs&);

}  // namespace tidemill::cuda
