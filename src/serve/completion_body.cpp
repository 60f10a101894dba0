#include "serve/completion_body.h"

#include <array>
#include <utility>

#include "text/special_tokens.h"

namespace tidemill {
namespace {

constexpr std::string_view kFimBegin = "<｜fim▁begin｜>";
constexpr std::string_view kFimHole = "<｜fim▁hole｜>";
constexpr std::string_view kFimEnd = "<｜fim▁end｜>";

constexpr int64_t kDefaultTokens = 16;  // the OpenAI schema's

constexpr auto kRead = std::to_array<std::string_view>(
    {"prompt", "suffix", "echo", "max_tokens", "logprobs", "best_of"});
constexpr auto kFixed = std::to_array<FixedField>({
    {"add_special_tokens", "[true]", "send token ids"},
    {"prompt_embeds", "[]", ""},
    {"tools", "[]", "use /v1/chat/completions"},
    {"thinking", R"([{"type":"disabled"}])", "use /v1/chat/completions"},
});

void add(Prompt& prompt, std::string_view text, bool special) {
  if (!text.empty()) prompt.pieces.push_back({std::string(text), special});
}

Prompt text_prompt(std::string_view text, const std::optional<std::string>& suffix) {
  Prompt prompt;
  add(prompt, special::kBos, true);
  if (suffix) add(prompt, kFimBegin, true);
  add(prompt, text, false);
  if (suffix) {
    add(prompt, kFimHole, true);
    add(prompt, *suffix, false);
    add(prompt, kFimEnd, true);
  }
  return prompt;
}

bool are_ids(const Json& value) {
  return value.is_array() && !value.empty() && value[0].is_number();
}

Result<std::vector<int32_t>> read_ids(const Json& ids, const std::string& path) {
  std::vector<int32_t> out;
  out.reserve(ids.size());
  for (const Json& id : ids) {
    if (!id.is_number_integer() || id < 0 || id > INT32_MAX) {
      return fail(ErrorCode::kRequest, "{}[{}]: expected a token id", path, out.size());
    }
    out.push_back(id.get<int32_t>());
  }
  return out;
}

class PromptReader {
 public:
  PromptReader(CompletionRequest& request, std::optional<std::string> suffix)
      : request_(request), suffix_(std::move(suffix)) {}

  Status read(const Json& prompt) {
    if (!prompt.is_array() || are_ids(prompt)) return read_one(prompt, "prompt");
    if (prompt.empty()) return fail(ErrorCode::kRequest, "prompt: empty");
    for (size_t i = 0; i < prompt.size(); ++i) {
      CHECK_OK(read_one(prompt[i], fmt::format("prompt[{}]", i)));
    }
    return {};
  }

 private:
  Status read_one(const Json& prompt, const std::string& path) {
    if (prompt.is_string()) {
      const auto& text = prompt.get_ref<const std::string&>();
      request_.prompts.emplace_back(text_prompt(text, suffix_));
      if (request_.echo) request_.echoes.push_back(text);
      return {};
    }
    if (!are_ids(prompt)) {
      return fail(ErrorCode::kRequest, "{}: expected a string or an array of token ids", path);
    }
    if (suffix_) return fail(ErrorCode::kRequest, "suffix: needs a prompt that is text");
    if (request_.echo) return fail(ErrorCode::kRequest, "echo: needs a prompt that is text");
    TRY(std::vector<int32_t> ids, read_ids(prompt, path));
    request_.prompts.emplace_back(std::move(ids));
    return {};
  }

  CompletionRequest& request_;
  std::optional<std::string> suffix_;
};

}  // namespace

Result<CompletionRequest> read_completion_body(const Json& json, const RequestPolicy& policy) {
  TRY(const Fields body, Fields::of(json, ""));
  CompletionRequest request;
  Generation& generation = request.generation;
  const std::array<FieldTable, 2> tables = {{{kRead, kFixed}, generation_fields()[0]}};
  CHECK_OK(check_fields(body, tables, generation.unknown));
  CHECK_OK(read_generation(body, policy, generation));
  TRY(generation.max_tokens, body.integer("max_tokens", 1, INT64_MAX));
  generation.default_max_tokens = kDefaultTokens;

  const int64_t n = generation.request.n;
  TRY(const auto best_of, body.integer("best_of", 1, Request::kMaxChoices));
  if (best_of.value_or(n) != n) {
    return fail(ErrorCode::kRequest, "best_of: {} beside n {}; they must be equal", *best_of, n);
  }
  TRY(const std::optional<bool> echo, body.boolean("echo"));
  request.echo = echo.value_or(false);
  TRY(const auto logprobs, body.integer("logprobs", 0, SamplingParams::kMaxLogprobs));
  if (logprobs) {
    if (request.echo) {
      return fail(ErrorCode::kRequest, "logprobs: there are none of the prompt; leave out echo");
    }
    generation.request.sampling.logprobs = static_cast<int32_t>(*logprobs);
  }

  TRY(std::optional<std::string> suffix, body.string("suffix"));
  const Json* prompt = body.find("prompt");
  if (!prompt) return body.wrong("prompt", "a string or an array");
  CHECK_OK(PromptReader(request, std::move(suffix)).read(*prompt));
  const auto prompts = static_cast<int64_t>(request.prompts.size());
  if (prompts * n > Request::kMaxChoices) {
    return fail(ErrorCode::kRequest, "prompt: {} prompts with {} answers each; at most {} in all",
                prompts, n, Request::kMaxChoices);
  }
  CHECK_OK(check_unknown(generation, policy));
  return request;
}

}  // namespace tidemill
