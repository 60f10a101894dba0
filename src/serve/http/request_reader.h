// Bytes into one request, without sockets. Stricter than HTTP asks for: what two parsers could read
// in two ways is refused (folded lines, bare CR or LF, two lengths, a length and chunks), so that
// no proxy in front sees other requests than this server.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "serve/http/http.h"

namespace tidemill {

class RequestReader {
 public:
  enum class Stage : uint8_t {
    kHead,
    kBody,     // the head is whole, a body follows
    kDone,     // the request is whole
    kRefused,  // status() and message() say why; nothing behind it can be read
  };

  // Limits in bytes: of the request line with all headers (431), of the body (413).
  RequestReader(int64_t header_limit, int64_t body_limit);
  ~RequestReader();
  RequestReader(RequestReader&&) noexcept;
  RequestReader& operator=(RequestReader&&) noexcept;

  // Takes bytes from the front and returns how many; the others are to come again, with more
  // behind them. Stops behind the head, so that the body can be refused or awaited; call it again.
  // Throws std::bad_alloc.
  size_t read(std::string_view bytes);
  Stage stage() const;

  // From kBody on. peer and arrived are left to the caller. A HEAD request is one of GET here.
  HttpRequest& request();
  bool is_head() const;
  bool is_http_1_0() const;
  bool keep_alive() const;  // what the client wants
  bool expects_continue() const;
  int64_t content_length() const;  // -1: chunked

  int status() const;  // 400, 413, 417 or 431
  const std::string& message() const;

 private:
  class Parser;
  std::unique_ptr<Parser> parser_;
};

}  // namespace tidemill
