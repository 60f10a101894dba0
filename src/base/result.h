// How errors (tidemill/error.h) are made and handed on. Asserts are for programmers and are
// unreachable from a file, a request or a peer.
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <utility>

#include "tidemill/error.h"

namespace tidemill {

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
