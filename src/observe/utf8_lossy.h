// Bytes of unknown origin as UTF-8.
#pragma once

#include <string>
#include <string_view>

namespace tidemill {

// Every byte that is no part of a well-formed character becomes U+FFFD; all else stays.
std::string utf8_lossy(std::string_view bytes);

}  // namespace tidemill
