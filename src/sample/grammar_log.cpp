// Where xgrammar's messages go: it is built with XGRAMMAR_LOG_CUSTOMIZE (cmake/xgrammar.cmake).
#include <stdexcept>
#include <string>

#include "base/log.h"

namespace xgrammar {

[[noreturn]] void LogFatalImpl(const std::string& file, int line, const std::string& message);
void LogMessageImpl(const std::string& file, int line, int level, const std::string& message);

// An error of its input: thrown to whoever called into xgrammar (grammar_data.h, catching).
void LogFatalImpl(const std::string&, int, const std::string& message) {
  throw std::invalid_argument(message);
}

// Requests can cause these: nothing for the operator.
void LogMessageImpl(const std::string& file, int line, int, const std::string& message) {
  tidemill::log_debug("{}:{}: {}", file, line, message);
}

}  // namespace xgrammar
