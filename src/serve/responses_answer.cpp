#include "serve/responses_answer.h"

namespace tidemill {
namespace {

using Kind = OutputDelta::Kind;

Json part_json(Kind kind, const std::string& text) {
  if (kind == Kind::kReasoning) return {{"type", "reasoning_text"}, {"text", text}};
  return {{"type", "output_text"},
          {"text", text},
          {"annotations", Json::array()},
          {"logprobs", Json::array()}};
}

}  // namespace

Json ResponsesAnswer::item_json(const Item& item, bool with_text) {
  Json content = Json::array();
  if (with_text) content.push_back(part_json(item.kind, item.text));
  switch (item.kind) {
    case Kind::kReasoning:
      return {{"id", item.id},
              {"type", "reasoning"},
              {"summary", Json::array()},
              {"content", std::move(content)},
              {"status", item.status}};
    case Kind::kContent:
      return {{"id", item.id},
              {"type", "message"},
              {"role", "assistant"},
              {"status", item.status},
              {"content", std::move(content)},
              {"phase", item.is_comment ? "commentary" : "final_answer"}};
    default:
      return {{"id", item.id},
              {"type", "function_call"},
              {"call_id", item.call.id},
              {"name", item.call.name},
              {"arguments", with_text ? item.text : ""},
              {"status", item.status}};
  }
}

Json ResponsesAnswer::response() const {
  Json output = Json::array();
  for (const Item& item : items_) output.push_back(item_json(item, true));
  Json json = {{"id", "resp_" + head_.nonce},
               {"object", "response"},
               {"created_at", head_.created},
               {"status", status_},
               {"error", error_},
               {"incomplete_details", details_},
               {"model", head_.model},
               {"output", std::move(output)}};
  json.update(echo_);
  json["usage"] = usage_;
  return json;
}

StreamEvent ResponsesAnswer::event(const char* type, Json fields) {
  Json json = {{"type", type}, {"sequence_number", sequence_++}};
  json.update(fields);
  return {.name = type, .data = to_text(json)};
}

StreamEvent ResponsesAnswer::part_event(const char* type, Json fields) {
  const Item& item = items_.back();
  Json json = {{"item_id", item.id}, {"output_index", items_.size() - 1}};
  if (item.kind != Kind::kToolCallBegin) json["content_index"] = 0;
  json.update(fields);
  return event(type, std::move(json));
}

std::vector<StreamEvent> ResponsesAnswer::begin() {
  std::vector<StreamEvent> events;
  events.push_back(event("response.created", {{"response", response()}}));
  events.push_back(event("response.in_progress", {{"response", response()}}));
  return events;
}

void ResponsesAnswer::open(Item item, std::vector<StreamEvent>& events) {
  close("completed", item.kind == Kind::kToolCallBegin, events);
  const char* prefix = item.kind == Kind::kReasoning ? "rs"
                       : item.kind == Kind::kContent ? "msg"
                                                     : "fc";
  item.id = fmt::format("{}_{}_{}", prefix, head_.nonce, items_.size());
  items_.push_back(std::move(item));
  open_ = true;
  events.push_back(
      event("response.output_item.added",
            {{"output_index", items_.size() - 1}, {"item", item_json(items_.back(), false)}}));
  const Kind kind = items_.back().kind;
  if (kind == Kind::kToolCallBegin) return;
  events.push_back(part_event("response.content_part.added", {{"part", part_json(kind, "")}}));
}

void ResponsesAnswer::close(const char* status, bool before_call,
                            std::vector<StreamEvent>& events) {
  if (!open_) return;
  open_ = false;
  Item& item = items_.back();
  item.status = status;
  item.is_comment = before_call;
  switch (item.kind) {
    case Kind::kReasoning:
      events.push_back(part_event("response.reasoning_text.done", {{"text", item.text}}));
      break;
    case Kind::kContent:
      events.push_back(part_event("response.output_text.done",
                                  {{"text", item.text}, {"logprobs", Json::array()}}));
      break;
    default:
      events.push_back(part_event("response.function_call_arguments.done",
                                  {{"name", item.call.name}, {"arguments", item.text}}));
  }
  if (item.kind != Kind::kToolCallBegin) {
    events.push_back(
        part_event("response.content_part.done", {{"part", part_json(item.kind, item.text)}}));
  }
  events.push_back(event("response.output_item.done",
                         {{"output_index", items_.size() - 1}, {"item", item_json(item, true)}}));
}

void ResponsesAnswer::add(const char* type, const std::string& text,
                          std::vector<StreamEvent>& events) {
  items_.back().text += text;
  Json fields = {{"delta", text}};
  if (items_.back().kind == Kind::kContent) fields["logprobs"] = Json::array();
  events.push_back(part_event(type, std::move(fields)));
}

std::vector<StreamEvent> ResponsesAnswer::push(const std::vector<OutputDelta>& deltas) {
  std::vector<StreamEvent> events;
  for (const OutputDelta& delta : deltas) {
    const bool continues = open_ && items_.back().kind == delta.kind;
    switch (delta.kind) {
      case Kind::kReasoning:
        if (!continues) open({.kind = delta.kind}, events);
        add("response.reasoning_text.delta", delta.text, events);
        break;
      case Kind::kContent:
        if (!continues) open({.kind = delta.kind}, events);
        add("response.output_text.delta", delta.text, events);
        break;
      case Kind::kToolCallBegin:
        open({.kind = delta.kind,
              .call = {.id = tool_call_id(head_, 0, delta.index), .name = delta.text}},
             events);
        break;
      case Kind::kToolCallArguments:
        add("response.function_call_arguments.delta", delta.text, events);
        break;
      case Kind::kToolCallEnd:
        close("completed", false, events);
        break;
    }
  }
  return events;
}

std::vector<StreamEvent> ResponsesAnswer::finish(AnswerEnd end, const AnswerUsage& usage) {
  std::vector<StreamEvent> events;
  const bool whole =
      end == AnswerEnd::kStop || end == AnswerEnd::kStopString || end == AnswerEnd::kToolCalls;
  close(whole ? "completed" : "incomplete", false, events);
  status_ = whole ? "completed" : "incomplete";
  if (end == AnswerEnd::kLength) details_ = {{"reason", "max_output_tokens"}};
  usage_ = {
      {"input_tokens", usage.prompt_tokens},
      {"input_tokens_details", {{"cached_tokens", usage.cached_tokens}, {"cache_write_tokens", 0}}},
      {"output_tokens", usage.output_tokens},
      {"output_tokens_details", {{"reasoning_tokens", usage.reasoning_tokens}}},
      {"total_tokens", usage.prompt_tokens + usage.output_tokens}};
  events.push_back(
      event(whole ? "response.completed" : "response.incomplete", {{"response", response()}}));
  return events;
}

std::vector<StreamEvent> ResponsesAnswer::fail(const HttpError& error) {
  std::vector<StreamEvent> events;
  close("incomplete", false, events);
  status_ = "failed";
  // The schema's codes are few.
  const char* code = error.status < 500    ? "invalid_prompt"
                     : error.status == 503 ? "rate_limit_exceeded"
                                           : "server_error";
  error_ = {{"code", code}, {"message", error.message}};
  events.push_back(event("response.failed", {{"response", response()}}));
  return events;
}

}  // namespace tidemill
