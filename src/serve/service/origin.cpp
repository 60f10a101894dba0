#include "serve/service/origin.h"

#include <algorithm>

#include "serve/http/http_text.h"

namespace tidemill {
namespace {

// "example.com" of "example.com:8000", "[::1]" of "[::1]:8000".
std::string_view without_port(std::string_view host) {
  const size_t colon = host.rfind(':');
  const size_t bracket = host.rfind(']');
  const bool has_port =
      colon != std::string_view::npos && (bracket == std::string_view::npos || colon > bracket);
  return has_port ? host.substr(0, colon) : host;
}

bool contains(const std::vector<std::string>& list, std::string_view value) {
  return std::any_of(list.begin(), list.end(),
                     [&](const std::string& one) { return equals_ignoring_case(one, value); });
}

// A page of this server, or one that the operator named.
bool is_allowed_origin(const ServiceOptions& options, const HttpHead& head,
                       std::string_view origin) {
  const auto& origins = options.origins;
  if (contains(origins, origin) || contains(origins, "*")) return true;
  const size_t scheme = origin.find("://");
  return scheme != std::string_view::npos && origin.substr(scheme + 3) == head.header("host");
}

}  // namespace

bool is_local(const HttpHead& head) {
  const std::string_view peer = head.peer;
  const bool loopback =
      peer.starts_with("127.") || peer.starts_with("[::1]") || peer.starts_with("[::ffff:127.");
  const std::string_view host = without_port(head.header("host"));
  const bool is_number = host.find_first_not_of("0123456789.") == std::string_view::npos;
  const bool named = equals_ignoring_case(host, "localhost") || host == "[::1]" ||
                     (is_number && host.starts_with("127."));
  return loopback && named && head.header("forwarded").empty() &&
         head.header("x-forwarded-for").empty();
}

std::optional<HttpError> check_origin(const ServiceOptions& options, const HttpHead& head) {
  const auto& hosts = options.hosts;
  if (!hosts.empty() && !contains(hosts, without_port(head.header("host")))) {
    return client_error(403, "Host: this server does not answer to that name (--allow-host)",
                        "host_not_allowed");
  }
  const std::string_view origin = head.header("origin");
  if (origin.empty() || is_allowed_origin(options, head, origin)) return std::nullopt;
  return client_error(403,
                      "Origin: pages of that site may not call this server (--allowed-origins)",
                      "origin_not_allowed");
}

void add_origin_headers(const HttpHead& head, std::vector<HttpHeader>& headers) {
  const std::string_view origin = head.header("origin");
  if (origin.empty()) return;
  headers.push_back({"Access-Control-Allow-Origin", std::string(origin)});
  headers.push_back({"Access-Control-Expose-Headers",
                     "Retry-After, X-Request-Id, Request-Id, X-Seed, X-Ignored-Fields"});
  headers.push_back({"Vary", "Origin, Access-Control-Request-Headers"});
}

HttpResponse preflight(const HttpHead& head) {
  HttpResponse response{.status = 204, .content_type = "", .headers = {}, .body = {}};
  add_origin_headers(head, response.headers);
  response.headers.push_back({"Access-Control-Allow-Methods", "GET, POST"});
  // Client libraries have headers of their own.
  response.headers.push_back(
      {"Access-Control-Allow-Headers", std::string(head.header("access-control-request-headers"))});
  response.headers.push_back({"Access-Control-Max-Age", "600"});
  return response;
}

}  // namespace tidemill
