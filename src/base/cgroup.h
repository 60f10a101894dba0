// Control groups of this process, where limits on it are written.
#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

namespace tidemill {

// Directories whose limits of a controller ("cpu", "memory") hold for this process: its groups of
// version 1 and 2 and all their parents, as far as they can be there. Files of both versions may be
// looked for in each. `root` is the directory that holds proc/ and sys/: a test passes its own.
std::vector<std::filesystem::path> cgroup_directories(const std::filesystem::path& root,
                                                      std::string_view controller);

}  // namespace tidemill
