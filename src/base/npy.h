// NumPy's .npy format (version 1.0 written, 1.0 to 3.0 read):
// https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "base/atomic_file.h"
#include "base/result.h"

namespace tidemill {

static_assert(std::endian::native == std::endian::little, "npy data is used as it lies");

// Writes a float32 array of shape [rows, columns] row by row; the file appears with finish(),
// whole, or never. Not thread safe. Errors: kFileWrite.
class NpyWriter {
 public:
  static Result<NpyWriter> create(const std::filesystem::path& path, int64_t columns);

  // `values` holds one or more whole rows.
  Status append(std::span<const float> values);
  Status finish();
  int64_t rows() const { return rows_; }

 private:
  NpyWriter(AtomicFile file, int64_t columns) : file_(std::move(file)), columns_(columns) {}

  AtomicFile file_;
  int64_t columns_;
  int64_t rows_ = 0;
};

enum class NpyType { kFloat32, kFloat16, kInt64, kInt32, kInt16, kUint16, kUint8, kBool };
int64_t npy_item_bytes(NpyType type);

// An array inside a buffer of the caller, which must outlive it. Row-major; `data` may be
// unaligned.
struct NpyArray {
  NpyType type = NpyType::kFloat32;
  std::vector<int64_t> shape;  // empty for a scalar
  std::span<const std::byte> data;

  int64_t size() const;  // number of elements

  // Copies the elements out as T. Any stored type converts as static_cast does (float16 and bool
  // through float and 0/1); choose a T that holds the values.
  template <typename T>
  std::vector<T> values() const;
};

// Reads little-endian row-major arrays of the types above. Error kFileRead says what is wrong.
Result<NpyArray> parse_npy(std::span<const std::byte> buffer);

// IEEE 754 binary16, every value exact.
float float16_to_float(uint16_t bits);

template <typename T>
std::vector<T> NpyArray::values() const {
  std::vector<T> out(static_cast<size_t>(size()));
  const auto copy = [&]<typename Stored>(Stored, auto convert) {
    for (size_t i = 0; i < out.size(); ++i) {
      Stored item;
      std::memcpy(&item, data.data() + i * sizeof(item), sizeof(item));
      out[i] = static_cast<T>(convert(item));
    }
  };
  const auto same = [](auto item) { return item; };
  switch (type) {
    case NpyType::kFloat32:
      copy(float{}, same);
      break;
    case NpyType::kFloat16:
      copy(uint16_t{}, float16_to_float);
      break;
    case NpyType::kInt64:
      copy(int64_t{}, same);
      break;
    case NpyType::kInt32:
      copy(int32_t{}, same);
      break;
    case NpyType::kInt16:
      copy(int16_t{}, same);
      break;
    case NpyType::kUint16:
      copy(uint16_t{}, same);
      break;
    case NpyType::kUint8:
      copy(uint8_t{}, same);
      break;
    case NpyType::kBool:
      copy(uint8_t{}, [](uint8_t item) { return item != 0 ? 1 : 0; });
      break;
  }
  return out;
}

}  // namespace tidemill
