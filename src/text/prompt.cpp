// The grammar of a V4.1 prompt:
//   BOS [head] turns [header of the answer]
// where the head is the first system message with the effort sentence, the tools and the response
// format around it. Whatever follows the last special token is what the model continues.
#include "text/prompt.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "text/special_tokens.h"

namespace tidemill {
namespace {

// The model was trained on these texts byte for byte.
constexpr std::string_view kToolsBegin =
    R"(## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a "<｜DSML｜ calls>" block like the following:

<｜DSML｜ calls>
<｜DSML｜ invoke name="$TOOL_NAME">
<｜DSML｜ parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜ parameter>
...
</｜DSML｜ invoke>
<｜DSML｜ invoke name="$TOOL_NAME2">
...
</｜DSML｜ invoke>
</｜DSML｜ calls>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside <think>...</think> BEFORE any tool calls or final response.

Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

)";
constexpr std::string_view kToolsEnd =
    R"(
You MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.
)";
constexpr std::string_view kResponseFormat =
    "## Response Format:\n\n"
    "You MUST strictly adhere to the following schema to reply:\n";
constexpr std::string_view kCallsBegin = "<｜DSML｜ calls>\n";

// Appends pieces. Text of the caller goes through plain() or content() only: it is never special.
class Writer {
 public:
  void special(std::string_view token) { prompt.pieces.push_back({std::string(token), true}); }

  void plain(std::string_view text) {
    if (text.empty()) return;
    if (prompt.pieces.empty() || prompt.pieces.back().special) prompt.pieces.push_back({});
    prompt.pieces.back().text += text;
  }

  // A text of this file: the markers that it spells are special.
  void markup(std::string_view text) {
    constexpr std::string_view kMarkers[] = {special::kDsml, special::kThinkBegin,
                                             special::kThinkEnd};
    while (!text.empty()) {
      size_t begin = text.size();
      std::string_view first;
      for (const std::string_view marker : kMarkers) {
        const size_t at = text.find(marker);
        if (at < begin) {
          begin = at;
          first = marker;
        }
      }
      plain(text.substr(0, begin));
      if (first.empty()) return;
      special(first);
      text.remove_prefix(begin + first.size());
    }
  }

  void content(const std::vector<ContentPart>& parts) {
    std::string_view separator;
    for (const ContentPart& part : parts) {
      plain(std::exchange(separator, "\n\n"));
      if (part.is_image) {
        special(special::kImage);
      } else {
        plain(part.text);
      }
    }
  }

  Prompt prompt;
};

bool is_blank(const std::vector<ContentPart>& parts) {
  return parts.empty() || (parts.size() == 1 && !parts[0].is_image && parts[0].text.empty());
}

// --- tool calls in the history ---

// The JSON object that the arguments spell, perhaps encoded as a string once more.
std::optional<Json> decode_arguments(const std::string& arguments) {
  Result<Json> value = parse_json(arguments);
  if (value && value->is_string()) value = parse_json(value->get_ref<const std::string&>());
  if (!value || !value->is_object()) return std::nullopt;
  return std::move(*value);
}

void write_parameter(Writer& out, std::string_view name, const Json& value) {
  out.markup("<｜DSML｜ parameter name=\"");
  out.plain(name);
  if (value.is_string()) {
    out.plain("\" string=\"true\">");
    out.plain(value.get_ref<const std::string&>());
  } else {
    out.plain("\" string=\"false\">");
    out.plain(python_json(value));
  }
  out.markup("</｜DSML｜ parameter>\n");
}

void write_tool_calls(Writer& out, const std::vector<ToolCall>& calls) {
  if (calls.empty()) return;
  out.plain("\n\n");
  out.markup(kCallsBegin);
  for (const ToolCall& call : calls) {
    out.markup("<｜DSML｜ invoke name=\"");
    out.plain(call.name);
    out.plain("\">\n");
    const Json arguments =
        decode_arguments(call.arguments).value_or(Json::object({{"arguments", call.arguments}}));
    for (const auto& [name, value] : arguments.items()) write_parameter(out, name, value);
    if (arguments.empty()) out.plain("\n");
    out.markup("</｜DSML｜ invoke>\n");
  }
  out.markup("</｜DSML｜ calls>");
}

// --- turns ---

class Renderer {
 public:
  explicit Renderer(const Conversation& conversation) : conversation_(conversation) {
    if (conversation.tool_choice == ToolChoice::kNone) return;
    for (const Tool& tool : conversation.tools) {
      const bool is_shown = conversation.tool_choice != ToolChoice::kNamed ||
                            tool.name == conversation.tool_choice_name;
      if (is_shown) tools_.push_back(&tool);
    }
  }

  Prompt render() {
    // An empty system message says nothing: it is as if it were not there.
    std::vector<const Message*> turns;
    for (const Message& message : conversation_.messages) {
      if (message.role != Role::kSystem || !is_blank(message.content)) turns.push_back(&message);
    }

    out_.prompt.declares_tools = !tools_.empty();
    out_.special(special::kBos);
    auto turn = turns.begin();
    const bool begins_with_system = turn != turns.end() && (*turn)->role == Role::kSystem;
    write_head(begins_with_system ? *turn++ : nullptr);
    while (turn != turns.end()) {
      const Message& message = **turn;
      if (message.role == Role::kUser || message.role == Role::kTool) {
        const auto end = std::find_if_not(turn, turns.end(), [](const Message* m) {
          return m->role == Role::kUser || m->role == Role::kTool;
        });
        write_user_turn({turn, end});
        turn = end;
        continue;
      }
      if (message.role == Role::kAssistant) {
        write_assistant(message);
      } else {
        out_.special(message.role == Role::kSystem ? special::kSystem : special::kLatestReminder);
        out_.content(message.content);
      }
      ++turn;
    }
    if (!conversation_.messages.back().prefix) open_answer();
    return std::move(out_.prompt);
  }

