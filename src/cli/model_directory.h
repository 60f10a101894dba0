// Where the model is when the command line does not say.
#pragma once

#include <filesystem>
#include <string>

#include "base/result.h"

namespace tidemill::cli {

// The flag's directory; else the environment variable TIDEMILL_MODEL; else the bundled model.
// Error kFileNotFound when there is none of these.
Result<std::filesystem::path> find_model(const std::string& flag);

// The bundled models/mini: in a directory above the program (a build inside the source tree) or in
// ../share/tidemill of it (installed). Empty when it is in neither.
std::filesystem::path bundled_model();

// The same directory as bundled_model()?
bool is_bundled_model(const std::filesystem::path& directory);

}  // namespace tidemill::cli
