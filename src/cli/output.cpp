#include "cli/output.h"

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace tidemill::cli {
namespace {

tl::unexpected<Error> write_error() {
  return fail(ErrorCode::kFileWrite, "cannot write to the standard output: {}",
              std::strerror(errno));
}

}  // namespace

Status write_stdout(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) return write_error();
  return {};
}

Status flush_stdout() {
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) return write_error();
  return {};
}

Status stream_stdout(std::string_view text) {
  CHECK_OK(write_stdout(text));
  return flush_stdout();
}

}  // namespace tidemill::cli
