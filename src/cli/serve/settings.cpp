#include "cli/serve/settings.h"

#include <toml++/toml.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "cli/input.h"

namespace tidemill::cli {
namespace {

// The first long name is the option's; others are for those who know it by another one.
std::string name_of(const CLI::Option& option) {
  return option.get_lnames().empty() ? "" : option.get_lnames().front();
}

bool is_setting(const CLI::Option& option) {
  const std::string name = name_of(option);
  return !name.empty() && name != "help" && name != "config";
}

std::string variable_of(const std::string& name) {
  std::string variable = "TIDEMILL_";
  for (const char c : name) {
    variable += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return variable;
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  return parts;
}

Status set(CLI::Option& option, const std::vector<std::string>& values, const std::string& source) {
  try {
    for (const std::string& value : values) option.add_result(value);
    option.run_callback();
  } catch (const CLI::Error& error) {
    return fail(ErrorCode::kInvalidArgument, "{}: {}", source, error.what());
  }
  return {};
}

std::string text_of(const toml::node& node) {
  if (const auto* text = node.as_string()) return text->get();
  std::ostringstream out;
  node.visit([&](const auto& value) {
    if constexpr (toml::is_boolean<decltype(value)>) {
      out << (value.get() ? "true" : "false");
    } else if constexpr (toml::is_value<decltype(value)>) {
      out << value.get();
    }
  });
  return out.str();
}

Result<std::vector<std::string>> values_of(const toml::node& node, const std::string& source) {
  std::vector<std::string> values;
  const toml::array* array = node.as_array();
  for (size_t i = 0; i < (array ? array->size() : 1); ++i) {
    const toml::node& one = array ? *array->get(i) : node;
    if (!one.is_string() && !one.is_number() && !one.is_boolean()) {
      return fail(ErrorCode::kInvalidArgument,
                  "{}: expected a string, a number, true, false or an array of them", source);
    }
    values.push_back(text_of(one));
  }
  return values;
}

Result<toml::table> read_toml(const std::filesystem::path& file) {
  TRY(const std::string text, read_input(file.string()));
  try {
    return toml::parse(text, file.string());
  } catch (const toml::parse_error& error) {
    return fail(ErrorCode::kInvalidArgument, "{}:{}: {}", file.string(), error.source().begin.line,
                error.description());
  }
}

CLI::Option* find_option(CLI::App& command, std::string key) {
  std::replace(key.begin(), key.end(), '_', '-');
  for (CLI::Option* option : command.get_options()) {
    const auto& names = option->get_lnames();
    if (is_setting(*option) && std::find(names.begin(), names.end(), key) != names.end()) {
      return option;
    }
  }
  return nullptr;
}

}  // namespace

Result<Settings> Settings::apply(CLI::App& command, const std::filesystem::path& config) {
  Settings settings;
  for (CLI::Option* option : command.get_options()) {
    if (!is_setting(*option)) continue;
    const std::string name = name_of(*option);
    if (option->count() > 0) {
      settings.sources_[name] = "flag";
      continue;
    }
    const std::string variable = variable_of(name);
    const char* value = std::getenv(variable.c_str());
    if (value == nullptr || *value == '\0') continue;
    const bool is_list = option->get_items_expected_max() > 1;
    CHECK_OK(set(*option, is_list ? split(value) : std::vector<std::string>{value}, variable));
    settings.sources_[name] = variable;
  }
  if (config.empty()) return settings;

  TRY(const toml::table table, read_toml(config));
  for (const auto& [key, node] : table) {
    const std::string source =
        fmt::format("{}:{}: {}", config.string(), node.source().begin.line, key.str());
    CLI::Option* option = find_option(command, std::string(key.str()));
    if (option == nullptr) {
      return fail(ErrorCode::kInvalidArgument, "{}: no such option (tidemill serve --help)",
                  source);
    }
    TRY(const std::vector<std::string> values, values_of(node, source));
    if (settings.sources_.contains(name_of(*option))) continue;
    CHECK_OK(set(*option, values, source));
    settings.sources_[name_of(*option)] = config.filename().string();
  }
  return settings;
}

std::string Settings::describe(const CLI::App& command) const {
  std::string text;
  for (const CLI::Option* option : command.get_options()) {
    if (!is_setting(*option)) continue;
    const std::string name = name_of(*option);
    const auto source = sources_.find(name);
    if (source == sources_.end()) {
      const bool is_flag = option->get_items_expected_max() == 0;
      const std::string value = is_flag ? "false" : option->get_default_str();
      text += fmt::format("  {} = {}\n", name, value.empty() ? "(default)" : value);
      continue;
    }
    std::string value;
    for (const std::string& one : option->results()) {
      value += fmt::format("{}{}", value.empty() ? "" : ", ", one);
    }
    text += fmt::format("  {} = {}  ({})\n", name, value, source->second);
  }
  return text;
}

}  // namespace tidemill::cli
