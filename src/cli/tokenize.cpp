// tidemill tokenize: text to token ids and back.
#include <charconv>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/escape.h"
#include "cli/command.h"
#include "cli/input.h"
#include "cli/model_directory.h"
#include "cli/output.h"
#include "cli/token_ids.h"
#include "text/json.h"
#include "text/tokenizer.h"

namespace tidemill::cli {
namespace {

struct TokenizeOptions {
  std::string model;
  std::string text;
  bool has_text = false;
  bool json = false;
  bool decode = false;
  bool added_tokens = false;

  std::vector<int32_t> encode(const Tokenizer& tokenizer, std::string_view from) const {
    return added_tokens ? tokenizer.encode_with_added_tokens(from) : tokenizer.encode(from);
  }
};

Status encode_line(const TokenizeOptions& options, const Tokenizer& tokenizer,
                   std::string_view line) {
  TRY(const Json value, parse_json(line));
  if (!value.is_string()) return fail(ErrorCode::kRequest, "not a JSON string");
  const Json ids = options.encode(tokenizer, value.get_ref<const std::string&>());
  return stream_stdout(python_json(ids) + "\n");
}

Status decode_line(const Tokenizer& tokenizer, std::string_view line) {
  TRY(const Json value, parse_json(line));
  TRY(const auto ids, read_token_ids(value, tokenizer));
  return stream_stdout(python_json(Json(tokenizer.decode(ids))) + "\n");
}

// For people: a token per line, its id and its bytes.
Status print_tokens(const TokenizeOptions& options, const Tokenizer& tokenizer) {
  std::string text = options.text;
  if (!options.has_text) {
    TRY(text, read_input("-"));
  }
  std::string lines;
  for (const int32_t id : options.encode(tokenizer, text)) {
    lines += fmt::format("{}\t{}\n", id, escape_control(tokenizer.bytes(id)));
  }
  return write_stdout(lines);
}

Status print_text(const Tokenizer& tokenizer) {
  TRY(const std::string text, read_input("-"));
  Json ids = Json::array();
  constexpr std::string_view kSeparators = " \t\r\n,[]";
  for (size_t at = 0; (at = text.find_first_not_of(kSeparators, at)) != std::string::npos;) {
    const size_t end = std::min(text.find_first_of(kSeparators, at), text.size());
    int64_t id = 0;
    const auto [next, error] = std::from_chars(text.data() + at, text.data() + end, id);
    if (error != std::errc() || next != text.data() + end) {
      return fail(ErrorCode::kRequest, "'{}' is not a token id", text.substr(at, end - at));
    }
    ids.push_back(id);
    at = end;
  }
  TRY(const auto checked, read_token_ids(ids, tokenizer));
  return write_stdout(tokenizer.decode(checked));
}

Status tokenize(const TokenizeOptions& options) {
  if (options.has_text && (options.json || options.decode)) {
    return fail(ErrorCode::kConflictingOptions,
                "TEXT and {} exclude each other: give the lines on stdin",
                options.json ? "--json" : "--decode");
  }
  TRY(const auto directory, find_model(options.model));
  TRY(const Tokenizer tokenizer, Tokenizer::load(directory / "tokenizer.json"));
  if (options.json) {
    return for_each_stdin_line([&](std::string_view line, int64_t) {
      return options.decode ? decode_line(tokenizer, line) : encode_line(options, tokenizer, line);
    });
  }
  return options.decode ? print_text(tokenizer) : print_tokens(options, tokenizer);
}

}  // namespace

void add_tokenize(CLI::App& app, Action& action) {
  auto* command = app.add_subcommand("tokenize", "Text to token ids, or back with --decode");
  const auto options = std::make_shared<TokenizeOptions>();
  command->add_option("--model", options->model,
                      "Directory with tokenizer.json; no weights are read");
  command->add_option("TEXT", options->text, "Text to tokenize (default: stdin)");
  command->add_flag("--json", options->json,
                    "A JSON string per line in, a JSON id list per line out");
  command->add_flag("--decode", options->decode, "The other way: ids in, text out");
  command->add_flag("--added-tokens", options->added_tokens,
                    "Recognise added tokens spelled in the text (never for text of a user)");
  command->callback([command, options, &action] {
    options->has_text = command->count("TEXT") > 0;
    action = [options] { return tokenize(*options); };
  });
}

}  // namespace tidemill::cli
