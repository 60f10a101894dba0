// Options by name, for callers that have them as text.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "tidemill/options.h"

namespace tidemill {

// Sets the field `key` of the options. kInvalidArgument names key, value and range; nothing changes
// then. What depends on other options or on the model is Engine::open's to check.
Status set_option(Options& options, std::string_view key, std::string_view value);

// One line "key  range" for each option.
std::string option_help();

}  // namespace tidemill
