#include "serve/http/http_post.h"

#include <exception>
#include <utility>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>

namespace tidemill {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;

using Request = http::request<http::string_body>;

constexpr size_t kMostAnswer = size_t{64} << 10;  // bytes of the body, which nobody reads

asio::awaitable<unsigned> exchange(const ServerUrl& url, Request& request) {
  const auto executor = co_await asio::this_coro::executor;
  asio::ip::tcp::resolver resolver(executor);
  const auto found = co_await resolver.async_resolve(url.host, url.port, asio::use_awaitable);
  beast::tcp_stream stream(executor);
  co_await stream.async_connect(found, asio::use_awaitable);
  co_await http::async_write(stream, request, asio::use_awaitable);
  beast::flat_buffer buffer;
  http::response_parser<http::string_body> response;
  response.body_limit(kMostAnswer);
  co_await http::async_read_header(stream, buffer, response, asio::use_awaitable);
  co_return response.get().result_int();
}

}  // namespace

Status http_post(const ServerUrl& url, std::string_view path, std::string body,
                 std::chrono::milliseconds timeout) {
  const std::string target = url.base + std::string(path);
  Request request(http::verb::post, target, 11);
  request.set(http::field::host, url.authority());
  request.set(http::field::content_type, "application/json");
  request.set(http::field::connection, "close");
  request.body() = std::move(body);
  request.prepare_payload();

  asio::io_context io(1);
  std::exception_ptr failed;
  unsigned status = 0;
  asio::co_spawn(io, exchange(url, request), [&](std::exception_ptr error, unsigned answered) {
    failed = error;
    status = answered;
  });
  io.run_for(timeout);
  if (!io.stopped()) {
    return fail(ErrorCode::kDeadline, "{}{}: no answer within {} ms", url.text(), path,
                timeout.count());
  }
  if (failed) {
    try {
      std::rethrow_exception(failed);
    } catch (const boost::system::system_error& error) {
      return fail(ErrorCode::kFileWrite, "{}{}: {}", url.text(), path, error.code().message());
    } catch (const std::exception& error) {
      return fail(ErrorCode::kFileWrite, "{}{}: {}", url.text(), path, error.what());
    }
  }
  if (status / 100 == 2) return {};
  return fail(ErrorCode::kFileWrite, "{}{}: status {}", url.text(), path, status);
}

}  // namespace tidemill
