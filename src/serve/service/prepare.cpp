#include "serve/service/prepare.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "serve/chat_body.h"
#include "serve/completion_body.h"
#include "serve/messages_body.h"
#include "serve/responses_body.h"
#include "text/special_tokens.h"

namespace tidemill {
namespace {

constexpr size_t kMostModelName = 256;  // bytes; it comes back in every chunk

int64_t now_unix_s() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

const char* id_prefix(Protocol protocol) {
  switch (protocol) {
    case Protocol::kChat:
      return "chatcmpl-";
    case Protocol::kCompletions:
      return "cmpl-";
    case Protocol::kMessages:
      return "msg_";
    case Protocol::kResponses:
      break;
  }
  return "resp_";
}

// One body on its way to a PreparedAnswer. Errors of the body are values of the usual kind.
class Preparation {
 public:
  Preparation(Protocol protocol, const ServedModel& model, std::string nonce, uint64_t seed)
      : protocol_(protocol), model_(model), seed_(seed) {
    sink_.protocol = protocol;
    sink_.head.nonce = std::move(nonce);
    sink_.head.created = now_unix_s();
  }

  tl::expected<PreparedAnswer, HttpError> run(std::string_view body) {
    const Status status = read(body);
    if (status && generation_.model.size() > kMostModelName) {
      return tl::unexpected(http_error(
          Error{ErrorCode::kRequest, fmt::format("model: {} bytes; at most {} are allowed",
                                                 generation_.model.size(), kMostModelName)}));
    }
    if (!status) return tl::unexpected(http_error(status.error()));
    if (!generation_.model.empty() && !model_.answers_to(generation_.model)) {
      return tl::unexpected(no_such_model(generation_.model, model_));
    }
    return finish();
  }

 private:
  Status read(std::string_view body) {
    TRY(const Json json, parse_json(body));
    switch (protocol_) {
      case Protocol::kCompletions:
        return read_completions(json);
      case Protocol::kChat: {
        TRY(ConversationRequest request, read_chat_body(json, model_.policy));
        return take(std::move(request));
      }
      case Protocol::kMessages: {
        TRY(ConversationRequest request, read_messages_body(json, model_.policy));
        return take(std::move(request));
      }
      case Protocol::kResponses:
        break;
    }
    TRY(ResponsesRequest request, read_responses_body(json, model_.policy));
    sink_.echo = std::move(request.echo);
    return take(std::move(request));
  }

  // A text that cannot fit, whatever its tokens are, is not worth tokenising.
  Status check_length(const Prompt& prompt) const {
    size_t bytes = 0;
    for (const PromptPiece& piece : prompt.pieces) bytes += piece.text.size();
    const auto least = static_cast<int64_t>(bytes / model_.longest_token);
    if (least <= model_.context) return {};
    return fail(
        ErrorCode::kContextLength,
        "the prompt has {} bytes, at least {} tokens; the context is {}; shorten the prompt", bytes,
        least, model_.context);
  }

  Status take(ConversationRequest request) {
    CHECK_OK(check_length(request.prompt));
    TRY(std::vector<int32_t> prompt, encode_prompt(request.prompt, *model_.tokenizer));
    sink_.head.thinking = request.conversation.thinking;
    assembly_.parser = std::move(request.parser);
    assembly_.tools = std::move(request.conversation.tools);
    generation_ = std::move(request.generation);
    return add_prompt(std::move(prompt));
  }

  Status read_completions(const Json& json) {
    TRY(CompletionRequest request, read_completion_body(json, model_.policy));
    assembly_.echoes = std::move(request.echoes);
    generation_ = std::move(request.generation);
    for (CompletionPrompt& prompt : request.prompts) {
      if (auto* ids = std::get_if<std::vector<int32_t>>(&prompt)) {
        CHECK_OK(add_prompt(std::move(*ids)));
        continue;
      }
      CHECK_OK(check_length(std::get<Prompt>(prompt)));
      TRY(std::vector<int32_t> ids, encode_prompt(std::get<Prompt>(prompt), *model_.tokenizer));
      CHECK_OK(add_prompt(std::move(ids)));
    }
    return {};
  }

  Status add_prompt(std::vector<int32_t> prompt) {
    const auto tokens = static_cast<int64_t>(prompt.size());
    CHECK_OK(limit_tokens(generation_, tokens, model_.context));
    sink_.prompt_tokens += tokens;
    Request& request = generation_.request;
    if (!generation_.has_seed) request.sampling.seed = seed_;
    Request one = request;
    one.prompt = std::move(prompt);
    requests_.push_back(std::move(one));
    return {};
  }

  PreparedAnswer finish() {
    PreparedAnswer prepared;
    prepared.model = generation_.model.empty() ? model_.names.front() : generation_.model;
    prepared.stream = generation_.stream;
    prepared.id = id_prefix(protocol_) + sink_.head.nonce;
    for (const Request& request : requests_) prepared.max_tokens += request.max_tokens * request.n;
    prepared.prompt_tokens = sink_.prompt_tokens;

    prepared.seed = requests_.front().sampling.seed;
    prepared.ignored = std::move(generation_.unknown);

    assembly_.protocol = protocol_;
    assembly_.start = generation_.request.start;
    assembly_.requests = static_cast<int64_t>(requests_.size());
    assembly_.choices = generation_.request.n;
    sink_.head.model = prepared.model;
    sink_.stream = generation_.stream;
    sink_.include_usage = generation_.include_usage;
    sink_.logprobs = generation_.request.sampling.logprobs.has_value();
    sink_.choices = assembly_.requests * assembly_.choices;
    prepared.requests = std::move(requests_);
    prepared.answer = std::make_unique<AnswerAssembly>(std::move(assembly_), *model_.tokenizer,
                                                       make_sink(std::move(sink_)));
    return prepared;
  }

