#include "cli/token_inputs.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "cli/input.h"
#include "cli/token_ids.h"
#include "text/json.h"

namespace tidemill::cli {
namespace {

using Ids = std::vector<int32_t>;

Result<Ids> read_item(const Json& item, const Tokenizer& tokenizer, const Config& config) {
  Ids ids;
  if (item.is_object() && item.contains("text") && item["text"].is_string()) {
    ids = tokenizer.encode(item["text"].get_ref<const std::string&>());
    ids.insert(ids.begin(), config.bos_token_id);
  } else if (item.is_object() && item.contains("tokens")) {
    TRY(ids, read_token_ids(item["tokens"], tokenizer));
  } else if (item.is_array()) {
    TRY(ids, read_token_ids(item, tokenizer));
  } else {
    return fail(
        ErrorCode::kRequest,
        "neither an array of token ids nor {{\"tokens\": [...]}} nor {{\"text\": \"...\"}}");
  }
  if (ids.empty()) return fail(ErrorCode::kRequest, "no tokens");
  const auto length = static_cast<int64_t>(ids.size());
  if (length > config.max_position_embeddings) {
    return fail(ErrorCode::kContextLength, "{} tokens exceed the model's context of {}", length,
                config.max_position_embeddings);
  }
  // The embedding table, not the tokenizer, limits what the model can be fed.
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= config.vocab_size) {
      return fail(ErrorCode::kTokenOutOfRange,
                  "token id {} (element {}) is not below vocab_size {}", ids[i], i,
                  config.vocab_size);
    }
  }
  return ids;
}

}  // namespace

Result<std::vector<Ids>> read_token_inputs(const std::filesystem::path& path,
                                           const Tokenizer& tokenizer, const Config& config) {
  TRY(const std::string text, read_input(path));
  const auto read = [&](std::string_view json, int64_t line) -> Result<Ids> {
    const auto ids = [&]() -> Result<Ids> {
      TRY(const Json item, parse_json(json));
      return read_item(item, tokenizer, config);
    }();
    if (ids) return ids;
    return fail(ids.error().code, "{}:{}: {}", input_name(path), line, ids.error().message);
  };

  std::vector<Ids> inputs;
  // One array may be spread over many lines; otherwise a line is a JSON value.
  if (const auto whole = parse_json(text); whole && whole->is_array()) {
    TRY(Ids ids, read(text, 1));
    inputs.push_back(std::move(ids));
    return inputs;
  }
  std::string_view rest = text;
  for (int64_t line = 1; !rest.empty(); ++line) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view json = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (json.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    TRY(Ids ids, read(json, line));
    inputs.push_back(std::move(ids));
  }
  if (inputs.empty()) return fail(ErrorCode::kRequest, "{} holds no tokens", input_name(path));
  return inputs;
}

}  // namespace tidemill::cli
