// For tests: a checkpoint in memory, to be changed and written to a directory.
#pragma once

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "model/safetensors.h"

namespace tidemill {

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in) << path;
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void write_file(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

// An empty directory that is removed at the end of the test.
class TestDirectory {
 public:
  TestDirectory() {
    std::string name = testing::TempDir() + "tidemill-XXXXXX";
    path_ = ::mkdtemp(name.data());
  }
  TestDirectory(const TestDirectory&) = delete;
  TestDirectory& operator=(const TestDirectory&) = delete;
  ~TestDirectory() { std::filesystem::remove_all(path_); }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

struct TestTensor {
  std::string dtype;
  std::vector<int64_t> shape;
  std::string data;
};
using TestTensors = std::map<std::string, TestTensor>;

// A file with this header text, whatever it says.
inline std::string safetensors_file(const std::string& header, const std::string& data) {
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(header.size() >> (8 * i));
  return file + header + data;
}

inline std::string safetensors_file(const TestTensors& tensors) {
  auto header = nlohmann::json::object();
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    const size_t begin = data.size();
    data += tensor.data;
    header[name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {begin, data.size()}}};
  }
  return safetensors_file(header.dump(), data);
}

struct TestCheckpoint {
  nlohmann::json config;
  TestTensors tensors;
  std::filesystem::path tokenizer;  // directory whose tokenizer.json is used

  // The checkpoint of tests/vectors/micro: every part of the architecture in 3.7 MB.
  static TestCheckpoint micro() {
    const std::filesystem::path directory = TIDEMILL_SOURCE_DIR "/tests/vectors/micro";
    TestCheckpoint out;
    out.tokenizer = directory;
    out.config = nlohmann::json::parse(read_file(directory / "config.json"));
    auto stored = Checkpoint::open(directory);
    EXPECT_TRUE(stored) << stored.error().message;
    for (const auto& [name, view] : stored->tensors()) {
      out.tensors[name] = {
          std::string(to_string(view.type)), view.shape,
          std::string(reinterpret_cast<const char*>(view.data.data()), view.data.size())};
    }
    return out;
  }

  // One file, or `shards` of them with an index.
  void write(const std::filesystem::path& directory, int shards = 1) const {
    write_file(directory / "config.json", config.dump());
    std::filesystem::copy_file(tokenizer / "tokenizer.json", directory / "tokenizer.json",
                               std::filesystem::copy_options::overwrite_existing);
    if (shards == 1) return write_file(directory / "model.safetensors", safetensors_file(tensors));

    nlohmann::json index;
    std::map<std::string, TestTensors> parts;
    int next = 0;
    for (const auto& [name, tensor] : tensors) {
      const std::string shard = fmt::format("model-{}.safetensors", next++ % shards);
      parts[shard][name] = tensor;
      index["weight_map"][name] = shard;
    }
    for (const auto& [shard, part] : parts) write_file(directory / shard, safetensors_file(part));
    write_file(directory / "model.safetensors.index.json", index.dump());
  }
};

}  // namespace tidemill
