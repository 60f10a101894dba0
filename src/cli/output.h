// Standard output, with its failures: a script must not take a full disk for success.
#pragma once

#include <string_view>

#include "base/result.h"

namespace tidemill::cli {

// Buffered. Error kFileWrite.
Status write_stdout(std::string_view text);
Status flush_stdout();
// A piece of streamed text: visible at once.
Status stream_stdout(std::string_view text);

}  // namespace tidemill::cli
