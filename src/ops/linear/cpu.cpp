// Linear of the cpu backend: activations once, then rows or tokens over the threads.
#include <algorithm>
#include <cstring>

#include "base/formats.h"
#include "ops/cpu_backend.h"
#include "ops/linear/cpu_amx_shape.h"

namespace tidemill {
namespace {

bool has_kernel(const LinearArgs& a) {
  const Matrix& w = *a.w;
  return w.cols % kScaleBlock == 0 && w.format != WeightFormat::kFp8Row;
}

// What a unit computes: `rows` of the matrix by `tokens`.
struct Unit {
  int64_t rows;
  int64_t tokens;
};

// Some units per thread, so that nobody waits long for a slower one; larger for `few` tokens.
Unit row_unit(int64_t rows, int64_t tokens, int64_t threads, int64_t least_rows, int64_t few) {
  const int64_t share = rows / (8 * threads) / least_rows * least_rows;
  return {std::clamp(share, least_rows, tokens <= few ? 2 * kRowBlock : kRowBlock), kTokenBlock};
}

// Of more than two tiles of tokens. Many tokens, because widening a row takes as long as
// multiplying it by 50 to 70 of them; many rows, because they share what comes from L3, a chunk of
// the tokens' columns. But some units for every thread: then the fewest tokens are 64, two pairs of
// tiles.
Unit tile_unit(int64_t rows, int64_t tokens, int64_t threads) {
  const auto parts = [](int64_t n, int64_t size) { return (n + size - 1) / size; };
  Unit unit{kAmxUnitRows, kAmxTokens};
  const auto too_few = [&] {
    return parts(rows, unit.rows) * parts(tokens, unit.tokens) < kAmxUnitsPerThread * threads;
  };
  if (too_few()) unit.tokens /= 2;
  while (too_few() && unit.rows > kAmxRows) unit.rows /= 2;
  while (too_few() && unit.tokens > 64) unit.tokens /= 2;
  return unit;
}

// Of all that several threads see.
class Worst {
 public:
  void see(Activations kind) {
    Activations seen = worst_.load(std::memory_order_relaxed);
    while (kind > seen && !worst_.compare_exchange_weak(seen, kind, std::memory_order_relaxed)) {
    }
  }
  Activations get() const { return worst_.load(); }

