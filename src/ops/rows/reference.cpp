#include "ops/reference.h"

#include <cassert>
#include <cstring>

#include "base/formats.h"

namespace tidemill::reference {
namespace {

// Two codes per byte, low nibble first, then one scale byte per `block` values.
template <typename Scale, typename Decode>
void pack_nibbles(const float* x, int64_t width, int64_t block, Scale scale_of, Decode decode,
                  uint8_t* out) {
  uint8_t* scales = out + width / 2;
  for (int64_t b = 0; b < width / block; ++b) {
    scales[b] = scale_of(x + b * block);
    const float scale = decode(scales[b]);
    for (int64_t k = b * block; k < (b + 1) * block; k += 2) {
      out[k / 2] = static_cast<uint8_t>(q4_code(x[k], scale) | (q4_code(x[k + 1], scale) << 4));
    }
  }
}

template <typename Decode>
void unpack_nibbles(const uint8_t* row, int64_t width, int64_t block, Decode decode, float* out) {
  const uint8_t* scales = row + width / 2;
  for (int64_t k = 0; k < width; ++k) {
    const uint8_t code = (k % 2 == 0) ? row[k / 2] & 15u : row[k / 2] >> 4;
    out[k] = e2m1_to_float(code) * decode(scales[k / block]);
  }
}

}  // namespace

void pack_row(const RowFormat& format, const float* x, std::byte* row) {
  auto* out = reinterpret_cast<uint8_t*>(row);
  switch (format.kind) {
    case RowKind::kF32:
      std::memcpy(row, x, static_cast<size_t>(format.width) * sizeof(float));
      return;
    case RowKind::kQ8:
      for (int64_t b = 0; b < format.width / kScaleBlock; ++b) {
        const uint8_t byte = q8_scale(x + b * kScaleBlock);
        out[format.width + b] = byte;
        const float scale = e8m0_to_float(byte);
        for (int64_t k = b * kScaleBlock; k < (b + 1) * kScaleBlock; ++k) {
          out[k] = q8_code(x[k], scale);
        }
      }
      return;
    case RowKind::kQ4Entry:
      pack_nibbles(x, format.width, kEntryBlock, q4_entry_scale, e4m3_to_float, out);
      return;
    case RowKind::kQ4Index:
      pack_nibbles(x, format.width, kScaleBlock, q4_index_scale, e8m0_to_float, out);
      return;
  }
}

void unpack_row(const RowFormat& format, const std::byte* row, float* out) {
  const auto* in = reinterpret_cast<const uint8_t*>(row);
  switch (format.kind) {
    case RowKind::kF32:
      std::memcpy(out, row, static_cast<size_t>(format.width) * sizeof(float));
      return;
    case RowKind::kQ8:
      for (int64_t k = 0; k < format.width; ++k) {
        out[k] = e4m3_to_float(in[k]) * e8m0_to_float(in[format.width + k / kScaleBlock]);
      }
      return;
    case RowKind::kQ4Entry:
      unpack_nibbles(in, format.width, kEntryBlock, e4m3_to_float, out);
      return;
    case RowKind::kQ4Index:
      unpack_nibbles(in, format.width, kScaleBlock, e8m0_to_float, out);
      return;
  }
}

void store_rows(const Context& context, const StoreRowsArgs& a) {
  assert(a.format.width == a.x.width);
  context.team.parallel_for(a.x.count, 8, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      if (a.offset[t] >= 0) pack_row(a.format, a.x.f32(t), a.base + a.add + a.offset[t]);
    }
  });
}

void scatter_rows(const Context&, const ScatterRowsArgs& a) {
  for (int64_t t = 0; t < a.count; ++t) {
    if (a.offset[t] < 0) continue;
    std::memcpy(a.base + a.add + a.offset[t], a.rows + t * a.row_bytes,
                static_cast<size_t>(a.row_bytes));
  }
}

void round_rows(const Context& context, const RoundRowsArgs& a) {
  if (a.kind == RowKind::kF32) return;
  const RowFormat format{a.kind, a.group};
  context.team.parallel_for(a.x.count, 8, [&](int64_t begin, int64_t end) {
    std::vector<std::byte> packed(static_cast<size_t>(format.bytes()));
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t k = 0; k < a.x.width; k += a.group) {
        pack_row(format, a.x.f32(t) + k, packed.data());
        unpack_row(format, packed.data(), a.x.f32(t) + k);
      }
    }
  });
}

void select_rows(const Context&, const SelectRowsArgs& a) {
  for (int64_t i = 0; i < a.out.count; ++i) {
    std::memmove(a.out.f32(i), a.in.f32(a.row[i]),
                 static_cast<size_t>(a.out.width) * sizeof(float));
  }
}

void repeat_row(const Context&, const RepeatRowArgs& a) {
  for (int64_t i = 0; i < a.out.count; ++i) {
    std::memcpy(a.out.f32(i), a.row.f32(0), static_cast<size_t>(a.out.width) * sizeof(float));
  }
}

}  // namespace tidemill::reference
