// The kernels of AMX on tile registers in memory, for machines with AVX-512 BF16 only. Nothing but
// the table may leave the file, so it includes no test framework: see simd/avx512.h.
#include "ops/linear/emulated_amx.h"

#include "ops/linear/cpu_amx_kernel.h"

namespace tidemill {
namespace {

// As measured on a CPU that has them (five million sums): products of even and of odd elements in
// two chains from 0, fused, their sum added to C; subnormal numbers are 0.
struct TileFile {
  TileShape shape{0, 0};
  bool configured = false;
  alignas(64) std::byte line[8][kTileSide][kTileLine];
};
thread_local TileFile tiles;

struct EmulatedAmx {
  static float flushed(float x) {
    return __builtin_fabsf(x) < 0x1p-126f ? __builtin_copysignf(0, x) : x;
  }
  static float element(const std::byte* p) {
    uint16_t word;
    __builtin_memcpy(&word, p, sizeof(word));
    return flushed(__builtin_bit_cast(float, uint32_t{word} << 16));
  }

  static void configure(const TileShape& shape) {
    tiles.shape = shape;
    tiles.configured = true;
    __builtin_memset(tiles.line, 0, sizeof(tiles.line));
  }
  static void release() { tiles.configured = false; }
  template <int kTile>
  static void zero() {
    __builtin_memset(tiles.line[kTile], 0, sizeof(tiles.line[kTile]));
  }
  template <int kTile>
  static void load(const void* p, int64_t stride) {
    zero<kTile>();
    for (int row = 0; row < tiles.shape.rows[kTile]; ++row) {
      __builtin_memcpy(tiles.line[kTile][row], static_cast<const std::byte*>(p) + row * stride,
                       tiles.shape.row_bytes[kTile]);
    }
  }
  template <int kTile>
  static void store(void* p, int64_t stride) {
    for (int row = 0; row < tiles.shape.rows[kTile]; ++row) {
      __builtin_memcpy(static_cast<std::byte*>(p) + row * stride, tiles.line[kTile][row],
                       tiles.shape.row_bytes[kTile]);
    }
  }
  template <int kC, int kA, int kB>
  static void multiply() {
    if (!tiles.configured) __builtin_trap();
    const int columns = tiles.shape.row_bytes[kC] / 4;
    for (int m = 0; m < tiles.shape.rows[kC]; ++m) {
      for (int n = 0; n < columns; ++n) {
        float even = 0;
        float odd = 0;
        for (int k = 0; k < kTileSide; ++k) {
          const std::byte* a = tiles.line[kA][m] + 4 * k;
          const std::byte* b = tiles.line[kB][k] + 4 * n;
          even = flushed(__builtin_fmaf(element(a), element(b), even));
          odd = flushed(__builtin_fmaf(element(a + 2), element(b + 2), odd));
        }
        float c;
        std::byte* to = tiles.line[kC][m] + 4 * n;
        __builtin_memcpy(&c, to, sizeof(c));
        c = flushed(flushed(c) + flushed(even + odd));
        __builtin_memcpy(to, &c, sizeof(c));
      }
    }
  }
};

// The registers are nobody's between two calls.
void matmul(const MatmulArgs& a) {
  if (tiles.configured) __builtin_trap();
  matmul_tiles<EmulatedAmx>(a);
  if (tiles.configured) __builtin_trap();
}

}  // namespace

const CpuKernels& emulated_amx_kernels() {
  static const CpuKernels kKernels = [] {
    CpuKernels kernels = avx512bf16_kernels();
    kernels.name = "emulated cpu-amx";
    kernels.order = ProductOrder::kTiles;
    kernels.matmul = matmul;
    kernels.pack = pack_tokens;
    return kernels;
  }();
  return kKernels;
}

}  // namespace tidemill