 private:
  std::atomic<Activations> worst_ = Activations::kOrdinary;
};

}  // namespace

void widen_planes(const Matrix& w, int64_t row, int64_t begin, int64_t end, float* out) {
  Matrix part{.format = w.format, .rows = 1, .cols = end - begin};
  part.data =
      static_cast<const std::byte*>(w.data) + row * w.row_bytes() + begin * w.row_bytes() / w.cols;
  if (w.scales != nullptr) {
    const int64_t scale_row = w.format == WeightFormat::kFp8Block ? row / kScaleBlock : row;
    part.scales = w.scales + scale_row * w.scale_columns() + begin / kScaleBlock;
  }
  if (w.format == WeightFormat::kBf16) {  // every value is easy, and rows of junk are not so rare
    for (int64_t k = 0; k < part.cols; ++k) {
      uint16_t word;
      std::memcpy(&word, static_cast<const std::byte*>(part.data) + 2 * k, sizeof(word));
      out[k / 32 * 32 + (k % 2 == 0 ? 16 : 0) + k % 32 / 2] = bf16_to_float(word);
    }
    return;
  }
  reference::widen_row(part, 0, out);
  for (float* block = out; block < out + part.cols; block += 32) {
    float even[16];
    for (int64_t i = 0; i < 16; ++i) even[i] = block[2 * i];
    for (int64_t i = 0; i < 16; ++i) block[i] = block[2 * i + 1];
    std::copy(even, even + 16, block + 16);
  }
}

TokenRows CpuBackend::prepare(const Rows& x, bool quantise, Scratch& scratch, Activations& kind) {
  const int64_t stride = prepared_stride(x.width);
  std::byte* memory = scratch.bytes(x.count * stride);
  Worst worst;
  for_each_row(x.count, x.width, [&](int64_t t) {
    worst.see(kernels_.prepare(x.f32(t), x.width, quantise, memory + t * stride));
  });
  kind = worst.get();
  return {.data = memory, .stride = stride, .count = x.count};
}

TokenRows CpuBackend::prepare_tiles(const Rows& x, bool quantise, Activations& kind) {
  if (x.count == 1) return prepare(x, quantise, x_, kind);  // one token's tile is its row
  constexpr int64_t kColumns = 512;                         // of a unit: its rows stay in L1
  constexpr int64_t kRowBytes = kColumns * sizeof(uint16_t) + kTileLine;
  const int64_t stride = x.width * int64_t{sizeof(uint16_t)};
  std::byte* memory = packed_.bytes(x.count * stride);
  const int64_t tiles = (x.count + kTokenTile - 1) / kTokenTile;
  const int64_t parts = (x.width + kColumns - 1) / kColumns;
  Worst worst;
  for_each_unit(tiles * parts, x.count * x.width, [&](int64_t unit, int) {
    alignas(64) std::byte rows[kTokenTile * kRowBytes];
    const int64_t token = unit / parts * kTokenTile;
    const int64_t column = unit % parts * kColumns;
    const int64_t n = std::min(kColumns, x.width - column);
    const TokenRows tile{
        .data = rows, .stride = kRowBytes, .count = std::min(kTokenTile, x.count - token)};
    for (int64_t t = 0; t < tile.count; ++t) {
      worst.see(kernels_.prepare(x.f32(token + t) + column, n, quantise, rows + t * kRowBytes));
    }
    kernels_.pack(tile, n, memory + token * stride + column * tile.count * sizeof(uint16_t));
  });
  kind = worst.get();
  return {.data = memory, .stride = stride, .count = x.count};
}

TokenRows CpuBackend::pack(const TokenRows& rows, int64_t width, std::span<const int64_t> begin) {
  const int64_t tokens = begin.back();
  // A tile of one token is its row.
  const bool as_it_is = tokens == static_cast<int64_t>(begin.size()) - 1;
  if (!reads_tiles() || as_it_is) return rows;
  constexpr int64_t kColumns = 512;  // of a unit
  struct Tile {
    int64_t token, count;
  };
  std::vector<Tile> tiles;
  for (size_t g = 0; g + 1 < begin.size(); ++g) {
    for (int64_t t = begin[g]; t < begin[g + 1]; t += kTokenTile) {
      tiles.push_back({t, std::min(kTokenTile, begin[g + 1] - t)});
    }
  }
  const int64_t element = kernels_.activation_bytes;
  const int64_t stride = width * element;
  std::byte* memory = packed_.bytes(tokens * stride);
  const int64_t parts = (width + kColumns - 1) / kColumns;
  for_each_unit(static_cast<int64_t>(tiles.size()) * parts, tokens * width / 4,
                [&](int64_t unit, int) {
                  const Tile& tile = tiles[static_cast<size_t>(unit / parts)];
                  const int64_t column = unit % parts * kColumns;
                  TokenRows part = rows.part(tile.token, tile.count);
                  part.data += column * element;
                  kernels_.pack(part, std::min(kColumns, width - column),
                                memory + tile.token * stride + column * element * tile.count);
                });
  return {.data = memory, .stride = stride, .count = tokens};
}

void CpuBackend::linear(const LinearArgs& a) {
  if (!has_kernel(a)) return ReferenceBackend::linear(a);
  const Matrix& w = *a.w;
  MatmulArgs whole{.w = &w, .row_begin = 0, .row_end = w.rows};
  whole.y_stride = a.y.stride;
  whole.store = a.accumulate ? Store::kAdd : a.f32_output ? Store::kFloat : Store::kBf16;
  whole.scale = a.scale;
  const int64_t tokens = a.x.count;
  const int64_t threads = context_.team.size();
  constexpr int64_t kThreadCache = 2 << 20;  // L2, about
  whole.past_caches =
      !a.accumulate && tokens * w.rows * int64_t{sizeof(float)} > threads * kThreadCache;
  const bool tiles = w.format != WeightFormat::kF32 && reads_tiles();
  if (w.format == WeightFormat::kF32) {
    whole.x = {.data = reinterpret_cast<const std::byte*>(a.x.f32(0)),
               .stride = a.x.stride * int64_t{sizeof(float)},
               .count = tokens};
  } else {
    Activations kind;
    whole.x = tiles ? prepare_tiles(a.x, a.quantise_input, kind)
                    : prepare(a.x, a.quantise_input, x_, kind);
    if (kind == Activations::kUnfit) return ReferenceBackend::linear(a);
    whole.ordinary_x = kind == Activations::kOrdinary;
  }
  std::byte* scratch = thread_.bytes(threads * kMatmulScratch);

  const int64_t group_rows = w.rows / a.groups;
  const auto part = [&](int64_t row_begin, int64_t row_end, int64_t token_begin, int64_t token_end,
                        int rank) {
    for (int64_t row = row_begin; row < row_end;) {
      const int64_t group = row / group_rows;
      MatmulArgs m = whole;
      m.row_begin = row;
      m.row_end = row = std::min(row_end, (group + 1) * group_rows);
      m.x = whole.x.part(token_begin, token_end - token_begin);
      m.x.column = group * w.cols;
      m.y = a.y.f32(token_begin) + m.row_begin;
      m.scratch = scratch + rank * kMatmulScratch;
      kernels_.matmul(m);
    }
  };
  const int64_t bytes = w.rows * w.row_bytes() * ((tokens + 3) / 4);
  const bool many = tokens > 2 * kTileSide;
  const Unit size = tiles && many ? tile_unit(w.rows, tokens, threads)
                    : tiles       ? row_unit(w.rows, tokens, threads, kTileSide, tokens)
                                  : row_unit(w.rows, tokens, threads, 8, 8);
  const int64_t token_units = (tokens + size.tokens - 1) / size.tokens;
  const int64_t row_units = (w.rows + size.rows - 1) / size.rows;
  const auto first_token = [&](int64_t block) {
    if (!tiles) return tokens * block / token_units;
    const int64_t tile = (tokens + kTokenTile - 1) / kTokenTile * block / token_units;
    return std::min(tokens, tile * kTokenTile);  // no unit has more than size.tokens
  };
  const auto body = [&](int64_t unit, int rank) {
    const int64_t row = unit % row_units * size.rows;
    const int64_t block = unit / row_units;
    part(row, std::min(w.rows, row + size.rows), first_token(block), first_token(block + 1), rank);
  };
  for_each_unit(token_units, row_units, bytes, body);
}

}  // namespace tidemill
