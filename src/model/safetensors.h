// Reader of safetensors files: headers checked against the file, data mapped and never copied.
//
// Format: 8 bytes N (little endian), N bytes of JSON {name: {dtype, shape, data_offsets}}, data.
// https://github.com/huggingface/safetensors#format
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"
#include "base/result.h"

namespace tidemill {

enum class TensorType {
  kBool,
  kU8,
  kI8,
  kI16,
  kU16,
  kF16,
  kBf16,
  kI32,
  kU32,
  kF32,
  kI64,
  kU64,
  kF64,
  kF8E4M3,
  kF8E5M2,
  kF8E8M0,
};

// As in the file, e.g. "F8_E4M3".
std::string_view to_string(TensorType type);
int64_t byte_size(TensorType type);

struct TensorView {
  TensorType type = TensorType::kU8;
  std::vector<int64_t> shape;
  std::span<const std::byte> data;  // lives as long as the file
};

// Names in order, so that logs and listings do not depend on a hash.
template <typename T>
using ByName = std::map<std::string, T, std::less<>>;

// Checks the header and reads no data; `file` is the whole file. Errors: kSafetensors: truncated,
// header larger than kMaxHeaderBytes, bad JSON, a name twice, unknown dtype, shape x dtype !=
// bytes, overlap, hole, past the end, bytes after the last tensor.
struct SafetensorsHeader {
  static constexpr int64_t kMaxHeaderBytes = 100'000'000;
  static constexpr size_t kMaxDimensions = 8;

  struct Entry {
    TensorType type = TensorType::kU8;
    std::vector<int64_t> shape;
    int64_t begin = 0, end = 0;  // within the data section
  };
  ByName<Entry> tensors;
  int64_t data_offset = 0;
  static Result<SafetensorsHeader> parse(std::span<const std::byte> file);
};

// All shards of a checkpoint directory (model.safetensors.index.json, or a single
// model.safetensors). Immutable; owns the mappings.
class Checkpoint {
 public:
  // Errors: kFileNotFound, kFileRead, kSafetensors, and by name: a tensor in two shards or in a
  // shard but not in the index (kSafetensors), in the index but not in its shard (kTensorMissing).
  static Result<Checkpoint> open(const std::filesystem::path& directory);
  // Tensors that lie in `memory` of `bytes` bytes, which lives as long as the checkpoint; no files.
  static Checkpoint in_memory(ByName<TensorView> tensors, std::shared_ptr<const void> memory,
                              int64_t bytes);

  const TensorView* find(std::string_view tensor) const;
  // The tensor with this type and shape. Errors: kTensorMissing, kTensorMismatch (both values).
  Result<const TensorView*> get(std::string_view tensor, TensorType type,
                                std::span<const int64_t> shape) const;
  int64_t file_bytes() const;  // or of the memory instead of files
  const std::vector<MappedFile>& files() const { return files_; }
  const ByName<TensorView>& tensors() const { return tensors_; }

 private:
  Result<SafetensorsHeader> add_shard(const std::filesystem::path& path);

  std::vector<MappedFile> files_;
  ByName<TensorView> tensors_;
  std::shared_ptr<const void> memory_;
  int64_t memory_bytes_ = 0;
};

}  // namespace tidemill
