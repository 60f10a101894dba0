#include "text/added_tokens.h"

#include <algorithm>

namespace tidemill {

AddedTokens::AddedTokens(std::vector<Token> tokens) : tokens_(std::move(tokens)) {
  std::ranges::sort(tokens_, {}, &Token::spelling);
}

std::optional<AddedTokens::Match> AddedTokens::longest_prefix(std::string_view text) const {
  // The spellings that begin with the first `depth` bytes of the text are neighbours in the sorted
  // list; each byte narrows them down, as a walk down a trie would.
  std::optional<Match> longest;
  auto first = tokens_.begin();
  auto last = tokens_.end();
  for (size_t depth = 0; first != last; ++depth) {
    if (first->spelling.size() == depth) {
      longest = Match{0, depth, first->id};
      ++first;
    }
    if (depth == text.size()) break;
    const auto next_byte = [depth](const Token& token) {
      return static_cast<uint8_t>(token.spelling[depth]);
    };
    const auto range =
        std::ranges::equal_range(first, last, static_cast<uint8_t>(text[depth]), {}, next_byte);
    first = range.begin();
    last = range.end();
  }
  return longest;
}

std::optional<AddedTokens::Match> AddedTokens::find(std::string_view text) const {
  for (size_t offset = 0; offset < text.size(); ++offset) {
    if (auto match = longest_prefix(text.substr(offset))) {
      match->offset = offset;
      return match;
    }
  }
  return std::nullopt;
}

std::optional<int32_t> AddedTokens::id(std::string_view spelling) const {
  const auto match = longest_prefix(spelling);
  if (!match || match->size != spelling.size()) return std::nullopt;
  return match->id;
}

}  // namespace tidemill
