#include "text/tokenizer_file.h"

#include <nlohmann/json.hpp>

#include "base/escape.h"

namespace tidemill {
namespace {

using Value = nlohmann::json;

// Public vocabularies reach about 260,000; the tables are indexed by id.
constexpr int64_t kMaxTokens = int64_t{1} << 20;

// The pattern that ByteLevel stands for when its use_regex is true.
constexpr std::string_view kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// A value for an error text: on one line and short.
std::string show(const Value& value) {
  constexpr size_t kLongest = 60;
  if (value.is_object()) return "an object";
  if (value.is_array()) return "a list";
  const std::string text = value.dump();
  return text.size() <= kLongest ? text : "a long " + std::string(value.type_name());
}

template <typename Where>
tl::unexpected<Error> unsupported(const Where& where, const Value& value, std::string_view wanted) {
  return fail(ErrorCode::kTokenizer, "{} is {}; only {} is supported", where, show(value), wanted);
}

// The member `key`, or null when it is absent.
const Value& member(const Value& object, const char* key) {
  static const Value kNull;
  const auto found = object.find(key);
  return found == object.end() ? kNull : *found;
}

Status require_type(const Value& object, std::string_view where, std::string_view type) {
  const Value& value = member(object, "type");
  if (value != type) return unsupported(fmt::format("{}.type", where), value, type);
  return {};
}

// Refuses a feature that is on. Off is: absent, null, false, "".
Status require_off(const Value& object, std::string_view where, const char* key) {
  const Value& value = member(object, key);
  if (value.is_null() || value == false || value == "") return {};
  return unsupported(fmt::format("{}.{}", where, key), value, "null or false");
}

Result<bool> boolean(const Value& object, std::string_view where, const char* key, bool otherwise) {
  const Value& value = member(object, key);
  if (value.is_null()) return otherwise;
  if (!value.is_boolean()) {
    return unsupported(fmt::format("{}.{}", where, key), value, "true or false");
  }
  return value.get<bool>();
}

Result<int32_t> token_id(const Value& value, std::string_view token) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() >= kMaxTokens) {
    return fail(ErrorCode::kTokenizer, "the id of token \"{}\" is {}; ids are 0 to {}",
                escape_control(token), show(value), kMaxTokens - 1);
  }
  return value.get<int32_t>();
}

Status read_normalizer(const Value& root) {
  const Value& normalizer = member(root, "normalizer");
  if (normalizer.is_null()) return {};
  const bool empty_sequence = normalizer.is_object() && member(normalizer, "type") == "Sequence" &&
                              member(normalizer, "normalizers") == Value::array();
  if (!empty_sequence) return unsupported("normalizer", normalizer, "null or an empty Sequence");
  return {};
}

Status read_byte_level(const Value& step, std::string_view where, TokenizerFile& file) {
  CHECK_OK(require_off(step, where, "add_prefix_space"));
  TRY(const bool use_regex, boolean(step, where, "use_regex", true));
  if (use_regex) file.split_patterns.emplace_back(kByteLevelPattern);
  return {};
}

Status read_split(const Value& step, std::string_view where, TokenizerFile& file) {
  CHECK_OK(require_type(step, where, "Split"));
  const Value& behavior = member(step, "behavior");
  if (behavior != "Isolated") {
    return unsupported(fmt::format("{}.behavior", where), behavior, "\"Isolated\"");
  }
  CHECK_OK(require_off(step, where, "invert"));
  const Value& pattern = member(step, "pattern");
  const Value& regex = pattern.is_object() ? member(pattern, "Regex") : pattern;
  if (!regex.is_string()) {
    return unsupported(fmt::format("{}.pattern", where), pattern, "{\"Regex\": \"...\"}");
  }
  file.split_patterns.push_back(regex.get<std::string>());
  return {};
}

// A Sequence of Splits that ends in ByteLevel, or ByteLevel alone.
Status read_pre_tokenizer(const Value& root, TokenizerFile& file) {
  constexpr std::string_view kWhere = "pre_tokenizer";
  const Value& pre_tokenizer = member(root, "pre_tokenizer");
  if (!pre_tokenizer.is_object()) {
    return unsupported(kWhere, pre_tokenizer, "Sequence or ByteLevel");
  }
  if (member(pre_tokenizer, "type") == "ByteLevel") {
    return read_byte_level(pre_tokenizer, kWhere, file);
  }
  CHECK_OK(require_type(pre_tokenizer, kWhere, "Sequence"));
  const Value& steps = member(pre_tokenizer, "pretokenizers");
  for (size_t i = 0; steps.is_array() && i < steps.size(); ++i) {
    const std::string where = fmt::format("pre_tokenizer.pretokenizers[{}]", i);
    if (!steps[i].is_object()) return unsupported(where, steps[i], "an object");
    const bool last = i + 1 == steps.size();
    if (last) CHECK_OK(require_type(steps[i], where, "ByteLevel"));
    CHECK_OK(last ? read_byte_level(steps[i], where, file) : read_split(steps[i], where, file));
    if (last) return {};
  }
  return unsupported("pre_tokenizer.pretokenizers", steps, "a list that ends in ByteLevel");
}

