#include "serve/service/service_handler.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "observe/prometheus_text.h"
#include "serve/page/status_page.h"
#include "serve/service/endpoints.h"
#include "serve/service/routes.h"

namespace tidemill {
namespace {

constexpr size_t kMostRequestId = 128;  // bytes of X-Request-Id that are repeated

HttpError client_error(int status, std::string message, std::string code) {
  return {.status = status,
          .message = std::move(message),
          .type = "invalid_request_error",
          .code = std::move(code)};
}

HttpError no_key(std::string_view presented) {
  return client_error(401,
                      presented.empty()
                          ? "no API key; send it as \"Authorization: Bearer KEY\" or \"x-api-key\""
                          : "this API key is not known here",
                      "invalid_api_key");
}

// Of the client, at paths that two protocols share.
Protocol protocol_of(const HttpHead& head) {
  const bool is_anthropic =
      !head.header("anthropic-version").empty() || head.path.starts_with("/anthropic/");
  return is_anthropic ? Protocol::kMessages : Protocol::kChat;
}

HttpResponse json_response(const Json& json, int status = 200) {
  return {.status = status, .headers = {}, .body = to_text(json)};
}

bool is_loopback(std::string_view peer) {
  return peer.starts_with("127.") || peer.starts_with("[::1]") || peer.starts_with("[::ffff:127.");
}

// "example.com" of "example.com:8000", "[::1]" of "[::1]:8000".
std::string_view without_port(std::string_view host) {
  const size_t colon = host.rfind(':');
  const size_t bracket = host.rfind(']');
  const bool has_port =
      colon != std::string_view::npos && (bracket == std::string_view::npos || colon > bracket);
  return has_port ? host.substr(0, colon) : host;
}

bool contains(const std::vector<std::string>& list, std::string_view value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

// A page of this server, or one that the operator named.
bool is_allowed_origin(const Service& service, const HttpHead& head, std::string_view origin) {
  const auto& origins = service.options.origins;
  if (contains(origins, origin) || contains(origins, "*")) return true;
  const size_t scheme = origin.find("://");
  return scheme != std::string_view::npos && origin.substr(scheme + 3) == head.header("host");
}

// Scripts of other web pages reach a server on the loopback interface through the user's browser,
// also by a name that resolves to it: neither is let in unasked.
std::optional<HttpError> check_origin(const Service& service, const HttpHead& head) {
  const auto& hosts = service.options.hosts;
  if (!hosts.empty() && !contains(hosts, without_port(head.header("host")))) {
    return client_error(403, "Host: this server does not answer to that name (--allow-host)",
                        "host_not_allowed");
  }
  const std::string_view origin = head.header("origin");
  if (origin.empty() || is_allowed_origin(service, head, origin)) return std::nullopt;
  return client_error(403, "Origin: pages of that site may not call this server (--allow-origin)",
                      "origin_not_allowed");
}

void add_origin_headers(const HttpHead& head, std::vector<HttpHeader>& headers) {
  const std::string_view origin = head.header("origin");
  if (origin.empty()) return;
  headers.push_back({"Access-Control-Allow-Origin", std::string(origin)});
  headers.push_back({"Vary", "Origin"});
}

HttpResponse preflight(const HttpHead& head) {
  HttpResponse response{.status = 204, .content_type = "", .headers = {}, .body = {}};
  add_origin_headers(head, response.headers);
  response.headers.push_back({"Access-Control-Allow-Methods", "GET, POST"});
  response.headers.push_back(
      {"Access-Control-Allow-Headers",
       "Authorization, Content-Type, X-Api-Key, X-Request-Timeout, X-Request-Id, Idempotency-Key, "
       "Anthropic-Version, Anthropic-Beta"});
  response.headers.push_back({"Access-Control-Max-Age", "600"});
  return response;
}

// What every answer to the request says besides its own headers.
std::vector<HttpHeader> common_headers(const HttpHead& head, Protocol protocol) {
  std::string id(head.header("x-request-id"));
  const bool is_plain = std::all_of(id.begin(), id.end(), [](char c) { return c > ' ' && c < 127; });
  if (id.empty() || id.size() > kMostRequestId || !is_plain) id = "req_" + random_nonce();
  std::vector<HttpHeader> headers = {{"X-Request-Id", id}};
  if (protocol == Protocol::kMessages) headers.push_back({"Request-Id", id});
  add_origin_headers(head, headers);
  return headers;
}

HttpResponse with_headers(HttpResponse response, const std::vector<HttpHeader>& headers) {
  response.headers.insert(response.headers.end(), headers.begin(), headers.end());
  return response;
}

std::string reason_of(const HttpError& error) {
  switch (error.status) {
    case 401:
    case 403:
      return "auth";
    case 503:
      return error.code == "draining" ? "draining" : "overloaded";
    case 409:
    case 410:
    case 422:
      return "conflict";
    default:
      return "invalid";
  }
}

}  // namespace

ServiceHandler::ServiceHandler(Service& service, HttpThread& thread, int threads)
    : service_(service),
      thread_(thread),
      threads_(static_cast<uint64_t>(threads)),
      // Never 0: the engine would take it for none.
      next_(threads_ + static_cast<uint64_t>(thread.index())) {}

tl::expected<const ApiClient*, HttpError> ServiceHandler::admit(const Route& route,
                                                                const HttpHead& head) const {
  const std::string_view key = presented_key(head);
  const ApiClient* client = service_.keys.find(key);
  if (route.access == Route::Access::kOpen) return client;
  if (client == nullptr) return tl::unexpected(no_key(key));
  if (route.access == Route::Access::kKey || client->admin) return client;
  // Without keys whoever is on this machine may.
  if (service_.keys.is_anonymous() && is_loopback(head.peer)) return client;
  return tl::unexpected(client_error(403, "this needs a key with admin = true", "not_admin"));
}

std::optional<HttpResponse> ServiceHandler::refuse(const HttpHead& head) {
  const FoundRoute found = find_route(head.method, head.path);
  const auto refusal = [&](const HttpError& error) {
    HttpResponse response = error_response(found.protocol, error);
    if (error.status == 401) response.headers.push_back({"WWW-Authenticate", "Bearer"});
    if (error.status == 405) response.headers.push_back({"Allow", std::string(found.allowed)});
    return with_headers(std::move(response), {{"X-Request-Id", "req_" + random_nonce()}});
  };
  if (const auto error = check_origin(service_, head)) return refusal(*error);
  if (head.method == "OPTIONS" && !head.header("origin").empty()) return preflight(head);
  if (found.route == nullptr && !found.allowed.empty()) {
    return refusal(client_error(405, fmt::format("{} is answered to {} only", head.path,
                                                 found.allowed),
                                "method_not_allowed"));
  }
  if (found.route == nullptr) {
    const bool embeds = head.path.ends_with("/embeddings");
    return refusal(client_error(
        404,
        embeds ? "this model makes text, not embeddings"
               : "nothing is here; answers are at POST /v1/chat/completions, /v1/completions, "
                 "/v1/responses and /v1/messages",
        "not_found"));
  }
  const Route& route = *found.route;
  const auto client = admit(route, head);
  std::optional<HttpError> error;
  if (!client) {
    error = client.error();
  } else if (route.endpoint == Endpoint::kAnswer && service_.draining) {
    error = draining_error();
  }
  if (!error) return std::nullopt;
  if (route.endpoint == Endpoint::kAnswer) {
    record_without_work(route, head, error->status, "refused", reason_of(*error));
  }
  return refusal(*error);
}

void ServiceHandler::handle(HttpRequest request, std::shared_ptr<HttpReply> reply) {
  const FoundRoute found = find_route(request.method, request.path);
  // refuse() has let it pass.
  switch (found.route->endpoint) {
    case Endpoint::kAnswer:
      return start_answer(*found.route, std::move(request), std::move(reply));
    case Endpoint::kTokenize:
    case Endpoint::kDetokenize:
    case Endpoint::kCountTokens:
      return start_work(*found.route, std::move(request), std::move(reply));
    default:
      reply->send(with_headers(answer_now(*found.route, request),
                               common_headers(request, found.protocol)));
  }
}

void ServiceHandler::start_answer(const Route& route, HttpRequest request,
                                  std::shared_ptr<HttpReply> reply) {
  const Clock::time_point now = Clock::now();
  Admission admission{.protocol = route.protocol,
                      .endpoint = route.path,
                      .client = service_.keys.find(presented_key(request)),
                      .headers = common_headers(request, route.protocol)};
  const auto refuse_it = [&](const HttpError& error, std::string reason) {
    record_without_work(route, request, error.status, "refused", std::move(reason));
    reply->send(with_headers(error_response(route.protocol, error), admission.headers));
  };

  admission.timeout_ms = 1e3 * service_.options.request_timeout_s;
  if (const std::string_view header = request.header("x-request-timeout"); !header.empty()) {
    const auto timeout = parse_timeout(header);
    if (!timeout) return refuse_it(http_error(timeout.error()), "invalid");
    admission.timeout_ms = *timeout;
  }
  if (const std::string_view key = request.header("idempotency-key"); !key.empty()) {
    auto begun = service_.idempotency.begin(
        admission.client->name, key, request_digest(request.method, request.path, request.body),
        now);
    if (!begun) return refuse_it(begun.error(), reason_of(begun.error()));
    if (begun->replay) {
      record_without_work(route, request, begun->replay->status, "replayed", "");
      admission.headers.push_back({"Idempotent-Replayed", "true"});
      return reply->send(with_headers({.status = begun->replay->status,
                                       .content_type = begun->replay->content_type,
                                       .headers = {},
                                       .body = begun->replay->body},
                                      admission.headers));
    }
    admission.claim = std::move(begun->claim);
  }
  auto permit = service_.quotas.admit(*admission.client, now);
  if (!permit) return refuse_it(permit.error().error, permit.error().reason);
  admission.permit = *std::move(permit);

  service_.metrics.received(route.path);
  const uint64_t number = std::exchange(next_, next_ + threads_);
  const auto exchange =
      std::make_shared<Exchange>(service_, thread_, number, std::move(admission),
                                 std::move(request), std::move(reply));
  exchanges_.emplace(number, exchange);
  exchange->start();
}

// Tokenising takes a while for long texts.
void ServiceHandler::start_work(const Route& route, HttpRequest request,
                                std::shared_ptr<HttpReply> reply) {
  const std::vector<HttpHeader> headers = common_headers(request, route.protocol);
  const uint64_t number = std::exchange(next_, next_ + threads_);
  const bool accepted = service_.workers.submit([this, number, &route, headers,
                                                 body = std::move(request.body)] {
    const auto run = route.endpoint == Endpoint::kTokenize     ? tokenize
                     : route.endpoint == Endpoint::kDetokenize ? detokenize
                                                               : count_tokens;
    const auto json = run(body, service_.model);
    auto response = std::make_shared<HttpResponse>(
        json ? json_response(*json) : error_response(route.protocol, json.error()));
    *response = with_headers(std::move(*response), headers);
    thread_.post([this, number, response] {
      const auto at = working_.find(number);
      at->second->send(std::move(*response));
      working_.erase(at);
    });
  });
  if (accepted) {
    working_.emplace(number, std::move(reply));
    return;
  }
  const HttpError error = overloaded_error("requests wait to be read");
  reply->send(with_headers(error_response(route.protocol, error), headers));
}

HttpResponse ServiceHandler::answer_now(const Route& route, const HttpRequest& request) {
  switch (route.endpoint) {
    case Endpoint::kModels:
      return json_response(models_json(service_, protocol_of(request)));
    case Endpoint::kModel: {
      const Protocol protocol = protocol_of(request);
      const auto model = model_json(service_, model_in_path(request.path), protocol);
      return model ? json_response(*model) : error_response(protocol, model.error());
    }
    case Endpoint::kUsage:
      return json_response(usage_json(service_, *service_.keys.find(presented_key(request))));
    case Endpoint::kStatus:
      return json_response(status_json(service_));
    case Endpoint::kTraces:
      return {.headers = {{"Content-Disposition", "attachment; filename=\"tidemill-trace.json\""}},
              .body = service_.traces.chrome_json()};
    case Endpoint::kDrain:
      service_.draining = true;
      return json_response({{"draining", true}, {"answers", service_.answers.load()}});
    case Endpoint::kLive:
      return json_response({{"status", "live"}});
    case Endpoint::kReady:
      if (service_.draining) return json_response({{"status", "draining"}}, 503);
      return json_response({{"status", "ready"}});
    case Endpoint::kMetrics:
      return {.content_type = std::string(kPrometheusContentType),
              .headers = {},
              .body = metrics_text(service_)};
    case Endpoint::kVersion:
      return json_response({{"version", TIDEMILL_VERSION}});
    default:
      break;
  }
  return {.content_type = "text/html; charset=utf-8",
          // The page is one file and talks to nobody but its own server.
          .headers = {{"Content-Security-Policy",
                       "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
                       "img-src data:; connect-src 'self'; frame-ancestors 'none'"},
                      {"X-Content-Type-Options", "nosniff"}},
          .body = std::string(status_page())};
}

std::string ServiceHandler::error_body(int status, const std::string& message) {
  service_.metrics.refused("http");
  return to_text(openai_error(status < 500
                                  ? client_error(status, message, "invalid_request_error")
                                  : overloaded_error(message)));
}

void ServiceHandler::record_without_work(const Route& route, const HttpHead& head, int status,
                                         std::string outcome, std::string reason) {
  service_.metrics.received(route.path);
  RequestRecord record;
  record.endpoint = route.path;
  const ApiClient* client = service_.keys.find(presented_key(head));
  record.client = client != nullptr ? client->name : "unknown";
  record.status = status;
  record.outcome = std::move(outcome);
  record.reason = std::move(reason);
  record.ended_ms = 1e3 * seconds_since(head.arrived);
  record.arrived_unix_s = unix_seconds() - 1e-3 * record.ended_ms;
  service_.record(record);
}

void ServiceHandler::tick() {
  const Clock::time_point now = Clock::now();
  for (auto at = exchanges_.begin(); at != exchanges_.end();) {
    at->second->tick(now);
    at = at->second->ended() ? exchanges_.erase(at) : std::next(at);
  }
}

void ServiceHandler::take(std::vector<Event> events) {
  for (Event& event : events) {
    const auto at = exchanges_.find(EngineId::exchange(event.id));
    if (at == exchanges_.end()) continue;
    at->second->take(std::move(event));
    if (at->second->ended()) exchanges_.erase(at);
  }
}

void ServiceHandler::abort_all(const HttpError& error, const std::string& reason) {
  for (const auto& [number, exchange] : exchanges_) exchange->abort(error, reason);
}

}  // namespace tidemill
