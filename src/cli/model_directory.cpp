#include "cli/model_directory.h"

#include <cstdlib>
#include <system_error>

namespace tidemill::cli {

namespace fs = std::filesystem;

Result<fs::path> find_model(const std::string& flag) {
  if (!flag.empty()) return flag;
  if (const char* variable = std::getenv("TIDEMILL_MODEL"); variable != nullptr && *variable) {
    return variable;
  }
  fs::path bundled = bundled_model();
  if (bundled.empty()) {
    return fail(ErrorCode::kFileNotFound,
                "no bundled model near the program: name a checkpoint with --model DIR or "
                "TIDEMILL_MODEL");
  }
  return bundled;
}

fs::path bundled_model() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (error) return {};
  fs::path installed =
      program.parent_path().parent_path() / "share" / "tidemill" / "models" / "mini";
  if (fs::exists(installed / "config.json", error)) return installed;
  // build/PRESET/tidemill: two directories up; not further, where a stranger's models/ might be.
  fs::path directory = program.parent_path();
  for (int up = 0; up < 2; ++up) {
    directory = directory.parent_path();
    fs::path candidate = directory / "models" / "mini";
    if (fs::exists(candidate / "config.json", error)) return candidate;
  }
  return {};
}

bool is_bundled_model(const fs::path& directory) {
  std::error_code error;
  const fs::path bundled = bundled_model();
  return !bundled.empty() && fs::equivalent(directory, bundled, error);
}

}  // namespace tidemill::cli