Status read_decoder(const Value& root) {
  const Value& decoder = member(root, "decoder");
  if (!decoder.is_object()) return unsupported("decoder", decoder, "ByteLevel");
  return require_type(decoder, "decoder", "ByteLevel");
}

Status read_vocabulary(const Value& model, TokenizerFile& file) {
  const Value& vocabulary = member(model, "vocab");
  if (!vocabulary.is_object()) return unsupported("model.vocab", vocabulary, "an object");
  file.vocabulary.reserve(vocabulary.size());
  for (const auto& [raw, value] : vocabulary.items()) {
    TRY(const int32_t id, token_id(value, raw));
    file.vocabulary.push_back({id, raw});
  }
  return {};
}

// A merge is written "left right" or, since a token may hold a space, ["left", "right"].
Result<std::pair<std::string, std::string>> read_merge(const Value& merge, size_t rank) {
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
    return std::pair(merge[0].get<std::string>(), merge[1].get<std::string>());
  }
  if (merge.is_string()) {
    const auto& text = merge.get_ref<const std::string&>();
    const size_t space = text.find(' ');
    if (space != std::string::npos && text.find(' ', space + 1) == std::string::npos) {
      return std::pair(text.substr(0, space), text.substr(space + 1));
    }
  }
  return unsupported(fmt::format("model.merges[{}]", rank), merge, "a pair of tokens");
}

Status read_merges(const Value& model, TokenizerFile& file) {
  const Value& merges = member(model, "merges");
  if (!merges.is_array()) return unsupported("model.merges", merges, "a list");
  file.merges.reserve(merges.size());
  for (const Value& merge : merges) {
    TRY(auto pair, read_merge(merge, file.merges.size()));
    file.merges.push_back(std::move(pair));
  }
  return {};
}

Status read_model(const Value& root, TokenizerFile& file) {
  const Value& model = member(root, "model");
  if (!model.is_object()) return unsupported("model", model, "BPE");
  CHECK_OK(require_type(model, "model", "BPE"));
  for (const char* key : {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                          "byte_fallback", "ignore_merges"}) {
    CHECK_OK(require_off(model, "model", key));
  }
  CHECK_OK(read_vocabulary(model, file));
  return read_merges(model, file);
}

Status read_added_tokens(const Value& root, TokenizerFile& file) {
  const Value& tokens = member(root, "added_tokens");
  if (tokens.is_null()) return {};
  if (!tokens.is_array()) return unsupported("added_tokens", tokens, "a list");
  for (size_t i = 0; i < tokens.size(); ++i) {
    const std::string where = fmt::format("added_tokens[{}]", i);
    const Value& token = tokens[i];
    if (!token.is_object()) return unsupported(where, token, "an object");
    for (const char* key : {"single_word", "lstrip", "rstrip"}) {
      CHECK_OK(require_off(token, where, key));
    }
    const Value& content = member(token, "content");
    if (!content.is_string() || content == "") {
      return unsupported(where + ".content", content, "a string that is not empty");
    }
    auto spelling = content.get<std::string>();
    TRY(const int32_t id, token_id(member(token, "id"), spelling));
    TRY(const bool special, boolean(token, where, "special", false));
    TRY(const bool normalized, boolean(token, where, "normalized", !special));
    file.added_tokens.push_back({id, std::move(spelling), special, normalized});
  }
  return {};
}

}  // namespace

Result<TokenizerFile> parse_tokenizer_file(std::string_view json) {
  Value root;
  try {
    root = Value::parse(json);
  } catch (const Value::parse_error& error) {
    return fail(ErrorCode::kTokenizer, "not valid JSON at byte {}", error.byte);
  } catch (const Value::exception& error) {
    return fail(ErrorCode::kTokenizer, "not usable JSON: {}", error.what());
  }
  if (!root.is_object()) return unsupported("the file", root, "an object");
  TokenizerFile file;
  CHECK_OK(require_off(root, "tokenizer.json", "truncation"));
  CHECK_OK(require_off(root, "tokenizer.json", "padding"));
  CHECK_OK(read_normalizer(root));
  CHECK_OK(read_pre_tokenizer(root, file));
  CHECK_OK(read_decoder(root));
  CHECK_OK(read_model(root, file));
  CHECK_OK(read_added_tokens(root, file));
  return file;
}

}  // namespace tidemill
