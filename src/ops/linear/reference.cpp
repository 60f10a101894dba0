#include "ops/reference.h"

#include <cstring>
#include <vector>

#include "base/formats.h"
#include "ops/canonical.h"

namespace tidemill::reference {
namespace {

template <typename T>
T load(const void* base, int64_t index) {  // safetensors data may be unaligned
  T value;
  std::memcpy(&value, static_cast<const std::byte*>(base) + index * int64_t{sizeof(T)}, sizeof(T));
  return value;
}

}  // namespace

void widen_row(const Matrix& w, int64_t row, float* out) {
  const int64_t first = row * w.cols;
  switch (w.format) {
    case WeightFormat::kF32:
      for (int64_t k = 0; k < w.cols; ++k) out[k] = load<float>(w.data, first + k);
      return;
    case WeightFormat::kBf16:
      for (int64_t k = 0; k < w.cols; ++k) {
        out[k] = bf16_to_float(load<uint16_t>(w.data, first + k));
      }
      return;
    case WeightFormat::kFp8Block:
    case WeightFormat::kFp8Row: {
      const int64_t scale_row = w.format == WeightFormat::kFp8Row ? row : row / kScaleBlock;
      const uint8_t* scales = w.scales + scale_row * w.scale_columns();
      for (int64_t k = 0; k < w.cols; ++k) {
        out[k] = e4m3_to_float(load<uint8_t>(w.data, first + k)) *
                 e8m0_to_float(scales[k / kScaleBlock]);
      }
      return;
    }
    case WeightFormat::kFp4Row: {
      const uint8_t* scales = w.scales + row * w.scale_columns();
      for (int64_t k = 0; k < w.cols; ++k) {
        const uint8_t pair = load<uint8_t>(w.data, (first + k) / 2);
        const uint8_t code = (k % 2 == 0) ? pair & 15u : pair >> 4;  // low nibble = even column
        out[k] = e2m1_to_float(code) * e8m0_to_float(scales[k / kScaleBlock]);
      }
      return;
    }
  }
}

void quantise_activations(const Context& context, const float* x, int64_t n, float* out) {
  if (!context.rounding.activations) {
    std::memmove(out, x, static_cast<size_t>(n) * sizeof(float));
    return;
  }
  for (int64_t k = 0; k < n; k += kScaleBlock) q8_round(x + k, out + k);
}

void linear(const Context& context, const LinearArgs& a) {
  const Matrix& w = *a.w;
  const int64_t tokens = a.x.count;
  std::vector<float> x(static_cast<size_t>(tokens * a.x.width));
  for (int64_t t = 0; t < tokens; ++t) {
    float* row = x.data() + t * a.x.width;
    if (a.quantise_input) {
      quantise_activations(context, a.x.f32(t), a.x.width, row);
    } else {
      std::memcpy(row, a.x.f32(t), static_cast<size_t>(a.x.width) * sizeof(float));
    }
  }
  const int64_t group_rows = w.rows / a.groups;
  const bool tiles = context.order == ProductOrder::kTiles;
  const auto product = w.format == WeightFormat::kF32 ? dot : tiles ? dot_tiles : dot_pairs;
  context.team.parallel_for(w.rows, 8, [&](int64_t begin, int64_t end) {
    std::vector<float> weights(static_cast<size_t>(w.cols));
    for (int64_t n = begin; n < end; ++n) {
      widen_row(w, n, weights.data());
      const int64_t offset = n / group_rows * w.cols;
      for (int64_t t = 0; t < tokens; ++t) {
        const float y = product(x.data() + t * a.x.width + offset, weights.data(), w.cols);
        float& out = a.y.f32(t)[n];
        if (a.accumulate) {
          out += y;
        } else if (a.f32_output) {
          out = y;
        } else {
          out = context.bf16(context.bf16(y) * a.scale);
        }
      }
    }
  });
}

}  // namespace tidemill::reference
