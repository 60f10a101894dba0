#include "serve/http/request_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include <boost/beast/http/basic_parser.hpp>
#include <boost/beast/http/error.hpp>

#include "serve/http/http_text.h"

namespace tidemill {
namespace {

namespace http = boost::beast::http;
using boost::beast::error_code;
using Text = boost::beast::string_view;

// No client sends as many; each costs more memory here than on the wire.
constexpr size_t kMaxHeaders = 256;
// The line of a chunk's size with its extensions; the last one with the trailers.
constexpr size_t kMaxChunkLine = 4096;

std::string_view view(Text text) { return {text.data(), text.size()}; }

// An error of Beast's that only stops the parser; what is wrong has been noted in the reader.
error_code stop() { return make_error_code(http::error::bad_value); }

}  // namespace

// Beast finds the parts; the rules above what it checks are here.
class RequestReader::Parser final : public http::basic_parser<true> {
 public:
  Parser(int64_t header_limit, int64_t body_limit)
      : header_limit_(static_cast<size_t>(header_limit)) {
    // The reader itself looks for the end of the head and presents it whole.
    this->header_limit(static_cast<std::uint32_t>(header_limit) + 4);
    this->body_limit(static_cast<std::uint64_t>(body_limit));
    eager(false);
  }

  size_t read(std::string_view bytes) {
    switch (stage) {
      case Stage::kHead:
        return read_head(bytes);
      case Stage::kBody:
        return read_body(bytes);
      default:
        return 0;
    }
  }

  Stage stage = Stage::kHead;
  HttpRequest request;
  bool is_head = false;
  bool is_http_1_0 = false;
  bool keeps = false;
  bool expects_continue = false;
  int64_t length = 0;
  int status = 0;
  std::string message;

 private:
  size_t read_head(std::string_view bytes) {
    // One empty line in front: old clients sent it behind a body (RFC 9112, 2.2).
    if (scanned_ == 0 && !skipped_line_) {
      if (bytes.empty() || bytes == "\r") return 0;
      skipped_line_ = true;
      if (bytes.starts_with("\r\n")) return 2;
    }
    const size_t size = scan(bytes.substr(0, header_limit_));
    if (stage == Stage::kRefused) return 0;
    if (size == 0) {
      if (bytes.size() >= header_limit_) {
        refuse(431,
               fmt::format("the request line and headers are longer than {} bytes", header_limit_));
      }
      return 0;
    }
    error_code error;
    put({bytes.data(), size}, error);
    if (error || !is_header_done()) {
      refuse_for(error);
      return 0;
    }
    check_head();
    if (stage == Stage::kRefused) return 0;
    keeps = keep_alive();
    stage = is_done() ? Stage::kDone : Stage::kBody;
    return size;
  }

  // The size of the head, 0: its end is not there yet. Refuses what may not be in one.
  size_t scan(std::string_view bytes) {
    for (; scanned_ < bytes.size(); ++scanned_) {
      const auto c = static_cast<unsigned char>(bytes[scanned_]);
      const char before = scanned_ == 0 ? '\0' : bytes[scanned_ - 1];
      if ((before == '\r') != (c == '\n')) {
        refuse(400, "a line of the head does not end with CR LF");
        return 0;
      }
      if (c == '\n') {
        if (scanned_ >= 3 && bytes[scanned_ - 2] == '\n') return scanned_ + 1;
        continue;
      }
      if (before == '\n' && (c == ' ' || c == '\t')) {
        refuse(400, "a header is folded over two lines");
        return 0;
      }
      if ((c < 0x20 && c != '\t' && c != '\r') || c == 0x7f) {
        refuse(400, "the head holds a control character");
        return 0;
      }
    }
    return 0;
  }

  size_t read_body(std::string_view bytes) {
    const size_t offered = bytes.size();
    // Beast asserts as many where a body's last chunk comes in pieces; none ends with fewer.
    const size_t least = chunked() ? 5 : 1;
    while (bytes.size() >= least && !is_done()) {
      error_code error;
      const size_t taken = put({bytes.data(), bytes.size()}, error);
      bytes.remove_prefix(taken);
      if (error == http::error::need_more) {
        if (bytes.size() >= kMaxChunkLine) refuse(400, "the line of a chunk's size is too long");
        break;
      }
      if (error) {
        refuse_for(error);
        break;
      }
    }
    if (stage == Stage::kBody && is_done()) stage = Stage::kDone;
    return offered - bytes.size();
  }

  void check_head() {
    is_http_1_0 = version_ == 10;
    if (hosts_ > 1 || (hosts_ == 0 && !is_http_1_0)) {
      return refuse(400, fmt::format("{} Host headers; send one", hosts_));
    }
    if (chunked() && is_http_1_0) return refuse(400, "HTTP/1.0 has no Transfer-Encoding");
    length = chunked() ? -1 : static_cast<int64_t>(content_length().value_or(0));
  }

