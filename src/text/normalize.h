// The text normalisation that Engram's token map is built with.
#pragma once

#include <string>
#include <string_view>

namespace tidemill {

// Texts that differ only in case, accents, width or white space become equal: compatibility
// decomposition, without combining marks, lower case, each run of space, tab, CR and LF as one
// space, no white space at the ends. A text that is nothing but such a run becomes one space.
// The result may be empty. `text` must be valid UTF-8.
std::string normalize_for_engram(std::string_view text);

}  // namespace tidemill
