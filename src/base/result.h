// Errors are values. A function that can fail on its input returns Result<T>; asserts are for
// programmers and are unreachable from a file, a request or a peer.
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <string>
#include <utility>

#include <tl/expected.hpp>

namespace tidemill {

// Numbered by family (the thousands digit); a number is never reused, so a log line or a client
// can be searched for it.
enum class ErrorCode : int32_t {
  // 1xxx usage: the caller asked for something that cannot be done. Exit code 2.
  kInvalidArgument = 1001,
  kConflictingOptions = 1002,
  // 2xxx files and the system
  kFileNotFound = 2001,
  kFileRead = 2002,
  kFileWrite = 2003,
  kOutOfMemory = 2004,
  // 3xxx checkpoint: the model directory is wrong
  kConfig = 3001,
  kSafetensors = 3002,
  kTensorMissing = 3003,
  kTensorMismatch = 3004,
  kTensorValue = 3005,
  kTokenizer = 3006,
  kEngramMap = 3007,
  // 4xxx request: what a client sent is wrong
  kRequest = 4001,
  kTokenOutOfRange = 4002,
  kContextLength = 4003,
  kUtf8 = 4004,
  // 5xxx capacity
  kNoCapacity = 5001,
  kCancelled = 5002,
  kDeadline = 5003,
  // 9xxx a fault of this program
  kInternal = 9001,
};

struct Error {
  ErrorCode code = ErrorCode::kInternal;
  // One line: what, the numbers, what to change.
  std::string message;
};

template <typename T>
using Result = tl::expected<T, Error>;
using Status = Result<void>;

template <typename... Args>
[[nodiscard]] tl::unexpected<Error> fail(ErrorCode code, fmt::format_string<Args...> text,
                                         Args&&... args) {
  return tl::unexpected<Error>(Error{code, fmt::format(text, std::forward<Args>(args)...)});
}

// Is the error one of usage (family 1)? Programs exit with 2 for these, 1 for all others.
inline bool is_usage(ErrorCode code) { return static_cast<int32_t>(code) / 1000 == 1; }

}  // namespace tidemill

// Hands an error on to the caller; otherwise names the value. The one macro of the project: C++20
// has no operator for this.
#define TIDEMILL_CONCAT2(a, b) a##b
#define TIDEMILL_CONCAT(a, b) TIDEMILL_CONCAT2(a, b)
#define TRY_IMPL(tmp, declaration, expression)               \
  auto tmp = (expression);                                   \
  if (!tmp) return ::tl::unexpected(std::move(tmp).error()); \
  declaration = std::move(*tmp)
// TRY(auto x, f());
#define TRY(declaration, expression) \
  TRY_IMPL(TIDEMILL_CONCAT(try_result_, __LINE__), declaration, expression)
// CHECK_OK(f());  for Status
#define CHECK_OK(expression)                                                                     \
  do {                                                                                           \
    if (auto status = (expression); !status) return ::tl::unexpected(std::move(status).error()); \
  } while (false)
