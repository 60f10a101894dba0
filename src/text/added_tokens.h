// Search of text for added tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tidemill {

// Immutable; const members may be called from any thread.
class AddedTokens {
 public:
  struct Token {
    std::string spelling;  // not empty
    int32_t id;
  };
  struct Match {
    size_t offset;
    size_t size;
    int32_t id;
  };

  AddedTokens() = default;
  // Spellings must differ from each other.
  explicit AddedTokens(std::vector<Token> tokens);

  // The leftmost token in `text`; the longest where several begin at the same place.
  std::optional<Match> find(std::string_view text) const;

  std::optional<int32_t> id(std::string_view spelling) const;

 private:
  std::optional<Match> longest_prefix(std::string_view text) const;

  std::vector<Token> tokens_;  // sorted by spelling
};

}  // namespace tidemill
