#include "serve/http/http_text.h"

#include <fmt/core.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>

namespace tidemill {
namespace {

std::string_view reason_phrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 201:
      return "Created";
    case 202:
      return "Accepted";
    case 204:
      return "No Content";
    case 304:
      return "Not Modified";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 402:
      return "Payment Required";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 409:
      return "Conflict";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 422:
      return "Unprocessable Content";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 499:
      return "Client Closed Request";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 502:
      return "Bad Gateway";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    default:
      return "Status";
  }
}

void append_line_text(std::string& out, std::string_view text) {
  for (const char c : text) {
    if (c != '\r' && c != '\n' && c != '\0') out += c;
  }
}

void append_header(std::string& out, std::string_view name, std::string_view value) {
  append_line_text(out, name);
  out += ": ";
  append_line_text(out, value);
  out += "\r\n";
}

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c; }

}  // namespace

bool equals_ignoring_case(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char x, char y) { return lower(x) == lower(y); });
}

void append_response_head(std::string& out, const HttpResponse& response, HttpFraming framing,
                          HttpAfter after, std::string_view date) {
  fmt::format_to(std::back_inserter(out), "HTTP/1.1 {} {}\r\n", response.status,
                 reason_phrase(response.status));
  out += date;
  // Neither has a body, and a length would be taken for one of a body (RFC 9110, 8.6).
  const bool bodiless = response.status == 204 || response.status == 304;
  if (!bodiless && !response.content_type.empty()) {
    append_header(out, "Content-Type", response.content_type);
  }
  for (const HttpHeader& header : response.headers) append_header(out, header.name, header.value);
  if (!bodiless && framing == HttpFraming::kLength) {
    fmt::format_to(std::back_inserter(out), "Content-Length: {}\r\n", response.body.size());
  }
  if (!bodiless && framing == HttpFraming::kChunked) out += "Transfer-Encoding: chunked\r\n";
  if (after == HttpAfter::kClose) out += "Connection: close\r\n";
  if (after == HttpAfter::kKeepAlive) out += "Connection: keep-alive\r\n";
  out += "\r\n";
}

std::string http_date_line(std::time_t time) {
  static constexpr std::array<const char*, 7> kDays = {"Sun", "Mon", "Tue", "Wed",
                                                       "Thu", "Fri", "Sat"};
  static constexpr std::array<const char*, 12> kMonths = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                                          "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  std::tm utc{};
  gmtime_r(&time, &utc);
  return fmt::format("Date: {}, {:02} {} {} {:02}:{:02}:{:02} GMT\r\n", kDays.at(utc.tm_wday),
                     utc.tm_mday, kMonths.at(utc.tm_mon), utc.tm_year + 1900, utc.tm_hour,
                     utc.tm_min, utc.tm_sec);
}

void append_chunk(std::string& out, std::string_view bytes) {
  if (bytes.empty()) return;
  fmt::format_to(std::back_inserter(out), "{:x}\r\n", bytes.size());
  out += bytes;
  out += "\r\n";
}

}  // namespace tidemill
