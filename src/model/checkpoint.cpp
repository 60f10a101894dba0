#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "model/json_reader.h"
#include "model/safetensors.h"

namespace tidemill {

namespace {

constexpr std::string_view kIndex = "model.safetensors.index.json";
constexpr std::string_view kSingle = "model.safetensors";

// An index must not reach outside its directory.
bool is_file_name(std::string_view text) {
  return !text.empty() && text != "." && text != ".." &&
         text.find_first_of(std::string_view("/\0", 2)) == std::string_view::npos;
}

// Tensor name -> shard file name.
Result<ByName<std::string>> read_index(const std::filesystem::path& path) {
  TRY(const MappedFile file, MappedFile::open(path));
  const auto bytes = file.bytes();
  if (bytes.size() > SafetensorsHeader::kMaxHeaderBytes) {
    return fail(ErrorCode::kSafetensors, "{} has {} bytes; at most {} are read", path.string(),
                bytes.size(), SafetensorsHeader::kMaxHeaderBytes);
  }
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  TRY(const nlohmann::json root, parse_document(text, path.string(), ErrorCode::kSafetensors));
  const auto map = root.is_object() ? root.find("weight_map") : root.end();
  if (map == root.end() || !map->is_object()) {
    return fail(ErrorCode::kSafetensors, "{}: weight_map: expected an object", path.string());
  }
  ByName<std::string> shards;
  for (const auto& [tensor, shard] : map->items()) {
    if (!shard.is_string() || !is_file_name(shard.get_ref<const std::string&>())) {
      return fail(ErrorCode::kSafetensors, "{}: {:.200}: expected the name of a shard, found {}",
                  path.string(), tensor, excerpt(shard));
    }
    shards.emplace(tensor, shard.get<std::string>());
  }
  return shards;
}

// Does the index place exactly these tensors in this shard? A tensor in two shards is found here:
// the index has only one place for it.
Status check_placed(const ByName<std::string>& index, const SafetensorsHeader& header,
                    const std::string& shard) {
  for (const auto& [tensor, entry] : header.tensors) {
    const auto place = index.find(tensor);
    if (place == index.end()) {
      return fail(ErrorCode::kSafetensors, "tensor {} is not in {}", tensor, kIndex);
    }
    if (place->second != shard) {
      return fail(ErrorCode::kSafetensors, "tensor {} is here, but {} places it in {}", tensor,
                  kIndex, place->second);
    }
  }
  return {};
}

}  // namespace

Result<SafetensorsHeader> Checkpoint::add_shard(const std::filesystem::path& path) {
  TRY(MappedFile file, MappedFile::open(path));
  auto header = SafetensorsHeader::parse(file.bytes());
  if (!header) {
    return fail(header.error().code, "{}: {}", path.string(), header.error().message);
  }
  for (const auto& [tensor, entry] : header->tensors) {
    const auto data = file.bytes().subspan(static_cast<size_t>(header->data_offset + entry.begin),
                                           static_cast<size_t>(entry.end - entry.begin));
    tensors_.emplace(tensor, TensorView{entry.type, entry.shape, data});
  }
  files_.push_back(std::move(file));
  return header;
}

Result<Checkpoint> Checkpoint::open(const std::filesystem::path& directory) {
  Checkpoint checkpoint;
  std::error_code ignored;
  if (!std::filesystem::exists(directory / kIndex, ignored)) {
    if (!std::filesystem::exists(directory / kSingle, ignored)) {
      return fail(ErrorCode::kFileNotFound, "{} holds neither {} nor {}", directory.string(),
                  kIndex, kSingle);
    }
    CHECK_OK(checkpoint.add_shard(directory / kSingle));
    return checkpoint;
  }

  TRY(const auto index, read_index(directory / kIndex));
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : index) shards.insert(shard);
  for (const auto& shard : shards) {
    TRY(const auto header, checkpoint.add_shard(directory / shard));
    if (auto placed = check_placed(index, header, shard); !placed) {
      return fail(placed.error().code, "{}: {}", (directory / shard).string(),
                  placed.error().message);
    }
  }
  for (const auto& [tensor, shard] : index) {
    if (checkpoint.find(tensor) == nullptr) {
      return fail(ErrorCode::kTensorMissing, "{}: tensor {} is missing, but {} places it there",
                  (directory / shard).string(), tensor, kIndex);
    }
  }
  return checkpoint;
}

const TensorView* Checkpoint::find(std::string_view tensor) const {
  const auto found = tensors_.find(tensor);
  return found == tensors_.end() ? nullptr : &found->second;
}

Result<const TensorView*> Checkpoint::get(std::string_view tensor, TensorType type,
                                          std::span<const int64_t> shape) const {
  const TensorView* view = find(tensor);
  if (view == nullptr) {
    return fail(ErrorCode::kTensorMissing, "tensor {} is missing from the checkpoint", tensor);
  }
  if (view->type != type ||
      !std::equal(shape.begin(), shape.end(), view->shape.begin(), view->shape.end())) {
    return fail(ErrorCode::kTensorMismatch,
                "tensor {} is {} [{}], but config.json asks for {} [{}]", tensor,
                to_string(view->type), fmt::join(view->shape, ", "), to_string(type),
                fmt::join(shape, ", "));
  }
  return view;
}

Checkpoint Checkpoint::in_memory(ByName<TensorView> tensors, std::shared_ptr<const void> memory,
                                 int64_t bytes) {
  Checkpoint checkpoint;
  checkpoint.tensors_ = std::move(tensors);
  checkpoint.memory_ = std::move(memory);
  checkpoint.memory_bytes_ = bytes;
  return checkpoint;
}

int64_t Checkpoint::file_bytes() const {
  int64_t bytes = memory_bytes_;
  for (const MappedFile& file : files_) bytes += static_cast<int64_t>(file.bytes().size());
  return bytes;
}

}  // namespace tidemill
