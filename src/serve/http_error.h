// Errors as clients of each protocol expect them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"
#include "text/json.h"

namespace tidemill {

struct HttpError {
  int status = 500;
  std::optional<int64_t> retry_after_s;  // the header Retry-After
  std::string message;
  std::string type;   // OpenAI's
  std::string code;   // OpenAI's
  std::string param;  // path of the field that is wrong; "": none
};

// What the client sent: 400. No room: 503, with Retry-After from the "try again in N s" of the
// message, or 1. A deadline: 503 when the request never began, else 504. Cancelled: 499. All else
// is the server's: 500 and a number for its log, for the message may name files.
HttpError http_error(const Error& error, bool has_begun = false);

// An error of the client's that has no Error: an unknown path, a missing key.
HttpError client_error(int status, std::string message, std::string code);

// {"error": {"message", "type", "param", "code"}}
Json openai_error(const HttpError& error);
// {"type": "error", "error": {"type", "message"}}
Json anthropic_error(const HttpError& error);

}  // namespace tidemill
