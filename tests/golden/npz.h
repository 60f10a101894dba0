// Reads NumPy .npz archives (zip of .npy, stored or deflated) for the golden vectors.
#pragma once

#include <filesystem>
#include <map>
#include <string>
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

}  // namespace tidemill