 private:
  void write_head(const Message* system) {
    const Json& format = conversation_.response_format;
    if (!system && !conversation_.thinking && tools_.empty() && format.is_null()) return;
    out_.special(special::kSystem);
    if (conversation_.thinking) {
      out_.plain(
          fmt::format("Reasoning Effort: {} (range 1-100, the higher the value, the more thorough "
                      "the reasoning)\n\n",
                      conversation_.reasoning_effort));
    }
    if (system) out_.content(system->content);
    if (!tools_.empty()) {
      out_.plain("\n\n");
      write_tools();
    }
    if (!format.is_null()) {
      out_.plain("\n\n");
      out_.plain(kResponseFormat);
      out_.plain(python_json(format));
    }
  }

  void write_tools() {
    out_.markup(kToolsBegin);
    for (const Tool* tool : tools_) {
      out_.plain(python_json(Json::object({{"name", tool->name},
                                           {"description", tool->description},
                                           {"parameters", tool->parameters}})));
      out_.plain("\n");
    }
    out_.plain(kToolsEnd);
  }

  // Consecutive user and tool messages. The tool results, which come first, take the order of the
  // calls that they answer.
  void write_user_turn(std::vector<const Message*> parts) {
    const auto results_end = std::find_if(parts.begin(), parts.end(),
                                          [](const Message* m) { return m->role != Role::kTool; });
    std::sort(parts.begin(), results_end, [&](const Message* a, const Message* b) {
      return call_order_.at(a->tool_call_id) < call_order_.at(b->tool_call_id);
    });
    out_.special(special::kUser);
    std::string_view separator;
    for (const Message* part : parts) {
      out_.plain(std::exchange(separator, "\n\n"));
      const bool is_result = part->role == Role::kTool;
      if (is_result) out_.plain("<tool_result>");
      out_.content(part->content);
      if (is_result) out_.plain("</tool_result>");
    }
  }

  void write_assistant(const Message& message) {
    call_order_.clear();
    for (const ToolCall& call : message.tool_calls) {
      call_order_.emplace(call.id, call_order_.size());
    }

    out_.special(special::kAssistant);
    // Past reasoning stays only where tools are in play.
    const bool shows_reasoning = conversation_.thinking && (message.prefix || !tools_.empty());
    const bool continues_reasoning = shows_reasoning && message.prefix && is_blank(message.content);
    if (shows_reasoning) {
      out_.special(special::kThinkBegin);
      out_.plain(message.reasoning);
    }
    if (!continues_reasoning) {
      out_.special(special::kThinkEnd);
      out_.content(message.content);
      write_tool_calls(out_, message.tool_calls);
    }
    if (message.prefix) {
      out_.prompt.start = continues_reasoning ? Prompt::Start::kReasoning : Prompt::Start::kContent;
      out_.prompt.continues_prefix = true;
    } else {
      out_.special(special::kEos);
    }
  }

  void open_answer() {
    out_.special(special::kAssistant);
    if (conversation_.thinking) {
      out_.special(special::kThinkBegin);
      out_.prompt.start = Prompt::Start::kReasoning;
      return;
    }
    out_.special(special::kThinkEnd);
    if (is_forced(conversation_.tool_choice)) {
      out_.plain("\n\n");
      out_.markup(kCallsBegin);
      out_.prompt.start = Prompt::Start::kToolCalls;
    }
  }

  const Conversation& conversation_;
  std::vector<const Tool*> tools_;                           // in the prompt
  std::unordered_map<std::string_view, size_t> call_order_;  // of the last assistant, by id
  Writer out_;
};

}  // namespace

std::string Prompt::text() const {
  std::string text;
  for (const PromptPiece& piece : pieces) text += piece.text;
  return text;
}

Result<Prompt> render_prompt(const Conversation& conversation) {
  CHECK_OK(check_conversation(conversation));
  return Renderer(conversation).render();
}

Result<std::vector<int32_t>> encode_prompt(const Prompt& prompt, const Tokenizer& tokenizer) {
  std::vector<int32_t> ids;
  for (const PromptPiece& piece : prompt.pieces) {
    if (!piece.special) {
      const std::vector<int32_t> stretch = tokenizer.encode(piece.text);
      ids.insert(ids.end(), stretch.begin(), stretch.end());
      continue;
    }
    const std::optional<int32_t> id = tokenizer.added_token(piece.text);
    if (!id) {
      return fail(ErrorCode::kTokenizer,
                  "the tokenizer has no added token {}, which the prompt needs: is this the "
                  "tokenizer.json of a V4.1 checkpoint?",
                  piece.text);
    }
    ids.push_back(*id);
  }
  return ids;
}

}  // namespace tidemill
