#include "base/npy.h"

#include <array>
#include <charconv>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace tidemill {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr size_t kWrittenHeader = 128;  // leaves room for any row count, and aligns the data to 64

struct NamedType {
  std::string_view descr;
  NpyType type;
  int64_t bytes;
};
constexpr std::array kTypes = {
    NamedType{"<f4", NpyType::kFloat32, 4}, NamedType{"<f2", NpyType::kFloat16, 2},
    NamedType{"<i8", NpyType::kInt64, 8},   NamedType{"<i4", NpyType::kInt32, 4},
    NamedType{"<i2", NpyType::kInt16, 2},   NamedType{"<u2", NpyType::kUint16, 2},
    NamedType{"|u1", NpyType::kUint8, 1},   NamedType{"|b1", NpyType::kBool, 1},
};

std::string header_of(int64_t rows, int64_t columns) {
  std::string header(kMagic);
  header += {'\x01', '\x00'};
  const size_t length = kWrittenHeader - header.size() - 2;
  header += {static_cast<char>(length & 0xff), static_cast<char>(length >> 8)};
  header +=
      fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}", rows, columns);
  header.resize(kWrittenHeader - 1, ' ');
  return header + '\n';
}

// The text after "'key':" in the header's Python dictionary, without leading spaces.
std::optional<std::string_view> value_of(std::string_view dictionary, std::string_view key) {
  for (const char quote : {'\'', '"'}) {
    const std::string name = fmt::format("{}{}{}", quote, key, quote);
    const size_t at = dictionary.find(name);
    if (at == std::string_view::npos) continue;
    std::string_view rest = dictionary.substr(at + name.size());
    const size_t begin = rest.find_first_not_of(" :");
    if (begin == std::string_view::npos) return std::nullopt;
    return rest.substr(begin);
  }
  return std::nullopt;
}

const NamedType* type_of(std::string_view value) {
  for (const NamedType& type : kTypes) {
    if (value.size() > 4 && value.substr(1, 3) == type.descr && value[0] == value[4]) return &type;
  }
  return nullptr;
}

// "(3, 4)", "(3,)", "()".
std::optional<std::vector<int64_t>> shape_of(std::string_view value) {
  const size_t close = value.find(')');
  if (value.empty() || value[0] != '(' || close == std::string_view::npos) return std::nullopt;
  std::vector<int64_t> shape;
  const char* at = value.data() + 1;
  const char* const end = value.data() + close;
  const auto skip = [&](char c) {
    while (at != end && *at == c) ++at;
  };
  for (skip(' '); at != end; skip(' ')) {
    int64_t extent = 0;
    const auto [next, error] = std::from_chars(at, end, extent);
    if (error != std::errc() || extent < 0) return std::nullopt;
    shape.push_back(extent);
    at = next;
    skip(' ');
    if (at != end && *at++ != ',') return std::nullopt;
  }
  return shape;
}

// Bytes of the array; nothing when the product does not fit 63 bits.
std::optional<int64_t> bytes_of(const std::vector<int64_t>& shape, int64_t item_bytes) {
  int64_t bytes = item_bytes;
  for (const int64_t extent : shape) {
    if (__builtin_mul_overflow(bytes, extent, &bytes)) return std::nullopt;
  }
  return bytes;
}

}  // namespace

Result<NpyWriter> NpyWriter::create(const std::filesystem::path& path, int64_t columns) {
  if (columns < 1) {
    return fail(ErrorCode::kInternal, "cannot write {}: {} columns", path.string(), columns);
  }
  TRY(AtomicFile file, AtomicFile::create(path));
  CHECK_OK(file.write(header_of(0, columns)));
  return NpyWriter(std::move(file), columns);
}

Status NpyWriter::append(std::span<const float> values) {
  const auto count = static_cast<int64_t>(values.size());
  if (count % columns_ != 0) {
    return fail(ErrorCode::kInternal, "{} values are not rows of {}", count, columns_);
  }
  CHECK_OK(file_.write(std::as_bytes(values)));
  rows_ += count / columns_;
  return {};
}

Status NpyWriter::finish() {
  const std::string header = header_of(rows_, columns_);
  CHECK_OK(file_.overwrite(0, std::as_bytes(std::span(header))));
  return file_.commit();
}

int64_t npy_item_bytes(NpyType type) {
  for (const NamedType& named : kTypes) {
    if (named.type == type) return named.bytes;
  }
  return 0;
}

int64_t NpyArray::size() const {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  return count;
}

Result<NpyArray> parse_npy(std::span<const std::byte> buffer) {
  const std::string_view bytes(reinterpret_cast<const char*>(buffer.data()), buffer.size());
  if (!bytes.starts_with(kMagic) || bytes.size() < 12) {
    return fail(ErrorCode::kFileRead, "npy: no header in {} bytes", bytes.size());
  }
  // Version 1 has a 16-bit header length, 2 and 3 a 32-bit one.
  const int version = static_cast<unsigned char>(bytes[6]);
  if (version < 1 || version > 3) {
    return fail(ErrorCode::kFileRead, "npy: version {} is none of 1, 2, 3", version);
  }
  const size_t length_bytes = version == 1 ? 2 : 4;
  uint32_t length = 0;
  std::memcpy(&length, bytes.data() + 8, length_bytes);
  const size_t begin = 8 + length_bytes;
  if (bytes.size() - begin < length) {
    return fail(ErrorCode::kFileRead, "npy: a header of {} bytes in a file of {}", length,
                bytes.size());
  }
  const std::string_view dictionary = bytes.substr(begin, length);
  const auto descr = value_of(dictionary, "descr");
  const auto order = value_of(dictionary, "fortran_order");
  const auto shape_text = value_of(dictionary, "shape");
  if (!descr || !order || !shape_text) {
    return fail(ErrorCode::kFileRead, "npy: the header lacks descr, fortran_order or shape");
  }
  const NamedType* const type = type_of(*descr);
  if (type == nullptr) {
    return fail(ErrorCode::kFileRead, "npy: type {} is not supported", descr->substr(0, 8));
  }
  auto shape = shape_of(*shape_text);
  if (!shape) return fail(ErrorCode::kFileRead, "npy: cannot read the shape");
  if (!order->starts_with("False") && shape->size() > 1) {
    return fail(ErrorCode::kFileRead, "npy: Fortran order is not supported");
  }
  const auto data_bytes = bytes_of(*shape, type->bytes);
  const std::span<const std::byte> data = buffer.subspan(begin + length);
  if (!data_bytes || static_cast<uint64_t>(*data_bytes) > data.size()) {
    return fail(ErrorCode::kFileRead, "npy: the shape needs {} bytes, the file has {}",
                data_bytes ? std::to_string(*data_bytes) : "too many", data.size());
  }
  return NpyArray{type->type, std::move(*shape), data.first(static_cast<size_t>(*data_bytes))};
}

float float16_to_float(uint16_t bits) {
  const uint32_t sign = (bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t fraction = bits & 0x3ffu;
  if (exponent == 0) {  // zero and subnormal numbers: fraction * 2^-24
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
  }
  const uint32_t wide = exponent == 31 ? 255u : exponent + (127 - 15);
  return std::bit_cast<float>(sign | (wide << 23) | (fraction << 13));
}

}  // namespace tidemill
