// Inputs of the op tests and benchmarks: values in the ranges of a real model, owned views.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "base/formats.h"
#include "ops/backend.h"

namespace tidemill {

// A matrix of activations that owns its memory; the stride leaves a gap between rows.
struct OwnedRows {
  std::vector<float> data;
  int64_t count = 0;
  int64_t width = 0;
  int64_t stride = 0;

  OwnedRows(int64_t rows, int64_t columns, int64_t gap = 16)
      : data(static_cast<size_t>(rows * (columns + gap)), -7.0f),
        count(rows),
        width(columns),
        stride(columns + gap) {}
  Rows view() { return {data.data(), count, width, stride}; }
  Rows row(int64_t t) { return {data.data() + t * stride, 1, width, stride}; }
};

// Weights that own their memory, one byte off alignment as in a checkpoint.
struct OwnedMatrix {
  std::vector<uint8_t> data;
  std::vector<uint8_t> scales;
  Matrix view;
};

class TestInputs {
 public:
  explicit TestInputs(uint64_t seed) : random_(seed) {}

  int64_t below(int64_t n) { return std::uniform_int_distribution<int64_t>(0, n - 1)(random_); }
  float uniform(float low, float high) {
    return std::uniform_real_distribution<float>(low, high)(random_);
  }
  float normal(float deviation) { return std::normal_distribution<float>(0, deviation)(random_); }
  std::vector<float> normals(int64_t n, float deviation);
  std::vector<uint16_t> bf16_normals(int64_t n, float mean, float deviation);

  // bf16 values: normal with a few outliers 50 times as large, zeros and tiny ones.
  OwnedRows activations(int64_t rows, int64_t width, float deviation = 1.0f);
  // Scale bytes around 2^-7, E4M3 codes without NaN.
  OwnedMatrix matrix(WeightFormat format, int64_t rows, int64_t cols);
  // The same with scale bytes from this list only.
  OwnedMatrix matrix(WeightFormat format, int64_t rows, int64_t cols,
                     const std::vector<uint8_t>& scale_bytes);

 private:
  std::mt19937_64 random_;
};

inline std::vector<float> TestInputs::normals(int64_t n, float deviation) {
  std::vector<float> values(static_cast<size_t>(n));
  for (float& value : values) value = normal(deviation);
  return values;
}

inline std::vector<uint16_t> TestInputs::bf16_normals(int64_t n, float mean, float deviation) {
  std::vector<uint16_t> values(static_cast<size_t>(n));
  for (uint16_t& value : values) value = bf16_from_float(mean + normal(deviation));
  return values;
}

inline OwnedRows TestInputs::activations(int64_t rows, int64_t width, float deviation) {
  OwnedRows result(rows, width);
  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t k = 0; k < width; ++k) {
      float value = normal(deviation);
      switch (below(64)) {
        case 0:
          value *= 50;
          break;
        case 1:
          value = 0;
          break;
        case 2:
          value *= 1e-6f;
          break;
        default:
          break;
      }
      result.data[static_cast<size_t>(t * result.stride + k)] = round_bf16(value);
    }
  }
  return result;
}

inline OwnedMatrix TestInputs::matrix(WeightFormat format, int64_t rows, int64_t cols) {
  return matrix(format, rows, cols, {117, 118, 119, 120, 121});
}

inline OwnedMatrix TestInputs::matrix(WeightFormat format, int64_t rows, int64_t cols,
                                      const std::vector<uint8_t>& scale_bytes) {
  OwnedMatrix result;
  result.view = {.format = format, .rows = rows, .cols = cols, .data = nullptr, .scales = nullptr};
  const auto bytes = static_cast<size_t>(rows * result.view.row_bytes());
  result.data.resize(bytes + 1);
  uint8_t* data = result.data.data() + 1;
  switch (format) {
    case WeightFormat::kF32: {
      const std::vector<float> values = normals(rows * cols, 0.05f);
      std::memcpy(data, values.data(), bytes);
      break;
    }
    case WeightFormat::kBf16: {
      const std::vector<uint16_t> values = bf16_normals(rows * cols, 0, 0.05f);
      std::memcpy(data, values.data(), bytes);
      break;
    }
    case WeightFormat::kFp4Row:
      for (size_t i = 0; i < bytes; ++i) data[i] = static_cast<uint8_t>(below(256));
      break;
    case WeightFormat::kFp8Block:
    case WeightFormat::kFp8Row:
      for (size_t i = 0; i < bytes; ++i) data[i] = e4m3_from_float(normal(20));
      break;
  }
  if (format != WeightFormat::kF32 && format != WeightFormat::kBf16) {
    const int64_t scale_rows = format == WeightFormat::kFp8Block ? (rows + 31) / 32 : rows;
    result.scales.resize(static_cast<size_t>(scale_rows * result.view.scale_columns()));
    for (uint8_t& scale : result.scales) {
      scale = scale_bytes[static_cast<size_t>(below(static_cast<int64_t>(scale_bytes.size())))];
    }
    result.view.scales = result.scales.data();
  }
  result.view.data = data;
  return result;
}

// The reference backend on one thread.
inline Backend& reference_backend(ProductOrder order = ProductOrder::kPairLanes) {
  static ThreadTeam team(1);
  static const std::unique_ptr<Backend> backends[] = {
      make_reference_backend(team), make_reference_backend(team, Rounding{}, ProductOrder::kTiles)};
  return *backends[static_cast<size_t>(order)];
}

}  // namespace tidemill
