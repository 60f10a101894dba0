#include "npz.h"

#include <fmt/core.h>
#include <zlib.h>

#include <cstdlib>
#include <cstring>
#include <fstream>

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

}  // namespace tidemill
