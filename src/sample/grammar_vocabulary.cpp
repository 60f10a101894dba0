#include <algorithm>
#include <utility>

#include "sample/grammar_data.h"
#include "text/special_tokens.h"

namespace tidemill {
namespace {

// xgrammar can name a token in a grammar only if it has bytes, and takes these bytes too where the
// grammar asks for text. No text has this one: it does not occur in UTF-8.
constexpr char kNoText = '\xFF';

}  // namespace

SpellingGuard::SpellingGuard(std::string_view marker, const Tokenizer& tokenizer)
    : marker_(marker), completing_(marker.size()) {
  for (int32_t id = 0; id < tokenizer.size(); ++id) {
    const std::string_view bytes = tokenizer.bytes(id);
    for (size_t progress = 0; progress < marker.size(); ++progress) {
      const auto from = static_cast<uint8_t>(progress);
      if (completes(from, bytes)) completing_[progress].push_back(id);
    }
  }
}

uint8_t SpellingGuard::advance(uint8_t progress, std::string_view bytes) const {
  for (const char c : bytes) {
    if (c == marker_[progress]) {
      ++progress;
      if (progress == marker_.size()) progress = 0;  // an added token that holds it: not ordinary
    } else {
      progress = c == marker_[0] ? 1 : 0;
    }
  }
  return progress;
}

bool SpellingGuard::completes(uint8_t progress, std::string_view bytes) const {
  for (const char c : bytes) {
    if (progress + size_t{1} == marker_.size() && c == marker_.back()) return true;
    progress = advance(progress, std::string_view(&c, 1));
  }
  return false;
}

Result<GrammarVocabulary> GrammarVocabulary::make(const Tokenizer& tokenizer, int64_t vocabulary,
                                                  std::vector<int32_t> stop_tokens) {
  const std::optional<int32_t> think_end = tokenizer.added_token(special::kThinkEnd);
  const std::optional<int32_t> marker = tokenizer.added_token(special::kDsml);
  if (!think_end || !marker) {
    return fail(ErrorCode::kTokenizer, "the tokenizer has no token {}",
                think_end ? special::kDsml : special::kThinkEnd);
  }
  if (vocabulary < tokenizer.size()) {
    return fail(ErrorCode::kTokenizer, "the tokenizer has {} tokens, the model {}",
                tokenizer.size(), vocabulary);
  }
  if (stop_tokens.empty()) return fail(ErrorCode::kTokenizer, "there is no stop token");
  for (const int32_t stop : stop_tokens) {
    if (stop >= 0 && stop < vocabulary) continue;
    return fail(ErrorCode::kTokenizer, "the stop token {} is outside the vocabulary of {}", stop,
                vocabulary);
  }

  const auto size = static_cast<size_t>(vocabulary);
  std::vector<std::string> bytes(size);
  std::vector<std::string> in_grammars(size);  // empty: not part of any text
  for (int32_t id = 0; id < tokenizer.size(); ++id) {
    const auto index = static_cast<size_t>(id);
    bytes[index] = tokenizer.bytes(id);
    const bool is_added = tokenizer.added_token(tokenizer.raw(id)) == id;
    if (!is_added) in_grammars[index] = bytes[index];
  }
  in_grammars[static_cast<size_t>(*marker)] = std::string(1, kNoText);

  return catching([&]() -> Result<GrammarVocabulary> {
    xgrammar::TokenizerInfo tokens(in_grammars, xgrammar::VocabType::RAW,
                                   static_cast<int>(vocabulary), stop_tokens);
    xgrammar::TokenizerInfo no_tokens(std::vector<std::string>{});
    return GrammarVocabulary(std::make_shared<const Data>(
        Data{vocabulary, std::move(stop_tokens), *think_end, *marker, std::move(bytes),
             SpellingGuard(special::kThinkEnd, tokenizer),
             SpellingGuard(fmt::format("<{}", special::kDsml), tokenizer), std::move(tokens),
             std::move(no_tokens)}));
  });
}

int64_t GrammarVocabulary::size() const { return data_->size; }

}  // namespace tidemill
