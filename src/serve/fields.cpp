#include "serve/fields.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace tidemill {
namespace {

// Integers beyond 64 bits are binary values (text/json.h).
std::string_view type_of(const Json& value) {
  return value.is_binary() ? "a number beyond 64 bits" : value.type_name();
}

bool accepts(const FixedField& field, const Json& value) {
  const Json accepted = Json::parse(field.accepted);
  return std::find(accepted.begin(), accepted.end(), value) != accepted.end();
}

tl::unexpected<Error> refuse(const Fields& fields, const FixedField& field) {
  const std::string_view separator = field.advice.empty() ? "" : "; ";
  if (field.accepted == "[]") {
    return fail(ErrorCode::kRequest, "{}: not supported{}{}", fields.path(field.name), separator,
                field.advice);
  }
  return fail(ErrorCode::kRequest, "{}: only {} supported{}{}", fields.path(field.name),
              fmt::format("{} is", field.accepted.substr(1, field.accepted.size() - 2)), separator,
              field.advice);
}

}  // namespace

Result<Fields> Fields::of(const Json& value, std::string path) {
  if (value.is_object()) return Fields(value, std::move(path));
  return fail(ErrorCode::kRequest, "{}: expected an object, got {}",
              path.empty() ? "body" : std::string_view(path), type_of(value));
}

const Json* Fields::find(std::string_view key) const {
  const auto it = object_->find(key);
  return it == object_->end() || it->is_null() ? nullptr : &*it;
}

std::string Fields::path(std::string_view key) const {
  return path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
}

tl::unexpected<Error> Fields::wrong(std::string_view key, std::string_view what) const {
  const Json* value = find(key);
  if (!value) return fail(ErrorCode::kRequest, "{}: missing; expected {}", path(key), what);
  if (value->is_number()) {
    return fail(ErrorCode::kRequest, "{}: expected {}, got {}", path(key), what, value->dump());
  }
  return fail(ErrorCode::kRequest, "{}: expected {}, got {}", path(key), what, type_of(*value));
}

Result<std::optional<bool>> Fields::boolean(std::string_view key) const {
  const Json* value = find(key);
  if (!value) return std::nullopt;
  if (!value->is_boolean()) return wrong(key, "true or false");
  return value->get<bool>();
}

Result<std::optional<int64_t>> Fields::integer(std::string_view key, int64_t low,
                                               int64_t high) const {
  const Json* value = find(key);
  if (!value) return std::nullopt;
  std::optional<int64_t> number;
  if (value->is_number_unsigned()) {
    const auto large = value->get<uint64_t>();
    if (large <= static_cast<uint64_t>(INT64_MAX)) number = static_cast<int64_t>(large);
  } else if (value->is_number_integer()) {
    number = value->get<int64_t>();
  } else if (value->is_number_float()) {
    const double real = value->get<double>();
    constexpr double kExact = 9007199254740992.0;  // 2^53
    if (std::abs(real) <= kExact && std::trunc(real) == real) number = static_cast<int64_t>(real);
  }
  if (!number || *number < low || *number > high) {
    return wrong(key, fmt::format("an integer from {} to {}", low, high));
  }
  return number;
}

Result<std::optional<double>> Fields::number(std::string_view key, double low, double high) const {
  const Json* value = find(key);
  if (!value) return std::nullopt;
  if (value->is_number()) {
    const double number = value->get<double>();
    if (number >= low && number <= high) return number;
  }
  return wrong(key, fmt::format("a number from {} to {}", low, high));
}

Result<std::optional<std::string>> Fields::string(std::string_view key) const {
  const Json* value = find(key);
  if (!value) return std::nullopt;
  if (!value->is_string()) return wrong(key, "a string");
  return value->get<std::string>();
}

Result<std::optional<Fields>> Fields::object(std::string_view key) const {
  const Json* value = find(key);
  if (!value) return std::nullopt;
  TRY(Fields fields, of(*value, path(key)));
  return fields;
}

Result<const Json*> Fields::array(std::string_view key) const {
  const Json* value = find(key);
  if (value && !value->is_array()) return wrong(key, "an array");
  return value;
}

Result<std::string> Fields::require_string(std::string_view key) const {
  TRY(std::optional<std::string> value, string(key));
  if (!value) return wrong(key, "a string");
  return *std::move(value);
}

Status check_fields(const Fields& fields, std::span<const FieldTable> tables,
                    std::vector<std::string>& unknown) {
  const auto known = [&](const std::string& name, const Json& value) -> Result<bool> {
    for (const FieldTable& table : tables) {
      if (std::find(table.read.begin(), table.read.end(), name) != table.read.end()) return true;
      for (const FixedField& field : table.fixed) {
        if (field.name != name) continue;
        if (!accepts(field, value)) return refuse(fields, field);
        return true;
      }
    }
    return false;
  };
  for (const auto& [name, value] : fields.json().items()) {
    if (value.is_null()) continue;
    TRY(const bool is_known, known(name, value));
    if (!is_known) unknown.push_back(fields.path(name));
  }
  return {};
}

}  // namespace tidemill
