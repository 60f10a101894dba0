// The page at "/": one HTML file without references to anything outside it.
#pragma once

#include <string_view>

namespace tidemill {

std::string_view status_page();

}  // namespace tidemill
