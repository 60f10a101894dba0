#include "serve/messages_answer.h"

namespace tidemill {
namespace {

using Kind = OutputDelta::Kind;

std::string message_id(const AnswerHead& head) { return "msg_" + head.nonce; }

// input_tokens: those that the cache did not hold.
Json usage_json(const AnswerUsage& usage) {
  return {{"input_tokens", usage.prompt_tokens - usage.cached_tokens},
          {"cache_creation_input_tokens", 0},
          {"cache_read_input_tokens", usage.cached_tokens},
          {"output_tokens", usage.output_tokens}};
}

Json stop_reason(AnswerEnd end) {
  switch (end) {
    case AnswerEnd::kStop:
      return "end_turn";
    case AnswerEnd::kStopString:
      return "stop_sequence";
    case AnswerEnd::kToolCalls:
      return "tool_use";
    case AnswerEnd::kLength:
      return "max_tokens";
    case AnswerEnd::kCancelled:
    case AnswerEnd::kFailed:
      break;
  }
  return nullptr;
}

Json stop_fields(AnswerEnd end, const std::string& stop) {
  return {{"stop_reason", stop_reason(end)}, {"stop_sequence", stop.empty() ? Json() : Json(stop)}};
}

Json message_json(const AnswerHead& head, Json content, Json stop, Json usage) {
  Json json = {{"id", message_id(head)},
               {"type", "message"},
               {"role", "assistant"},
               {"model", head.model},
               {"content", std::move(content)}};
  json.update(stop);
  json["usage"] = std::move(usage);
  return json;
}

StreamEvent event(Json json) {
  return {.name = json.at("type").get<std::string>(), .data = to_text(json)};
}

Json tool_use(std::string id, std::string name, Json input) {
  return {{"type", "tool_use"},
          {"id", std::move(id)},
          {"name", std::move(name)},
          {"input", std::move(input)}};
}

// What is no object becomes one, as in the prompt of the next turn.
Json input_json(const std::string& arguments) {
  Result<Json> input = parse_json(arguments);
  if (input && input->is_object()) return *std::move(input);
  return {{"arguments", arguments}};
}

}  // namespace

std::vector<StreamEvent> MessagesStream::begin(int64_t prompt_tokens) const {
  AnswerUsage usage;
  usage.prompt_tokens = prompt_tokens;
  return {event({{"type", "message_start"},
                 {"message", message_json(head_, Json::array(), stop_fields(AnswerEnd::kFailed, ""),
                                          usage_json(usage))}})};
}

StreamEvent MessagesStream::ping() { return event({{"type", "ping"}}); }

void MessagesStream::open(Kind kind, Json block, std::vector<StreamEvent>& events) {
  close(events);
  open_ = kind;
  ++index_;
  events.push_back(event(
      {{"type", "content_block_start"}, {"index", index_}, {"content_block", std::move(block)}}));
  if (index_ == 0) events.push_back(ping());
}

void MessagesStream::add(Json delta, std::vector<StreamEvent>& events) const {
  events.push_back(
      event({{"type", "content_block_delta"}, {"index", index_}, {"delta", std::move(delta)}}));
}

void MessagesStream::close(std::vector<StreamEvent>& events) {
  if (!open_) return;
  if (*open_ == Kind::kReasoning) {
    add({{"type", "signature_delta"}, {"signature", message_id(head_)}}, events);
  }
  events.push_back(event({{"type", "content_block_stop"}, {"index", index_}}));
  open_.reset();
}

std::vector<StreamEvent> MessagesStream::push(const std::vector<OutputDelta>& deltas) {
  std::vector<StreamEvent> events;
  for (const OutputDelta& delta : deltas) {
    switch (delta.kind) {
      case Kind::kReasoning:
        if (open_ != Kind::kReasoning) {
          open(delta.kind, {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}}, events);
        }
        add({{"type", "thinking_delta"}, {"thinking", delta.text}}, events);
        break;
      case Kind::kContent:
        if (open_ != Kind::kContent) {
          open(delta.kind, {{"type", "text"}, {"text", ""}}, events);
        }
        add({{"type", "text_delta"}, {"text", delta.text}}, events);
        break;
      case Kind::kToolCallBegin:
        open(delta.kind, tool_use(tool_call_id(head_, 0, delta.index), delta.text, Json::object()),
             events);
        break;
      case Kind::kToolCallArguments:
        add({{"type", "input_json_delta"}, {"partial_json", delta.text}}, events);
        break;
      case Kind::kToolCallEnd:
        close(events);
        break;
    }
  }
  return events;
}

std::vector<StreamEvent> MessagesStream::finish(AnswerEnd end, const std::string& stop,
                                                const AnswerUsage& usage) {
  std::vector<StreamEvent> events;
  close(events);
  events.push_back(event({{"type", "message_delta"},
                          {"delta", stop_fields(end, stop)},
                          {"usage", usage_json(usage)}}));
  events.push_back(event({{"type", "message_stop"}}));
  return events;
}

std::vector<StreamEvent> MessagesStream::fail(const HttpError& error) {
  return {event(anthropic_error(error))};
}

void MessagesAnswer::push(const std::vector<OutputDelta>& deltas) {
  for (const OutputDelta& delta : deltas) {
    switch (delta.kind) {
      case Kind::kReasoning:
      case Kind::kContent:
        if (blocks_.empty() || blocks_.back().kind != delta.kind) blocks_.push_back({delta.kind});
        blocks_.back().text += delta.text;
        break;
      case Kind::kToolCallBegin:
        blocks_.push_back({.kind = delta.kind,
                           .call = {.id = tool_call_id(head_, 0, delta.index), .name = delta.text},
                           .complete = false});
        break;
      case Kind::kToolCallArguments:
        blocks_.back().text += delta.text;
        break;
      case Kind::kToolCallEnd:
        blocks_.back().complete = true;
        break;
    }
  }
}

Json MessagesAnswer::finish(AnswerEnd end, const std::string& stop,
                            const AnswerUsage& usage) const {
  Json content = Json::array();
  for (const Block& block : blocks_) {
    if (block.kind == Kind::kReasoning) {
      content.push_back(
          {{"type", "thinking"}, {"thinking", block.text}, {"signature", message_id(head_)}});
    } else if (block.kind == Kind::kContent) {
      content.push_back({{"type", "text"}, {"text", block.text}});
    } else if (block.complete) {
      content.push_back(tool_use(block.call.id, block.call.name, input_json(block.text)));
    }
  }
  return message_json(head_, std::move(content), stop_fields(end, stop), usage_json(usage));
}

}  // namespace tidemill
