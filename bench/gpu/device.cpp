#include "device.h"

#include <fmt/core.h>

#include <cstdlib>

namespace tidemill::gpu {

void require(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  fmt::print(stderr, "{}: {} ({})\n", what, cudaGetErrorString(error), cudaGetErrorName(error));
  std::exit(1);
}

Memory allocate(int64_t bytes) {
  void* memory = nullptr;
  require(cudaMalloc(&memory, static_cast<size_t>(bytes)), "memory of the device");
  return {static_cast<std::byte*>(memory), [](std::byte* p) { cudaFree(p); }};
}

Memory upload(const void* data, int64_t bytes) {
  Memory memory = allocate(bytes);
  require(cudaMemcpy(memory.get(), data, static_cast<size_t>(bytes), cudaMemcpyHostToDevice),
          "upload");
  // Small ones may still be on their way, and a stream that does not block would not wait for them.
  require(cudaStreamSynchronize(nullptr), "upload");
  return memory;
}

double size_of(const Rows& rows) {
  return static_cast<double>(rows.count * rows.width * bytes_of(rows.element));
}

DeviceRows empty_rows(int64_t count, int64_t width, Element element) {
  Memory memory = allocate(count * width * bytes_of(element));
  void* data = memory.get();
  return {std::move(memory), {data, count, width, width, element}};
}

DeviceRows activations(int64_t count, int64_t width, float deviation, Element element) {
  static uint64_t seed = 0;
  DeviceRows rows = empty_rows(count, width, element);
  fill_activations(rows.view.data, element, count * width, deviation, ++seed);
  return rows;
}

int64_t bytes_of(const Matrix& m) {
  int64_t scale_rows = 0;
  if (m.format == WeightFormat::kFp8Block) scale_rows = (m.rows + 31) / 32;
  if (m.format == WeightFormat::kFp8Row || m.format == WeightFormat::kFp4Row) scale_rows = m.rows;
  return m.rows * m.row_bytes() + scale_rows * m.scale_columns();
}

DeviceMatrix weights(WeightFormat format, int64_t rows, int64_t cols) {
  static uint64_t seed = uint64_t{1} << 32;
  DeviceMatrix m;
  m.view = {.format = format, .rows = rows, .cols = cols, .data = nullptr, .scales = nullptr};
  const int64_t codes = rows * m.view.row_bytes();
  // As the loader places them: tensors begin at multiples of 256 bytes, and a vector may be read
  // beyond their end.
  const int64_t scales_at = (codes + 64 + 255) / 256 * 256;
  const int64_t scales = bytes_of(m.view) - codes;
  m.memory = allocate(scales_at + scales + 64);
  uint16_t keep = 0xFFFF;
  uint16_t set = 0;
  switch (format) {
    case WeightFormat::kF32:
    case WeightFormat::kBf16:  // 2^-17 to 2^-2; of a float32 the lower half too
      keep = 0x87FF;
      set = 0x3800;
      break;
    case WeightFormat::kFp8Block:
    case WeightFormat::kFp8Row:  // 2^-3 to 2
      keep = 0x9F9F;
      set = 0x2020;
      break;
    case WeightFormat::kFp4Row:
      break;
  }
  fill_words(m.memory.get(), codes, keep, set, ++seed);
  m.view.data = m.memory.get();
  if (scales > 0) {
    require(cudaMemset(m.memory.get() + scales_at, 115, static_cast<size_t>(scales)), "scales");
    require(cudaStreamSynchronize(nullptr), "scales");
    m.view.scales = as<uint8_t>(m.memory) + scales_at;
  }
  return m;
}

}  // namespace tidemill::gpu
