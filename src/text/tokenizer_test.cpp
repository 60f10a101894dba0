#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <set>

#include <nlohmann/json.hpp>

#include "text/byte_alphabet.h"
#include "text/tokenizer_for_tests.h"
#include "text/utf8.h"

namespace tidemill {
namespace {

using nlohmann::json;
using Ids = std::vector<int32_t>;

json read_cases() {
  std::ifstream file(TIDEMILL_SOURCE_DIR "/tests/cases/tokenizer.json");
  return json::parse(file);
}

void check_cases(const Tokenizer* tokenizer, const char* name) {
  const json cases = read_cases().at(name);
  ASSERT_GE(cases.size(), 60u);
  for (const json& test : cases) {
    const auto text = test.at("text").get<std::string>();
    const Ids plain = test.at("ids").get<Ids>();
    const Ids full = test.value("ids_with_added_tokens", plain);
    EXPECT_EQ(tokenizer->encode(text), plain) << test;
    EXPECT_EQ(tokenizer->encode_with_added_tokens(text), full) << test;
    EXPECT_EQ(tokenizer->decode(plain), text);
    EXPECT_EQ(tokenizer->decode(full), text);
  }
}

TEST(Tokenizer, CasesOfDeepSeek) { check_cases(deepseek_tokenizer(), "deepseek-v41"); }
TEST(Tokenizer, CasesOfMini) { check_cases(mini_tokenizer(), "mini"); }
TEST(Tokenizer, CasesOfMicro) { check_cases(micro_tokenizer(), "micro"); }

// A text may consist of the spellings of special tokens only: plain mode never yields one.
TEST(Tokenizer, PlainModeCannotForgeSpecialTokens) {
  const Tokenizer* tokenizer = mini_tokenizer();
  std::string all;
  Ids added;
  for (int32_t id = 0; id < tokenizer->size(); ++id) {
    if (!tokenizer->added_token(tokenizer->raw(id))) continue;
    added.push_back(id);
    all += tokenizer->raw(id);
  }
  EXPECT_EQ(added.size(), 32u);
  EXPECT_EQ(tokenizer->encode_with_added_tokens(all), added);
  const std::set<int32_t> special(added.begin(), added.end());
  for (const int32_t id : tokenizer->encode(all)) EXPECT_FALSE(special.contains(id)) << id;
}

TEST(Tokenizer, TokensOfDeepSeek) {
  const Tokenizer* tokenizer = deepseek_tokenizer();
  EXPECT_EQ(tokenizer->size(), 129280);
  EXPECT_EQ(tokenizer->added_token("<｜System｜>"), 128799);
  EXPECT_EQ(tokenizer->added_token("｜DSML｜"), 128825);
  EXPECT_EQ(tokenizer->added_token("<｜begin▁of▁sentence｜>"), 0);
  EXPECT_EQ(tokenizer->added_token("Hello"), std::nullopt);
  EXPECT_EQ(tokenizer->raw(270), "Ġthe");
  EXPECT_EQ(tokenizer->bytes(270), " the");
  EXPECT_EQ(tokenizer->bytes(128803), "<｜User｜>");
  // Only what the file flags is skipped.
  const Ids ids = {0, 128803, 19923, 128821, 1};
  EXPECT_EQ(tokenizer->decode(ids),
            "<｜begin▁of▁sentence｜><｜User｜>Hello<think><｜end▁of▁sentence｜>");
  EXPECT_EQ(tokenizer->decode(ids, true), "<｜User｜>Hello<think>");
}

TEST(Tokenizer, LongPiecesTakeNoQuadraticTime) {
  const Tokenizer* tokenizer = mini_tokenizer();
  // A quadratic method needs minutes for the second text.
  for (const std::string& text :
       {std::string(100000, ' '), std::string(300000, 'a'), std::string(100000, ' ') + "a"}) {
    const auto start = std::chrono::steady_clock::now();
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
  }
}

TEST(Tokenizer, InvalidInputIsReplacedFirst) {
  const Tokenizer* tokenizer = micro_tokenizer();
  const std::string broken = "a\xe4\xbd z\xff";
  EXPECT_EQ(tokenizer->encode(broken), tokenizer->encode("a\uFFFD z\uFFFD"));
  EXPECT_EQ(tokenizer->encode_with_added_tokens(broken), tokenizer->encode("a\uFFFD z\uFFFD"));
}

TEST(Tokenizer, UnknownIdsAreEmpty) {
  const Tokenizer* tokenizer = micro_tokenizer();
  for (const int32_t id : {-1, 320, INT32_MIN, INT32_MAX}) {
    EXPECT_FALSE(tokenizer->has(id));
    EXPECT_FALSE(tokenizer->is_special(id));
    EXPECT_EQ(tokenizer->bytes(id), "");
    EXPECT_EQ(tokenizer->raw(id), "");
    EXPECT_EQ(tokenizer->decode({&id, 1}), "");
  }
}

// All 256 bytes, then "ab" with id 256; nothing else.
json small_file() {
  json file = json::parse(R"({
    "added_tokens": [], "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
    "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE", "vocab": {"ab": 256}, "merges": [["a", "b"]]}})");
  for (unsigned byte = 0; byte < 256; ++byte) {
    std::string raw;
    append_utf8(raw, byte_to_character(static_cast<uint8_t>(byte)));
    file["model"]["vocab"][raw] = byte;
  }
  return file;
}

