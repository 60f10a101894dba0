#include "cli/load/body.h"

namespace tidemill::cli {
namespace {

constexpr uint64_t kWarmupStreams = uint64_t{1} << 40;  // above every index

}  // namespace

std::string_view path_of(LoadEndpoint endpoint) {
  return endpoint == LoadEndpoint::kChat ? "/v1/chat/completions" : "/v1/completions";
}

std::string LoadBodies::body(size_t index) const {
  return drawn_body(index, trace.empty() ? TraceItem{} : trace[index]);
}

std::string LoadBodies::warmup_body(size_t index) const {
  return drawn_body(kWarmupStreams + index, {});
}

std::string LoadBodies::drawn_body(uint64_t stream, const TraceItem& item) const {
  const DrawnLengths drawn = draw_lengths(shape, stream);
  const auto prompt = [&] {
    if (item.prompt) return *item.prompt;
    return make_prompt(shape, stream, item.prompt_tokens.value_or(drawn.prompt_tokens));
  };
  Json json = {{"model", model}};
  if (endpoint == LoadEndpoint::kCompletions) {
    json["prompt"] = prompt();
  } else if (!item.messages.is_null()) {
    json["messages"] = item.messages;
  } else {
    Json message = {{"role", "user"}};
    message["content"] = prompt();
    json["messages"] = Json::array({std::move(message)});
  }
  json["max_tokens"] = item.max_tokens.value_or(drawn.output_tokens);
  if (item.priority) json["priority"] = *item.priority;
  if (ignore_eos) json["ignore_eos"] = true;
  json["stream"] = true;
  json["stream_options"] = {{"include_usage", true}};
  json.update(extra);
  // The name of a model on the command line need not be UTF-8.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace tidemill::cli
