// Cuts text into the pieces inside which byte pairs are merged.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tidemill {

// Immutable; const members may be called from any thread.
class PreTokenizer {
 public:
  // patterns: in the syntax that pattern_syntax.h accepts. Errors: kTokenizer with the pattern's
  // number and text when it is outside that syntax, wrong, or can match the empty string.
  static Result<PreTokenizer> compile(std::span<const std::string> patterns);

  // `text` must be valid UTF-8; the pieces point into it, follow each other without gaps and are
  // never empty. The first pattern cuts the text; every further one cuts each piece of the one
  // before, seeing nothing beyond the piece. Matches and the stretches between them are pieces.
  // Where a match would take more than PCRE2's default limit of steps, the rest of that text stays
  // one piece, so that a bad pattern costs time and fidelity but cannot hang.
  std::vector<std::string_view> split(std::string_view text) const;

 private:
  std::vector<std::shared_ptr<const void>> patterns_;  // pcre2_code
};

}  // namespace tidemill
