#include "serve/service/routes.h"

#include <algorithm>
#include <array>

namespace tidemill {
namespace {

using Access = Route::Access;

constexpr std::string_view kModelPath = "/v1/models/";

constexpr auto kRoutes = std::to_array<Route>({
    {"POST", "/v1/chat/completions", Endpoint::kAnswer, Access::kKey},
    {"POST", "/v1/completions", Endpoint::kAnswer, Access::kKey, Protocol::kCompletions},
    {"POST", "/v1/responses", Endpoint::kAnswer, Access::kKey, Protocol::kResponses},
    {"POST", "/v1/messages", Endpoint::kAnswer, Access::kKey, Protocol::kMessages},
    {"POST", "/v1/messages/count_tokens", Endpoint::kCountTokens, Access::kKey,
     Protocol::kMessages},
    {"GET", "/v1/models", Endpoint::kModels, Access::kKey},
    {"GET", kModelPath, Endpoint::kModel, Access::kKey},
    {"GET", "/v1/usage", Endpoint::kUsage, Access::kKey},
    {"GET", "/v1/status", Endpoint::kStatus, Access::kAdmin},
    {"GET", "/v1/traces", Endpoint::kTraces, Access::kAdmin},
    {"POST", "/tokenize", Endpoint::kTokenize, Access::kKey},
    {"POST", "/detokenize", Endpoint::kDetokenize, Access::kKey},
    {"POST", "/drain", Endpoint::kDrain, Access::kAdmin},
    {"GET", "/health", Endpoint::kReady, Access::kOpen},
    {"GET", "/health/live", Endpoint::kLive, Access::kOpen},
    {"GET", "/health/ready", Endpoint::kReady, Access::kOpen},
    {"GET", "/metrics", Endpoint::kMetrics, Access::kOpen},
    {"GET", "/version", Endpoint::kVersion, Access::kOpen},
    {"GET", "/", Endpoint::kPage, Access::kOpen},
});

bool take_prefix(std::string_view& path, std::string_view prefix) {
  if (path.size() <= prefix.size() || !path.starts_with(prefix) || path[prefix.size()] != '/') {
    return false;
  }
  path.remove_prefix(prefix.size());
  return true;
}

// Is `path`, which may lack "/v1", the route's?
bool is_at(const Route& route, std::string_view path) {
  std::string_view own = route.path;
  if (!take_prefix(own, "/v1")) return path == own;
  take_prefix(path, "/v1");
  if (own.ends_with('/')) return path.size() > own.size() && path.starts_with(own);
  return path == own;
}

}  // namespace

FoundRoute find_route(std::string_view method, std::string_view path) {
  FoundRoute found;
  if (take_prefix(path, "/anthropic")) {
    found.protocol = Protocol::kMessages;
  } else {
    take_prefix(path, "/beta");
  }
  for (const Route& route : kRoutes) {
    if (!is_at(route, path)) continue;
    if (route.protocol == Protocol::kMessages) found.protocol = Protocol::kMessages;
    found.allowed = route.method;
    if (route.method == method) found.route = &route;
    break;
  }
  return found;
}

std::string_view model_in_path(std::string_view path) {
  constexpr std::string_view kBefore = "/models/";
  const size_t at = path.find(kBefore);
  return at == std::string_view::npos ? "" : path.substr(at + kBefore.size());
}

}  // namespace tidemill