  Protocol protocol_;
  const ServedModel& model_;
  uint64_t seed_;
  Generation generation_;
  SinkOptions sink_;
  AssemblyOptions assembly_;
  std::vector<Request> requests_;
};

Result<std::vector<int32_t>> read_token_ids(const Json& tokens, const Tokenizer& tokenizer) {
  std::vector<int32_t> ids;
  ids.reserve(tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    const Json& token = tokens[i];
    const int64_t id = token.is_number_integer() ? token.get<int64_t>() : -1;
    if (id < 0 || id >= tokenizer.size()) {
      return fail(ErrorCode::kRequest, "tokens[{}]: expected a token id below {}", i,
                  tokenizer.size());
    }
    ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

Result<Json> tokenize_json(const Json& json, const ServedModel& model) {
  TRY(const Fields fields, Fields::of(json, ""));
  std::vector<int32_t> ids;
  if (fields.find("messages")) {
    TRY(const ConversationRequest request, read_chat_body(json, model.policy));
    TRY(ids, encode_prompt(request.prompt, *model.tokenizer));
  } else {
    TRY(const std::string text, fields.require_string("prompt"));
    TRY(const std::optional<bool> special, fields.boolean("add_special_tokens"));
    Prompt prompt;
    if (special.value_or(true)) prompt.pieces.push_back({std::string(special::kBos), true});
    if (!text.empty()) prompt.pieces.push_back({text, false});
    TRY(ids, encode_prompt(prompt, *model.tokenizer));
  }
  return Json{{"count", ids.size()}, {"max_model_len", model.context}, {"tokens", std::move(ids)}};
}

Result<Json> detokenize_json(const Json& json, const ServedModel& model) {
  TRY(const Fields fields, Fields::of(json, ""));
  TRY(const Json* tokens, fields.array("tokens"));
  if (!tokens) return fields.wrong("tokens", "an array of token ids");
  TRY(const std::vector<int32_t> ids, read_token_ids(*tokens, *model.tokenizer));
  return Json{{"prompt", model.tokenizer->decode(ids)}};
}

Result<Json> count_tokens_json(const Json& json, const ServedModel& model) {
  TRY(const ConversationRequest request, read_messages_body(json, model.policy));
  TRY(const std::vector<int32_t> ids, encode_prompt(request.prompt, *model.tokenizer));
  return Json{{"input_tokens", ids.size()}};
}

template <typename Answer>
tl::expected<Json, HttpError> answer_to(std::string_view body, const ServedModel& model,
                                        const Answer& answer) {
  const Result<Json> json = parse_json(body);
  if (!json) return tl::unexpected(http_error(json.error()));
  Result<Json> made = answer(*json);
  if (!made) return tl::unexpected(http_error(made.error()));
  if (json->contains("model") && (*json)["model"].is_string()) {
    const auto& name = (*json)["model"].get_ref<const std::string&>();
    if (!model.answers_to(name)) return tl::unexpected(no_such_model(name, model));
  }
  return *std::move(made);
}

}  // namespace

HttpError no_such_model(std::string_view asked, const ServedModel& model) {
  std::string names;
  for (const std::string& name : model.names) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", name);
  }
  return {.status = 404,
          .message = fmt::format("model: \"{}\" is not served here; there is: {}", asked, names),
          .type = "invalid_request_error",
          .code = "model_not_found",
          .param = "model"};
}

size_t longest_token(const Tokenizer& tokenizer) {
  size_t longest = 1;
  for (int32_t id = 0; id < tokenizer.size(); ++id) {
    longest = std::max(longest, tokenizer.bytes(id).size());
  }
  return longest;
}

bool ServedModel::answers_to(std::string_view name) const {
  return std::any_of(names.begin(), names.end(),
                     [&](const std::string& own) { return own == name || own == "*"; });
}

tl::expected<PreparedAnswer, HttpError> prepare_answer(Protocol protocol, std::string_view body,
                                                       const ServedModel& model, std::string nonce,
                                                       uint64_t seed) {
  return Preparation(protocol, model, std::move(nonce), seed).run(body);
}

tl::expected<Json, HttpError> tokenize(std::string_view body, const ServedModel& model) {
  return answer_to(body, model, [&](const Json& json) { return tokenize_json(json, model); });
}

tl::expected<Json, HttpError> detokenize(std::string_view body, const ServedModel& model) {
  return answer_to(body, model, [&](const Json& json) { return detokenize_json(json, model); });
}

tl::expected<Json, HttpError> count_tokens(std::string_view body, const ServedModel& model) {
  return answer_to(body, model, [&](const Json& json) { return count_tokens_json(json, model); });
}

}  // namespace tidemill