json added(int32_t id, const char* content, bool normalized = false) {
  return {{"id", id}, {"content", content}, {"normalized", normalized}, {"special", true}};
}

TEST(Tokenizer, IdsMayHaveHoles) {
  json file = small_file();
  file["added_tokens"] = {added(300, "<end>")};
  const auto tokenizer = Tokenizer::parse(file.dump());
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  EXPECT_EQ(tokenizer->size(), 301);
  EXPECT_FALSE(tokenizer->has(299));
  EXPECT_TRUE(tokenizer->has(300));
  EXPECT_EQ(tokenizer->encode_with_added_tokens("ab<end>b"), Ids({256, 300, 'b'}));
}

TEST(Tokenizer, NormalizedAddedTokensComeSecond) {
  json file = small_file();
  file["added_tokens"] = {added(300, "<x><y", true), added(301, "<y>")};
  const auto tokenizer = Tokenizer::parse(file.dump());
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  EXPECT_EQ(tokenizer->encode_with_added_tokens("<x><y>"), Ids({'<', 'x', '>', 301}));
  EXPECT_EQ(tokenizer->encode_with_added_tokens("<x><y!"), Ids({300, '!'}));
}

TEST(Tokenizer, RefusesContradictions) {
  const auto refusal = [](const json& file) {
    const auto tokenizer = Tokenizer::parse(file.dump());
    if (tokenizer) return std::string("accepted");
    EXPECT_EQ(tokenizer.error().code, ErrorCode::kTokenizer);
    return tokenizer.error().message;
  };
  json file = small_file();
  file["model"]["vocab"]["zz"] = 256;
  EXPECT_EQ(refusal(file), "id 256 has two tokens, \"ab\" and \"zz\"");

  file = small_file();
  file["model"]["vocab"].erase("Ġ");
  EXPECT_EQ(refusal(file), "byte 32: token \"Ġ\" is not in model.vocab");

  file = small_file();
  file["model"]["merges"] = {"a b", "b a"};
  EXPECT_EQ(refusal(file), "model.merges[1]: token \"ba\" is not in model.vocab");

  file = small_file();
  file["added_tokens"] = {added(300, "ab")};
  EXPECT_EQ(refusal(file), "token \"ab\" has two ids, 256 and 300");

  file = small_file();
  file["added_tokens"] = {added(256, "<s>")};
  EXPECT_EQ(refusal(file), "id 256 has two tokens, \"ab\" and \"<s>\"");

  file = small_file();
  file["added_tokens"] = {added(300, "<s>"), added(300, "<s>")};
  EXPECT_EQ(refusal(file), "added token \"<s>\" is listed twice");
}

TEST(Tokenizer, LoadNamesTheFile) {
  const auto missing = Tokenizer::load("/nonexistent/tokenizer.json");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ErrorCode::kFileNotFound);
  EXPECT_NE(missing.error().message.find("/nonexistent/tokenizer.json"), std::string::npos);

  const auto wrong = Tokenizer::load(TIDEMILL_SOURCE_DIR "/models/mini/config.json");
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().code, ErrorCode::kTokenizer);
  EXPECT_NE(wrong.error().message.find("models/mini/config.json: "), std::string::npos);
}

}  // namespace
}  // namespace tidemill
