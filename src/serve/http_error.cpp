#include "serve/http_error.h"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>

namespace tidemill {
namespace {

constexpr std::string_view kInvalid = "invalid_request_error";
constexpr std::string_view kServer = "server_error";

// "messages[2].content" of "messages[2].content: missing".
std::string field_of(std::string_view message) {
  const size_t end = message.find(": ");
  if (end == std::string_view::npos) return "";
  const std::string_view path = message.substr(0, end);
  const bool is_path = std::all_of(path.begin(), path.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.' || c == '[' || c == ']';
  });
  const bool is_whole = path == "body" || path == "request";  // no field of theirs
  return is_path && !is_whole ? std::string(path) : "";
}

std::optional<int64_t> retry_after(std::string_view message) {
  constexpr std::string_view kBefore = "try again in ";
  const size_t at = message.rfind(kBefore);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view number = message.substr(at + kBefore.size());
  int64_t seconds = 0;
  const auto [rest, error] = std::from_chars(number.data(), number.data() + number.size(), seconds);
  if (error != std::errc() || seconds < 1) return std::nullopt;
  return seconds;
}

HttpError invalid(const Error& error, std::string_view code) {
  return {.status = 400,
          .message = error.message,
          .type = std::string(kInvalid),
          .code = std::string(code),
          .param = field_of(error.message)};
}

HttpError unavailable(const Error& error, int status, std::string_view code) {
  return {.status = status,
          .retry_after_s = retry_after(error.message),
          .message = error.message,
          .type = std::string(kServer),
          .code = std::string(code)};
}

std::string_view anthropic_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 402:
      return "billing_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    case 504:
      return "timeout_error";
    default:
      return status < 500 ? kInvalid : "api_error";
  }
}

}  // namespace

HttpError http_error(const Error& error, bool has_begun) {
  switch (error.code) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kConflictingOptions:
    case ErrorCode::kRequest:
    case ErrorCode::kTokenOutOfRange:
    case ErrorCode::kUtf8:
      return invalid(error, kInvalid);
    case ErrorCode::kContextLength:
      return invalid(error, "context_length_exceeded");
    case ErrorCode::kNoCapacity: {
      HttpError http = unavailable(error, 503, "overloaded");
      if (!http.retry_after_s) http.retry_after_s = 1;
      return http;
    }
    case ErrorCode::kDeadline:
      return unavailable(error, has_begun ? 504 : 503, "deadline_exceeded");
    case ErrorCode::kCancelled:
      return unavailable(error, 499, "cancelled");
    default:
      return {.status = 500,
              .message = fmt::format("an error of the server (number {}); its log says more",
                                     static_cast<int32_t>(error.code)),
              .type = std::string(kServer),
              .code = "internal_error"};
  }
}

HttpError client_error(int status, std::string message, std::string code) {
  return {.status = status,
          .message = std::move(message),
          .type = std::string(kInvalid),
          .code = std::move(code)};
}

Json openai_error(const HttpError& error) {
  return {{"error",
           {{"message", error.message},
            {"type", error.type},
            {"param", error.param.empty() ? Json() : Json(error.param)},
            {"code", error.code}}}};
}

Json anthropic_error(const HttpError& error) {
  return {{"type", "error"},
          {"error", {{"type", anthropic_type(error.status)}, {"message", error.message}}}};
}

}  // namespace tidemill
