// What the tests of grammars share. Included by tests only.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "sample/grammar.h"
#include "text/special_tokens.h"
#include "text/tokenizer_for_tests.h"

namespace tidemill {

inline int32_t stop_token(const Tokenizer& tokenizer) {
  return *tokenizer.added_token(special::kEos);
}

inline GrammarVocabulary vocabulary_of(const Tokenizer& tokenizer) {
  auto vocabulary = GrammarVocabulary::make(tokenizer, tokenizer.size(), {stop_token(tokenizer)});
  EXPECT_TRUE(vocabulary) << vocabulary.error().message;
  return *std::move(vocabulary);
}

// Over the 8,192 tokens of the mini model.
inline GrammarCompiler& mini_compiler() {
  static GrammarCompiler compiler(vocabulary_of(*mini_tokenizer()), {}, int64_t{64} << 20);
  return compiler;
}

inline GrammarMatcher matcher_of(const GrammarSpec& spec,
                                 Prompt::Start start = Prompt::Start::kContent) {
  auto compiled = mini_compiler().compile(spec);
  EXPECT_TRUE(compiled) << compiled.error().message;
  auto matcher = GrammarMatcher::make(*compiled, start);
  EXPECT_TRUE(matcher) << matcher.error().message;
  return *std::move(matcher);
}

inline std::vector<uint32_t> mask_of(GrammarMatcher& matcher) {
  std::vector<uint32_t> mask(static_cast<size_t>(mini_compiler().vocabulary().mask_words()));
  const Status filled = matcher.fill_mask(mask);
  EXPECT_TRUE(filled) << filled.error().message;
  return mask;
}

inline bool allows(const std::vector<uint32_t>& mask, int32_t token) {
  return (mask[static_cast<size_t>(token) / 32] >> (token % 32) & 1u) != 0;
}

// Takes the tokens of the text, as far as they may follow: all of them?
inline bool accept_text(GrammarMatcher& matcher, std::string_view text) {
  for (const int32_t token : mini_tokenizer()->encode(text)) {
    if (!matcher.accept(token)) return false;
  }
  return true;
}

// Is this text a whole answer?
inline bool matches(GrammarMatcher matcher, std::string_view text) {
  return accept_text(matcher, text) && matcher.accept(stop_token(*mini_tokenizer()));
}

struct Walk {
  std::vector<int32_t> tokens;
  std::string text;  // without the stop token
  bool is_complete = false;
};

// Draws tokens from the masks until a stop token or `limit`. What brings an end nearer (a stop
// token, a short token, closing punctuation) is preferred more and more.
inline Walk random_walk(GrammarMatcher& matcher, std::mt19937& random, size_t limit = 300) {
  const Tokenizer& tokenizer = *mini_tokenizer();
  Walk walk;
  while (walk.tokens.size() < limit && !matcher.is_terminated()) {
    const std::vector<uint32_t> mask = mask_of(matcher);
    std::vector<int32_t> allowed;
    for (int32_t token = 0; token < tokenizer.size(); ++token) {
      if (allows(mask, token)) allowed.push_back(token);
    }
    if (allowed.empty()) {
      ADD_FAILURE() << "nothing may follow: " << walk.text;
      break;
    }
    int32_t token = allowed[random() % allowed.size()];
    const bool hurries = random() % 40 < walk.tokens.size();
    for (int attempt = 0; hurries && attempt < 30; ++attempt) {
      const int32_t other = allowed[random() % allowed.size()];
      const std::string_view bytes = tokenizer.bytes(other);
      if (bytes.find_first_of("\"}]") == std::string_view::npos) continue;
      token = other;
      break;
    }
    const int32_t stop = stop_token(tokenizer);
    if (allows(mask, stop) && (hurries || random() % 4 == 0)) token = stop;
    if (!matcher.accept(token)) {
      ADD_FAILURE() << "the mask allowed '" << tokenizer.bytes(token) << "' after: " << walk.text;
      break;
    }
    walk.tokens.push_back(token);
    if (token != stop) walk.text += tokenizer.bytes(token);
  }
  walk.is_complete = matcher.is_terminated();
  return walk;
}

inline Json grammar_cases() {
  std::ifstream file(TIDEMILL_SOURCE_DIR "/tests/cases/grammar/schemas.json");
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  auto cases = parse_json(text);
  EXPECT_TRUE(cases) << cases.error().message;
  return cases ? *std::move(cases) : Json();
}

}  // namespace tidemill
