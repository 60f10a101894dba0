// The JSON bodies of a load run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "cli/load/prompts.h"
#include "cli/load/trace.h"

namespace tidemill::cli {

enum class LoadEndpoint { kChat, kCompletions };
std::string_view path_of(LoadEndpoint endpoint);  // "/v1/chat/completions"

// Owns nothing large: a body is made when its request is next, from the seed or the trace.
struct LoadBodies {
  LoadEndpoint endpoint = LoadEndpoint::kChat;
  std::string model;
  bool ignore_eos = false;
  Json extra = Json::object();  // merged into every body; its fields win
  PromptShape shape;
  std::span<const TraceItem> trace;  // empty: all drawn from `shape`

  // Streaming with usage. The same index gives the same bytes.
  std::string body(size_t index) const;
  // Of a warm-up request: drawn from `shape`, of an own text, so that a prefix cache cannot know
  // the measured ones from it.
  std::string warmup_body(size_t index) const;

 private:
  std::string drawn_body(uint64_t stream, const TraceItem& item) const;
};

}  // namespace tidemill::cli
