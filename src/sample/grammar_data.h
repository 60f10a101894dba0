// What stands behind the types of grammar.h. Included by their sources only.
#pragma once

#include <xgrammar/xgrammar.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sample/grammar.h"

namespace tidemill {

// Keeps a free text from spelling a marker in ordinary tokens. The marker's first character does
// not occur in it again, so of the text only the length of the beginning of the marker that it ends
// with has to be known.
class SpellingGuard {
 public:
  SpellingGuard(std::string_view marker, const Tokenizer& tokenizer);

  // Progress after the bytes of one more token. markers have fewer than 255 bytes.
  uint8_t advance(uint8_t progress, std::string_view bytes) const;
  // The tokens that would complete the marker.
  const std::vector<int32_t>& completing(uint8_t progress) const { return completing_[progress]; }

 private:
  bool completes(uint8_t progress, std::string_view bytes) const;

  std::string marker_;
  std::vector<std::vector<int32_t>> completing_;  // by progress
};

struct GrammarVocabulary::Data {
  int64_t size;
  std::vector<int32_t> stop_tokens;
  int32_t think_end;
  int32_t marker;                  // ｜DSML｜
  std::vector<std::string> bytes;  // of each token
  SpellingGuard think_guard;       // </think>
  SpellingGuard marker_guard;      // <｜DSML｜
  xgrammar::TokenizerInfo tokens;
  xgrammar::TokenizerInfo no_tokens;  // to see how large a grammar becomes before it meets tokens
};

struct CompiledGrammar::Data {
  GrammarSpec::Kind kind;
  ToolChoice choice;  // kToolCalls
  std::shared_ptr<const GrammarVocabulary::Data> vocabulary;
  xgrammar::CompiledGrammar grammar;
  int64_t bytes;
};

// xgrammar reports errors by exceptions; none leaves this room. `call` returns a Result.
template <typename Call>
auto catching(Call call) -> decltype(call()) {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::kOutOfMemory, "out of memory in a grammar");
  } catch (const std::exception& error) {
    return fail(ErrorCode::kRequest, "grammar: {}", error.what());
  }
}

}  // namespace tidemill
