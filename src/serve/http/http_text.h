// What the server writes besides bodies: heads of responses and the frames of chunks.
#pragma once

#include <cstdint>
#include <ctime>
#include <string>
#include <string_view>

#include "serve/http/http.h"

namespace tidemill {

bool equals_ignoring_case(std::string_view a, std::string_view b);  // ASCII

// How a client knows where the body ends.
enum class HttpFraming : uint8_t {
  kLength,      // Content-Length: response.body is all of it
  kChunked,     // HTTP/1.1
  kUntilClose,  // HTTP/1.0
};
enum class HttpAfter : uint8_t {
  kKeep,       // HTTP/1.1 keeps a connection without a word
  kKeepAlive,  // said to a client of HTTP/1.0
  kClose,
};

// Status line, headers and the empty line; not the body. `date` is a whole header line (see
// http_date_line). Bytes of names and values that would end a header (CR, LF, NUL) are left out.
void append_response_head(std::string& out, const HttpResponse& response, HttpFraming framing,
                          HttpAfter after, std::string_view date);

// "Date: Tue, 15 Nov 1994 08:12:31 GMT\r\n"
std::string http_date_line(std::time_t time);

// Nothing for no bytes: an empty chunk ends a body.
void append_chunk(std::string& out, std::string_view bytes);
inline constexpr std::string_view kLastChunk = "0\r\n\r\n";

}  // namespace tidemill
