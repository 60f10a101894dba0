#include "serve/service/service_handler.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "observe/prometheus_text.h"
#include "serve/page/status_page.h"
#include "serve/service/endpoints.h"
#include "serve/service/origin.h"
#include "serve/service/routes.h"

namespace tidemill {
namespace {

constexpr size_t kMostRequestId = 128;  // bytes of X-Request-Id that are repeated

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

// The client's X-Request-Id, or one of ours.
std::string request_id_of(const HttpHead& head) {
  std::string id(head.header("x-request-id"));
  const bool is_plain =
      std::all_of(id.begin(), id.end(), [](char c) { return c > ' ' && c < 127; });
  if (id.empty() || id.size() > kMostRequestId || !is_plain) id = "req_" + random_nonce();
  return id;
}

// What every answer to the request says besides its own headers.
std::vector<HttpHeader> common_headers(const HttpHead& head, Protocol protocol,
                                       const std::string& id) {
  std::vector<HttpHeader> headers = {{"X-Request-Id", id}};
  if (protocol == Protocol::kMessages) headers.push_back({"Request-Id", id});
  add_origin_headers(head, headers);
  return headers;
}

HttpResponse with_headers(HttpResponse response, const std::vector<HttpHeader>& headers) {
  response.headers.insert(response.headers.end(), headers.begin(), headers.end());
  return response;
}

// Needs a work thread.
bool is_work(const Route& route) {
  return route.endpoint == Endpoint::kAnswer || route.endpoint == Endpoint::kTokenize ||
         route.endpoint == Endpoint::kDetokenize || route.endpoint == Endpoint::kCountTokens;
}

// On a work thread.
HttpResponse work_on(const Route& route, const std::string& body, const ServedModel& model) {
  const auto run = route.endpoint == Endpoint::kTokenize     ? tokenize
                   : route.endpoint == Endpoint::kDetokenize ? detokenize
                                                             : count_tokens;
  try {
    const auto json = run(body, model);
    return json ? json_response(*json) : error_response(route.protocol, json.error());
  } catch (const std::exception& error) {
    return error_response(route.protocol, report({ErrorCode::kInternal, error.what()}, route.path));
  }
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
  if (service_.keys.is_anonymous() && is_local(head)) return client;
  return tl::unexpected(client_error(403, "this needs a key with admin = true", "not_admin"));
}

std::optional<HttpResponse> ServiceHandler::refuse(const HttpHead& head) {
  const FoundRoute found = find_route(head.method, head.path);
  const std::string id = request_id_of(head);
  const auto refusal = [&](const HttpError& error) {
    HttpResponse response = error_response(found.protocol, error);
    if (error.status == 401) response.headers.push_back({"WWW-Authenticate", "Bearer"});
    if (error.status == 405) response.headers.push_back({"Allow", std::string(found.allowed)});
    return with_headers(std::move(response), common_headers(head, found.protocol, id));
  };
  if (const auto error = check_origin(service_.options, head)) {
    return with_headers(error_response(found.protocol, *error), {{"X-Request-Id", id}});
  }
  if (head.method == "OPTIONS" && !head.header("origin").empty()) return preflight(head);
  if (found.route == nullptr && !found.allowed.empty()) {
    return refusal(client_error(405,
                                fmt::format("{} is answered to {} only", head.path, found.allowed),
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
  } else if (is_work(route) && service_.draining) {
    error = draining_error();
  }
  if (!error) return std::nullopt;
  if (route.endpoint == Endpoint::kAnswer) {
    record_without_work(
        route, head,
        {.id = id, .status = error->status, .outcome = "refused", .reason = reason_of(*error)});
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
                               common_headers(request, found.protocol, request_id_of(request))));
  }
}

void ServiceHandler::start_answer(const Route& route, HttpRequest request,
                                  std::shared_ptr<HttpReply> reply) {
  const Clock::time_point now = Clock::now();
  const std::string id = request_id_of(request);
  Admission admission{.protocol = route.protocol,
                      .endpoint = route.path,
                      .request_id = id,
                      .client = service_.keys.find(presented_key(request)),
                      .headers = common_headers(request, route.protocol, id)};
  const auto refuse_it = [&](const HttpError& error, std::string reason) {
    record_without_work(
        route, request,
        {.id = id, .status = error.status, .outcome = "refused", .reason = std::move(reason)});
    reply->send(with_headers(error_response(route.protocol, error), admission.headers));
  };

  // The body came while the server began to drain.
  if (service_.draining) return refuse_it(draining_error(), "draining");
  admission.timeout_ms = 1e3 * service_.options.request_timeout_s;
  if (const std::string_view header = request.header("x-request-timeout"); !header.empty()) {
    const auto timeout = parse_timeout(header);
    if (!timeout) return refuse_it(http_error(timeout.error()), "invalid");
    admission.timeout_ms = *timeout;
  }
  if (const std::string_view key = request.header("idempotency-key"); !key.empty()) {
    auto begun =
        service_.idempotency.begin(admission.client->name, key,
                                   request_digest(request.method, request.path, request.body), now);
    if (!begun) return refuse_it(begun.error(), reason_of(begun.error()));
    if (begun->replay) {
      return replay(route, request, *begun->replay, admission, *reply);
    }
    admission.claim = std::move(begun->claim);
  }
  auto permit = service_.quotas.admit(*admission.client, now);
  if (!permit) return refuse_it(permit.error().error, permit.error().reason);
  admission.permit = *std::move(permit);

  service_.metrics.received(route.path);
  const uint64_t number = std::exchange(next_, next_ + threads_);
  const auto exchange = std::make_shared<Exchange>(service_, thread_, number, std::move(admission),
                                                   std::move(request), std::move(reply));
  exchanges_.emplace(number, exchange);
  exchange->start();
}

void ServiceHandler::replay(const Route& route, const HttpRequest& request,
                            const StoredResponse& stored, const Admission& admission,
                            HttpReply& reply) {
  record_without_work(route, request,
                      {.id = admission.request_id,
                       .stream = stored.stream,
                       .status = stored.status,
                       .outcome = "replayed",
                       .bytes_sent = static_cast<int64_t>(stored.body.size())});
  HttpResponse response;
  if (stored.stream) response = stream_head();
  response.status = stored.status;
  response.content_type = stored.content_type;
  response.body = stored.body;
  response.headers.push_back({"Idempotent-Replayed", "true"});
  reply.send(with_headers(std::move(response), admission.headers));
}

// Tokenising takes a while for long texts.
void ServiceHandler::start_work(const Route& route, HttpRequest request,
                                std::shared_ptr<HttpReply> reply) {
  const ApiClient& client = *service_.keys.find(presented_key(request));
  const std::vector<HttpHeader> headers =
      common_headers(request, route.protocol, request_id_of(request));
  const auto refuse_it = [&](const HttpError& error) {
    reply->send(with_headers(error_response(route.protocol, error), headers));
  };
  if (service_.draining) return refuse_it(draining_error());
  auto permit = service_.quotas.admit(client, Clock::now());
  if (!permit) return refuse_it(permit.error().error);

  const uint64_t number = std::exchange(next_, next_ + threads_);
  const auto bytes = static_cast<int64_t>(request.body.size());
  const bool accepted = service_.workers.submit(
      client.tenant, bytes, [this, number, &route, headers, body = std::move(request.body)] {
        auto response = std::make_shared<HttpResponse>(
            with_headers(work_on(route, body, service_.model), headers));
        thread_.post([this, number, response] {
          const auto at = working_.find(number);
          at->second.reply->send(std::move(*response));
          working_.erase(at);
        });
      });
  if (!accepted) return refuse_it(overloaded_error("requests wait to be read"));
  working_.emplace(number, Working{std::move(reply), *std::move(permit)});
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
      if (!service_.engine.is_healthy()) return json_response({{"status", "failed"}}, 503);
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

std::string ServiceHandler::error_body(int status, const std::string& message,
                                       const HttpHead* head) {
  service_.metrics.refused("http");
  HttpError error = client_error(status, message, "invalid_request_error");
  if (status >= 500) {
    error.type = "server_error";
    error.code = status == 503 ? "overloaded" : "internal_error";
  }
  const Protocol protocol =
      head != nullptr ? find_route(head->method, head->path).protocol : Protocol::kChat;
  return to_text(error_json(protocol, error));
}

void ServiceHandler::record_without_work(const Route& route, const HttpHead& head,
                                         RequestRecord record) {
  service_.metrics.received(route.path);
  record.request_id = record.id;
  record.endpoint = route.path;
  const ApiClient* client = service_.keys.find(presented_key(head));
  record.client = client != nullptr ? client->name : "unknown";
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
    // What goes wrong with one answer must not cost the others their events.
    try {
      at->second->take(std::move(event));
    } catch (const std::exception& error) {
      at->second->break_off(report({ErrorCode::kInternal, error.what()}, "an answer"));
    }
    if (at->second->ended()) exchanges_.erase(at);
  }
}

void ServiceHandler::abort_all(const HttpError& error, const std::string& reason) {
  for (const auto& [number, exchange] : exchanges_) exchange->abort(error, reason);
}

}  // namespace tidemill
