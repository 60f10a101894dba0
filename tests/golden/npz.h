// NumPy .npz archives (zip of .npy) of the golden vectors: reads stored and deflated ones, writes
// deflated ones.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "base/npy.h"

namespace tidemill {

class Npz {
 public:
  // Ends the test program when the file is not there or not an archive: a golden test without its
  // vectors must not pass.
  explicit Npz(const std::filesystem::path& path);

  bool has(const std::string& name) const { return arrays_.contains(name); }
  // Shape and elements of one array; an unknown name ends the test program.
  const NpyArray& array(const std::string& name) const;
  template <typename T>
  std::vector<T> values(const std::string& name) const {
    return array(name).values<T>();
  }

 private:
  std::vector<std::vector<std::byte>> buffers_;
  std::map<std::string, NpyArray> arrays_;
};

// Arrays to write, row-major.
struct NpzArray {
  std::vector<int64_t> shape;
  std::variant<std::vector<float>, std::vector<int32_t>, std::vector<uint16_t>> values;
};
using NpzArrays = std::map<std::string, NpzArray>;

// The same arrays give the same bytes. Ends the program when the file cannot be written.
void write_npz(const std::filesystem::path& path, const NpzArrays& arrays);

}  // namespace tidemill
