// Events for the operator: one line each, on stderr. Library code never writes to stdout.
#pragma once

#include <fmt/core.h>

#include <string_view>
#include <utility>

namespace tidemill {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };

// Events below the level are dropped. Starts at kWarning. Any thread, at any time.
void set_log_level(LogLevel level);
LogLevel log_level();

// Control characters of the message (a file name may hold them) are escaped: an event stays on
// one line. Any thread.
void write_log(LogLevel level, std::string_view message);

template <typename... Args>
void log(LogLevel level, fmt::format_string<Args...> text, Args&&... args) {
  if (level >= log_level()) write_log(level, fmt::format(text, std::forward<Args>(args)...));
}

template <typename... Args>
void log_debug(fmt::format_string<Args...> text, Args&&... args) {
  log(LogLevel::kDebug, text, std::forward<Args>(args)...);
}
template <typename... Args>
void log_info(fmt::format_string<Args...> text, Args&&... args) {
  log(LogLevel::kInfo, text, std::forward<Args>(args)...);
}
template <typename... Args>
void log_warning(fmt::format_string<Args...> text, Args&&... args) {
  log(LogLevel::kWarning, text, std::forward<Args>(args)...);
}
template <typename... Args>
void log_error(fmt::format_string<Args...> text, Args&&... args) {
  log(LogLevel::kError, text, std::forward<Args>(args)...);
}

}  // namespace tidemill
