#include "npz.h"

#include <fmt/core.h>
#include <zlib.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <type_traits>

namespace tidemill {
namespace {

[[noreturn]] void give_up(const std::string& text) {
  fmt::print(stderr, "golden vectors: {}\n", text);
  std::abort();
}

template <typename T>
T load(const std::vector<std::byte>& file, size_t at) {
  if (at + sizeof(T) > file.size()) give_up("truncated archive");
  T value;
  std::memcpy(&value, file.data() + at, sizeof(T));
  return value;
}

std::vector<std::byte> inflate_raw(const std::byte* data, size_t size, size_t unpacked) {
  std::vector<std::byte> out(unpacked);
  z_stream stream{};
  inflateInit2(&stream, -MAX_WBITS);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(data));
  stream.avail_in = static_cast<uInt>(size);
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(unpacked);
  const int result = inflate(&stream, Z_FINISH);
  inflateEnd(&stream);
  if (result != Z_STREAM_END) give_up(fmt::format("zlib error {}", result));
  return out;
}

std::string deflate_raw(const std::string& data) {
  z_stream stream{};
  deflateInit2(&stream, Z_BEST_COMPRESSION, Z_DEFLATED, -MAX_WBITS, 9, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&stream, data.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(data.data()));
  stream.avail_in = static_cast<uInt>(data.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  if (deflate(&stream, Z_FINISH) != Z_STREAM_END) give_up("zlib cannot pack");
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

void put(std::string& out, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> (8 * i));
}

std::string npy(const NpzArray& array) {
  return std::visit(
      [&]<typename T>(const std::vector<T>& values) {
        std::string shape;
        size_t count = 1;
        for (const int64_t n : array.shape) {
          shape += fmt::format("{}, ", n);
          count *= static_cast<size_t>(n);
        }
        if (count != values.size()) give_up(fmt::format("shape ({}) of {}", shape, values.size()));
        const char* type = std::is_same_v<T, float>     ? "<f4"
                           : std::is_same_v<T, int32_t> ? "<i4"
                                                        : "<u2";
        std::string header =
            fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}", type, shape);
        header.resize((10 + header.size() + 1 + 63) / 64 * 64 - 11, ' ');
        header += '\n';
        std::string out("\x93NUMPY\x01\0", 8);
        put(out, header.size(), 2);
        out += header;
        out.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
        return out;
      },
      array.values);
}

}  // namespace

Npz::Npz(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) give_up(path.string() + " cannot be read");
  std::vector<std::byte> file(std::filesystem::file_size(path));
  in.read(reinterpret_cast<char*>(file.data()), static_cast<std::streamsize>(file.size()));

  // The central directory: numpy writes no archive comment, so its end record is the last 22 bytes.
  if (file.size() < 22 || load<uint32_t>(file, file.size() - 22) != 0x06054b50) {
    give_up(path.string() + " is not an npz archive");
  }
  const size_t count = load<uint16_t>(file, file.size() - 22 + 10);
  size_t at = load<uint32_t>(file, file.size() - 22 + 16);
  for (size_t i = 0; i < count; ++i) {
    const auto method = load<uint16_t>(file, at + 10);
    const size_t packed = load<uint32_t>(file, at + 20);
    const size_t unpacked = load<uint32_t>(file, at + 24);
    const size_t name_size = load<uint16_t>(file, at + 28);
    const size_t skip = load<uint16_t>(file, at + 30) + load<uint16_t>(file, at + 32);
    const size_t local = load<uint32_t>(file, at + 42);
    std::string name(reinterpret_cast<const char*>(file.data() + at + 46), name_size);
    at += 46 + name_size + skip;
    const size_t begin =
        local + 30 + load<uint16_t>(file, local + 26) + load<uint16_t>(file, local + 28);
    if (begin + packed > file.size()) give_up("truncated archive");
    const std::byte* data = file.data() + begin;
    buffers_.push_back(method == 0 ? std::vector<std::byte>(data, data + packed)
                                   : inflate_raw(data, packed, unpacked));
    auto array = parse_npy(buffers_.back());
    if (!array) give_up(path.string() + " " + name + ": " + array.error().message);
    if (name.ends_with(".npy")) name.resize(name.size() - 4);
    arrays_.emplace(name, *array);
  }
}

const NpyArray& Npz::array(const std::string& name) const {
  const auto found = arrays_.find(name);
  if (found == arrays_.end()) give_up("no array " + name);
  return found->second;
}

void write_npz(const std::filesystem::path& path, const NpzArrays& arrays) {
  std::string file;
  std::string directory;
  for (const auto& [name, array] : arrays) {
    const std::string entry = name + ".npy";
    const std::string data = npy(array);
    const std::string packed = deflate_raw(data);
    std::string common;  // of the local header and the directory
    put(common, 20, 2);  // needs version 2.0
    put(common, 0, 2);
    put(common, 8, 2);           // deflated
    put(common, 0x00210000, 4);  // 1980-01-01
    put(common,
        crc32(0, reinterpret_cast<const Bytef*>(data.data()), static_cast<uInt>(data.size())), 4);
    put(common, packed.size(), 4);
    put(common, data.size(), 4);
    put(common, entry.size(), 2);
    put(common, 0, 2);
    put(directory, 0x02014b50, 4);
    put(directory, 20, 2);
    directory += common;
    directory.append(10, '\0');  // no comment, first disk, no attributes
    put(directory, file.size(), 4);
    directory += entry;
    put(file, 0x04034b50, 4);
    file += common + entry + packed;
  }
  std::string end;
  put(end, 0x06054b50, 4);
  put(end, 0, 4);
  put(end, arrays.size(), 2);
  put(end, arrays.size(), 2);
  put(end, directory.size(), 4);
  put(end, file.size(), 4);
  put(end, 0, 2);
  std::ofstream out(path, std::ios::binary);
  out << file << directory << end;
  if (!out.flush()) give_up(path.string() + " cannot be written");
}

}  // namespace tidemill
