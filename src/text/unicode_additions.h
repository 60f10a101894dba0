// Code points that Unicode 15.0, 15.1 and 16.0 gave a general category.
#pragma once

#include <span>

namespace tidemill {

struct CodePointRange {
  char32_t first;
  char32_t last;  // included
};

// Ranges of one of the categories L, M, N, P, S that Unicode 14 had not assigned; empty for any
// other letter. Debian 12's PCRE2 knows Unicode 14, while the released models were trained with a
// tokenizer of Unicode 16: without these, new emoji and scripts would be split differently.
// Source: DerivedGeneralCategory.txt of Unicode 16.0.0 against 14.0.0; no older category changed.
std::span<const CodePointRange> added_since_unicode14(char category);

}  // namespace tidemill
