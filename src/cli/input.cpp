#include "cli/input.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

namespace tidemill::cli {
namespace {

Result<std::string> read_stream(std::FILE* stream, const std::filesystem::path& path) {
  std::string text;
  char buffer[1 << 16];
  while (const size_t n = std::fread(buffer, 1, sizeof(buffer), stream)) {
    text.append(buffer, n);
    if (static_cast<int64_t>(text.size()) > kMaxInputBytes) {
      return fail(ErrorCode::kFileRead, "{} is larger than {} bytes", input_name(path),
                  kMaxInputBytes);
    }
  }
  if (std::ferror(stream) != 0) {
    return fail(ErrorCode::kFileRead, "cannot read {}: {}", input_name(path), std::strerror(errno));
  }
  return text;
}

}  // namespace

std::string input_name(const std::filesystem::path& path) {
  return path == "-" ? "the standard input" : path.string();
}

Result<std::string> read_input(const std::filesystem::path& path) {
  if (path == "-") return read_stream(stdin, path);
  const auto close = [](std::FILE* file) { std::fclose(file); };
  const std::unique_ptr<std::FILE, decltype(close)> file(std::fopen(path.c_str(), "rbe"), close);
  if (file == nullptr) {
    const bool missing = errno == ENOENT || errno == ENOTDIR;
    return fail(missing ? ErrorCode::kFileNotFound : ErrorCode::kFileRead, "cannot open {}: {}",
                path.string(), std::strerror(errno));
  }
  return read_stream(file.get(), path);
}

Status for_each_stdin_line(const std::function<Status(std::string_view, int64_t)>& handle) {
  char* buffer = nullptr;
  size_t capacity = 0;
  Status status;
  for (int64_t number = 1; status; ++number) {
    const ssize_t length = ::getline(&buffer, &capacity, stdin);
    if (length < 0) break;
    std::string_view line(buffer, static_cast<size_t>(length));
    if (line.ends_with('\n')) line.remove_suffix(1);
    status = handle(line, number).map_error([&](Error error) {
      error.message = fmt::format("line {}: {}", number, error.message);
      return error;
    });
  }
  std::free(buffer);
  if (status && std::ferror(stdin) != 0) {
    return fail(ErrorCode::kFileRead, "cannot read the standard input: {}", std::strerror(errno));
  }
  return status;
}

}  // namespace tidemill::cli
