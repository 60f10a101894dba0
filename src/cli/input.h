// Text from files and standard input.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace tidemill::cli {

inline constexpr int64_t kMaxInputBytes = int64_t{1} << 30;

// The whole file; "-" is standard input. Pipes are fine. Errors: kFileNotFound, kFileRead (more
// than kMaxInputBytes, a directory, ...).
Result<std::string> read_input(const std::filesystem::path& path);

// For messages: the path, or "the standard input" for "-".
std::string input_name(const std::filesystem::path& path);

// Calls handle(line, number) for each line of standard input as it arrives, numbers from 1, until
// it fails. A line's error gets "line N: " in front.
Status for_each_stdin_line(const std::function<Status(std::string_view, int64_t)>& handle);

}  // namespace tidemill::cli
