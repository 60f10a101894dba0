#include "model/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <utility>

#include "model/json_reader.h"

namespace tidemill {

namespace {

using Entry = SafetensorsHeader::Entry;

struct TypeRow {
  TensorType type;
  std::string_view name;
  int64_t bytes;
};
constexpr std::array<TypeRow, 16> kTypes = {{
    {TensorType::kBool, "BOOL", 1},
    {TensorType::kU8, "U8", 1},
    {TensorType::kI8, "I8", 1},
    {TensorType::kI16, "I16", 2},
    {TensorType::kU16, "U16", 2},
    {TensorType::kF16, "F16", 2},
    {TensorType::kBf16, "BF16", 2},
    {TensorType::kI32, "I32", 4},
    {TensorType::kU32, "U32", 4},
    {TensorType::kF32, "F32", 4},
    {TensorType::kI64, "I64", 8},
    {TensorType::kU64, "U64", 8},
    {TensorType::kF64, "F64", 8},
    {TensorType::kF8E4M3, "F8_E4M3", 1},
    {TensorType::kF8E5M2, "F8_E5M2", 1},
    {TensorType::kF8E8M0, "F8_E8M0", 1},
}};

const TypeRow& row(TensorType type) {
  return *std::find_if(kTypes.begin(), kTypes.end(),
                       [&](const TypeRow& candidate) { return candidate.type == type; });
}

// A checkpoint's names are far shorter; every error message quotes one.
constexpr size_t kMaxName = 1024;

// The bytes that a shape asks for; nothing on overflow.
std::optional<int64_t> byte_count(const Entry& entry) {
  int64_t bytes = byte_size(entry.type);
  for (const int64_t dimension : entry.shape) {
    if (__builtin_mul_overflow(bytes, dimension, &bytes)) return std::nullopt;
  }
  return bytes;
}

Result<Entry> read_entry(const std::string& tensor, const nlohmann::json& value,
                         int64_t data_bytes) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  JsonReader in(value, "tensor " + tensor, ErrorCode::kSafetensors);
  Entry entry;
  std::string dtype;
  std::vector<int64_t> offsets;
  in.string("dtype", dtype);
  in.integers("shape", entry.shape, 0, kMax, SafetensorsHeader::kMaxDimensions);
  in.integers("data_offsets", offsets, 0, kMax, 2);
  CHECK_OK(in.status());

  const auto known = std::find_if(kTypes.begin(), kTypes.end(),
                                  [&](const TypeRow& type) { return type.name == dtype; });
  if (known == kTypes.end()) {
    return fail(ErrorCode::kSafetensors, "tensor {}: unknown dtype {}", tensor, excerpt(dtype));
  }
  entry.type = known->type;
  if (offsets.size() != 2 || offsets[0] > offsets[1]) {
    return fail(ErrorCode::kSafetensors, "tensor {}: data_offsets must be [begin, end], found {}",
                tensor, excerpt(offsets));
  }
  entry.begin = offsets[0];
  entry.end = offsets[1];
  if (entry.end > data_bytes) {
    return fail(ErrorCode::kSafetensors,
                "tensor {}: ends at byte {} of the data, but the file has only {}: it is cut short",
                tensor, entry.end, data_bytes);
  }
  const auto expected = byte_count(entry);
  if (expected != entry.end - entry.begin) {
    return fail(ErrorCode::kSafetensors, "tensor {}: {} [{}] needs {} bytes, data_offsets give {}",
                tensor, dtype, fmt::join(entry.shape, ", "),
                expected ? std::to_string(*expected) : "more than 2^63", entry.end - entry.begin);
  }
  return entry;
}

// The format wants the data section covered exactly, without a byte that no tensor owns.
Status check_coverage(const ByName<Entry>& tensors, int64_t data_bytes) {
  std::vector<const ByName<Entry>::value_type*> in_order;
  for (const auto& tensor : tensors) in_order.push_back(&tensor);
  std::sort(in_order.begin(), in_order.end(), [](const auto* a, const auto* b) {
    return std::pair(a->second.begin, a->second.end) < std::pair(b->second.begin, b->second.end);
  });
  int64_t covered = 0;
  for (const auto* tensor : in_order) {
    const auto& [begin, end] = std::pair(tensor->second.begin, tensor->second.end);
    if (begin != covered) {
      return fail(
          ErrorCode::kSafetensors, "tensor {}: begins at byte {} of the data, {} {}", tensor->first,
          begin,
          begin < covered ? "inside a tensor that ends at" : "but the tensor before it ends at",
          covered);
    }
    covered = end;
  }
  if (covered != data_bytes) {
    return fail(ErrorCode::kSafetensors, "{} bytes follow the last tensor", data_bytes - covered);
  }
  return {};
}

}  // namespace

std::string_view to_string(TensorType type) { return row(type).name; }
int64_t byte_size(TensorType type) { return row(type).bytes; }

Result<SafetensorsHeader> SafetensorsHeader::parse(std::span<const std::byte> file) {
  constexpr size_t kLengthBytes = 8;
  if (file.size() < kLengthBytes) {
    return fail(ErrorCode::kSafetensors, "the file has {} bytes, too few for a header",
                file.size());
  }
  uint64_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) {
    length |= std::to_integer<uint64_t>(file[i]) << (8 * i);
  }
  if (length > kMaxHeaderBytes) {
    return fail(ErrorCode::kSafetensors, "the header claims {} bytes; at most {} are read", length,
                kMaxHeaderBytes);
  }
  if (length > file.size() - kLengthBytes) {
    return fail(ErrorCode::kSafetensors,
                "the header claims {} bytes, but only {} follow: the file is cut short", length,
                file.size() - kLengthBytes);
  }
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + kLengthBytes, length);
  TRY(const nlohmann::json root, parse_document(text, "header", ErrorCode::kSafetensors));
  if (!root.is_object()) {
    return fail(ErrorCode::kSafetensors, "header: expected an object, found {}", excerpt(root));
  }

  SafetensorsHeader header;
  header.data_offset = static_cast<int64_t>(kLengthBytes + length);
  const int64_t data_bytes = static_cast<int64_t>(file.size()) - header.data_offset;
  for (const auto& [tensor, value] : root.items()) {
    if (tensor == "__metadata__") continue;  // free text of the writer
    if (tensor.size() > kMaxName) {
      return fail(ErrorCode::kSafetensors, "a tensor's name has {} bytes; at most {} are read",
                  tensor.size(), kMaxName);
    }
    TRY(Entry entry, read_entry(tensor, value, data_bytes));
    header.tensors.emplace(tensor, std::move(entry));
  }
  CHECK_OK(check_coverage(header.tensors, data_bytes));
  return header;
}

}  // namespace tidemill
