// The paths of the server.
#pragma once

#include <string_view>

#include "serve/http/http.h"
#include "serve/service/answer_sink.h"

namespace tidemill {

enum class Endpoint : uint8_t {
  kAnswer,  // Route::protocol
  kCountTokens,
  kTokenize,
  kDetokenize,
  kModels,
  kModel,  // one of them, named behind the path
  kUsage,
  kStatus,
  kTraces,
  kDrain,
  kLive,
  kReady,
  kMetrics,
  kVersion,
  kPage,
};

struct Route {
  enum class Access : uint8_t { kOpen, kKey, kAdmin };

  std::string_view method;
  std::string_view path;  // of a protocol's endpoint: with "/v1"
  Endpoint endpoint;
  Access access;
  Protocol protocol = Protocol::kChat;  // also of its errors
};

struct FoundRoute {
  const Route* route = nullptr;         // null: 404, or 405 if
  std::string_view allowed;             // another method is known here
  Protocol protocol = Protocol::kChat;  // of errors at this path
};

FoundRoute find_route(std::string_view method, std::string_view path);

// Behind "/v1/models/", decoded no further.
std::string_view model_in_path(std::string_view path);

}  // namespace tidemill
