#include "base/cgroup.h"

#include <fmt/core.h>

#include <fstream>
#include <string>

namespace tidemill {
namespace {

namespace fs = std::filesystem;

// From the mount point down to the group. Inside a container the group's path may be that of the
// host and not be there: then only the directories that exist count.
void add_path(const fs::path& mount, const fs::path& group, std::vector<fs::path>& directories) {
  directories.push_back(mount);
  for (const fs::path& part : group.relative_path()) {
    if (part == "..") break;
    directories.push_back(directories.back() / part);
  }
}

bool has_controller(const std::string& list, std::string_view name) {
  return fmt::format(",{},", list).find(fmt::format(",{},", name)) != std::string::npos;
}

}  // namespace

std::vector<fs::path> cgroup_directories(const fs::path& root, std::string_view controller) {
  const fs::path mounts = root / "sys/fs/cgroup";
  std::vector<fs::path> directories;
  std::ifstream groups(root / "proc/self/cgroup");
  // Lines are "number:controllers:path"; v2 has the number 0 and no controllers.
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const fs::path group = line.substr(second + 1);
    if (controllers.empty()) {
      add_path(mounts, group, directories);
    } else if (has_controller(controllers, controller)) {
      add_path(mounts / controller, group, directories);
      if (controllers != controller) add_path(mounts / controllers, group, directories);
    }
  }
  return directories;
}

}  // namespace tidemill
