#include "text/tokenizer_file.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace tidemill {
namespace {

using nlohmann::json;

json small_file() {
  return json::parse(R"({
    "version": "1.0", "truncation": null, "padding": null,
    "added_tokens": [{"id": 3, "content": "<s>", "single_word": false, "lstrip": false,
                      "rstrip": false, "normalized": false, "special": true}],
    "normalizer": {"type": "Sequence", "normalizers": []},
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
      {"type": "Split", "pattern": {"Regex": "[0-9]"}, "behavior": "Isolated", "invert": false},
      {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]},
    "post_processor": null,
    "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE", "dropout": null, "unk_token": null, "byte_fallback": false,
              "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"], "a ab"]}
  })");
}

TEST(TokenizerFile, ReadsEveryPart) {
  const auto file = parse_tokenizer_file(small_file().dump());
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_EQ(file->vocabulary.size(), 3u);
  ASSERT_EQ(file->merges.size(), 2u);
  EXPECT_EQ(file->merges[0], std::pair(std::string("a"), std::string("b")));
  EXPECT_EQ(file->merges[1], std::pair(std::string("a"), std::string("ab")));
  ASSERT_EQ(file->added_tokens.size(), 1u);
  EXPECT_EQ(file->added_tokens[0].id, 3);
  EXPECT_EQ(file->added_tokens[0].spelling, "<s>");
  EXPECT_TRUE(file->added_tokens[0].special);
  EXPECT_FALSE(file->added_tokens[0].normalized);
  EXPECT_EQ(file->split_patterns, std::vector<std::string>({"[0-9]"}));
}

TEST(TokenizerFile, UnlessSaidSpecialTokensAreNotNormalized) {
  json file = small_file();
  file["added_tokens"] = json::parse(R"([{"id": 3, "content": "<s>", "special": true},
                                         {"id": 4, "content": "word"}])");
  const auto result = parse_tokenizer_file(file.dump());
  ASSERT_TRUE(result) << result.error().message;
  EXPECT_FALSE(result->added_tokens[0].normalized);
  EXPECT_TRUE(result->added_tokens[1].normalized);
}

TEST(TokenizerFile, ByteLevelAloneBringsItsPattern) {
  json file = small_file();
  file["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}};
  const auto result = parse_tokenizer_file(file.dump());
  ASSERT_TRUE(result) << result.error().message;
  ASSERT_EQ(result->split_patterns.size(), 1u);
  EXPECT_TRUE(result->split_patterns[0].starts_with("'s|'t|"));
}

TEST(TokenizerFile, RefusesWhatItDoesNotKnow) {
  const struct {
    const char* pointer;  // RFC 6901
    const char* value;
    const char* error;
  } cases[] = {
      {"/truncation", R"({"max_length": 5})", "tokenizer.json.truncation is an object"},
      {"/padding", R"({})", "tokenizer.json.padding"},
      {"/normalizer", R"({"type": "NFC"})", "normalizer is an object"},
      {"/normalizer/normalizers", R"([{"type": "NFC"}])", "normalizer"},
      {"/pre_tokenizer", "null", "pre_tokenizer is null"},
      {"/pre_tokenizer/type", R"("Whitespace")", "pre_tokenizer.type is \"Whitespace\""},
      {"/pre_tokenizer/pretokenizers", "[]", "pre_tokenizer.pretokenizers"},
      {"/pre_tokenizer/pretokenizers/0/type", R"("Digits")", "pretokenizers[0].type"},
      {"/pre_tokenizer/pretokenizers/0/behavior", R"("Removed")", "pretokenizers[0].behavior"},
      {"/pre_tokenizer/pretokenizers/0/invert", "true", "pretokenizers[0].invert"},
      {"/pre_tokenizer/pretokenizers/0/pattern", R"({"String": " "})", "pretokenizers[0].pattern"},
      {"/pre_tokenizer/pretokenizers/1/type", R"("Split")", "pretokenizers[1].type"},
      {"/pre_tokenizer/pretokenizers/1/add_prefix_space", "true", "add_prefix_space is true"},
      {"/pre_tokenizer/pretokenizers/1/use_regex", "3", "use_regex is 3"},
      {"/decoder", "null", "decoder is null"},
      {"/decoder/type", R"("Metaspace")", "decoder.type is \"Metaspace\""},
      {"/model", "[]", "model is a list"},
      {"/model/type", R"("Unigram")", "model.type is \"Unigram\""},
      {"/model/dropout", "0.1", "model.dropout is 0.1"},
      {"/model/unk_token", R"("<unk>")", "model.unk_token"},
      {"/model/byte_fallback", "true", "model.byte_fallback"},
      {"/model/ignore_merges", "true", "model.ignore_merges"},
      {"/model/continuing_subword_prefix", R"("##")", "model.continuing_subword_prefix"},
      {"/model/vocab", "null", "model.vocab is null"},
      {"/model/vocab/a", "-1", "the id of token \"a\" is -1"},
      {"/model/vocab/a", "1048576", "the id of token \"a\" is 1048576; ids are 0 to 1048575"},
      {"/model/vocab/a", "1e3", "the id of token \"a\""},
      {"/model/vocab/a", R"("0")", "the id of token \"a\""},
      {"/model/merges", "{}", "model.merges is an object"},
      {"/model/merges/1", R"("ab")", "model.merges[1] is \"ab\""},
      {"/model/merges/1", R"("a b c")", "model.merges[1]"},
      {"/model/merges/1", R"(["a"])", "model.merges[1] is a list"},
      {"/model/merges/1", R"(["a", 1])", "model.merges[1]"},
      {"/added_tokens", "{}", "added_tokens is an object"},
      {"/added_tokens/0", "7", "added_tokens[0] is 7"},
      {"/added_tokens/0/id", "null", "the id of token \"<s>\" is null"},
      {"/added_tokens/0/content", R"("")", "added_tokens[0].content"},
      {"/added_tokens/0/lstrip", "true", "added_tokens[0].lstrip is true"},
      {"/added_tokens/0/special", "1", "added_tokens[0].special is 1"},
  };
  for (const auto& [pointer, value, error] : cases) {
    json file = small_file();
    file[json::json_pointer(pointer)] = json::parse(value);
    const auto result = parse_tokenizer_file(file.dump());
    ASSERT_FALSE(result) << pointer << " = " << value;
    EXPECT_EQ(result.error().code, ErrorCode::kTokenizer);
    EXPECT_NE(result.error().message.find(error), std::string::npos)
        << pointer << ": " << result.error().message;
    EXPECT_LT(result.error().message.size(), 200u);
  }
}

TEST(TokenizerFile, RefusesWhatIsNotJson) {
  for (const std::string text : {"", "[]", "{", "\xff", "{\"model\": \"\xed\xa0\x80\"}"}) {
    const auto result = parse_tokenizer_file(text);
    ASSERT_FALSE(result) << text;
    EXPECT_EQ(result.error().code, ErrorCode::kTokenizer);
  }
  EXPECT_FALSE(parse_tokenizer_file(std::string(100000, '[')));
}

}  // namespace
}  // namespace tidemill