  void on_request_impl(http::verb, Text method, Text target, int version, error_code& error) final {
    is_head = view(method) == "HEAD";
    version_ = version;
    std::string_view path = view(target);
    // The absolute form (RFC 9112, 3.2.2) names this server again.
    for (const std::string_view scheme : {"http://", "https://"}) {
      if (path.size() < scheme.size() ||
          !equals_ignoring_case(path.substr(0, scheme.size()), scheme)) {
        continue;
      }
      path.remove_prefix(scheme.size());
      path.remove_prefix(std::min(path.find('/'), path.size()));
    }
    if (!path.starts_with('/')) {
      refuse(400, "the request target does not begin with \"/\"");
      error = stop();
      return;
    }
    const size_t query = path.find('?');
    request.method = is_head ? "GET" : std::string(view(method));
    request.path = path.substr(0, query);
    if (query != std::string_view::npos) request.query = path.substr(query + 1);
  }

  void on_field_impl(http::field field, Text name, Text text, error_code& error) final {
    if (stage != Stage::kHead) return;  // trailers mean nothing here
    const std::string_view value = view(text);
    if (request.headers.size() == kMaxHeaders) {
      refuse(431, fmt::format("more than {} headers", kMaxHeaders));
    } else if (field == http::field::content_length) {
      // Beast takes "5, 5" and two equal ones.
      const bool digits =
          std::all_of(value.begin(), value.end(), [](char c) { return c >= '0' && c <= '9'; });
      if (!digits || has_length_) refuse(400, "Content-Length is not one number");
      has_length_ = true;
    } else if (field == http::field::transfer_encoding) {
      // Beast takes "gzip, chunked" for chunked and anything else for no body.
      if (!equals_ignoring_case(value, "chunked")) {
        refuse(400, "Transfer-Encoding can only be \"chunked\" here");
      }
    } else if (field == http::field::host) {
      ++hosts_;
    } else if (field == http::field::expect) {
      if (!equals_ignoring_case(value, "100-continue")) {
        refuse(417, "Expect can only be \"100-continue\" here");
      }
      expects_continue = version_ == 11;
    }
    if (stage == Stage::kRefused) {
      error = stop();
      return;
    }
    request.headers.push_back({std::string(view(name)), std::string(value)});
  }

  void on_header_impl(error_code&) final {}
  void on_response_impl(int, Text, int, error_code&) final {}

  void on_body_init_impl(const boost::optional<std::uint64_t>&, error_code&) final {}
  std::size_t on_body_impl(Text bytes, error_code&) final {
    request.body.append(bytes.data(), bytes.size());
    return bytes.size();
  }
  void on_chunk_header_impl(std::uint64_t, Text extensions, error_code& error) final {
    // Beast takes a line feed within quotes, where others end the line.
    const bool plain = std::all_of(extensions.begin(), extensions.end(), [](char c) {
      return c == '\t' || (static_cast<unsigned char>(c) >= 0x20 && c != 0x7f);
    });
    if (plain) return;
    refuse(400, "a chunk's extension holds a control character");
    error = stop();
  }
  std::size_t on_chunk_body_impl(std::uint64_t, Text bytes, error_code& error) final {
    return on_body_impl(bytes, error);
  }
  void on_finish_impl(error_code&) final {}

  void refuse(int with, std::string why) {
    if (stage == Stage::kRefused) return;
    stage = Stage::kRefused;
    status = with;
    message = std::move(why);
  }
  void refuse_for(const error_code& error) {
    if (error == http::error::body_limit) {
      refuse(413, "the body is larger than this server takes");
    } else {
      refuse(400, fmt::format("malformed request: {}", error.message()));
    }
  }

  size_t header_limit_;
  size_t scanned_ = 0;
  bool skipped_line_ = false;
  int version_ = 11;
  int hosts_ = 0;
  bool has_length_ = false;
};

RequestReader::RequestReader(int64_t header_limit, int64_t body_limit)
    : parser_(std::make_unique<Parser>(header_limit, body_limit)) {}
RequestReader::~RequestReader() = default;
RequestReader::RequestReader(RequestReader&&) noexcept = default;
RequestReader& RequestReader::operator=(RequestReader&&) noexcept = default;

size_t RequestReader::read(std::string_view bytes) { return parser_->read(bytes); }
RequestReader::Stage RequestReader::stage() const { return parser_->stage; }
HttpRequest& RequestReader::request() { return parser_->request; }
bool RequestReader::is_head() const { return parser_->is_head; }
bool RequestReader::is_http_1_0() const { return parser_->is_http_1_0; }
bool RequestReader::keep_alive() const { return parser_->keeps; }
bool RequestReader::expects_continue() const { return parser_->expects_continue; }
int64_t RequestReader::content_length() const { return parser_->length; }
int RequestReader::status() const { return parser_->status; }
const std::string& RequestReader::message() const { return parser_->message; }

}  // namespace tidemill
