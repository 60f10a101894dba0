#include "model/json_reader.h"

#include <algorithm>
#include <cmath>
#include <unordered_set>
#include <utility>

namespace tidemill {

using nlohmann::json;

namespace {

// Looks at the text once, before the library builds a tree of it: the library's own hook for that
// takes quadratic time. A method that returns false ends the parse.
class Inspector : public json::json_sax_t {
 public:
  const std::string& refusal() const { return refusal_; }

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(size_t) override { return open(); }
  bool start_array(size_t) override { return open(); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& key) override {
    if (keys_.back().insert(key).second) return true;
    return refuse(fmt::format("the key {} appears twice", excerpt(key)));
  }
  bool parse_error(size_t, const std::string&, const json::exception& error) override {
    // The library quotes the whole last token, which may be as large as the file.
    return refuse(fmt::format("not valid JSON: {:.200}", error.what()));
  }

 private:
  bool open() {
    constexpr size_t kMaxDepth = 16;
    keys_.emplace_back();
    return keys_.size() <= kMaxDepth || refuse(fmt::format("nested more than {} deep", kMaxDepth));
  }
  bool close() {
    keys_.pop_back();
    return true;
  }
  bool refuse(std::string text) {
    refusal_ = std::move(text);
    return false;
  }

  std::vector<std::unordered_set<std::string>> keys_;  // of every open object or array
  std::string refusal_;
};

}  // namespace

Result<json> parse_document(std::string_view text, std::string_view file, ErrorCode code) {
  Inspector inspector;
  if (!json::sax_parse(text, &inspector)) {
    return fail(code, "{}: {}", file, inspector.refusal());
  }
  return json::parse(text, nullptr, false);
}

std::string excerpt(const json& value) {
  constexpr size_t kMaxString = 60;
  constexpr size_t kMaxArray = 4;
  // What may be as large as the file is described, not printed.
  if (value.is_string() && value.get_ref<const std::string&>().size() > kMaxString) {
    return fmt::format("a string of {} bytes", value.get_ref<const std::string&>().size());
  }
  const bool long_or_nested =
      value.is_structured() &&
      (value.is_object() || value.size() > kMaxArray ||
       std::any_of(value.begin(), value.end(), [](const json& v) { return !v.is_number(); }));
  if (long_or_nested) {
    return fmt::format("{} of {} elements", value.is_array() ? "an array" : "an object",
                       value.size());
  }
  return value.dump(-1, ' ', true, json::error_handler_t::replace);
}

JsonReader::JsonReader(const json& root, std::string file, ErrorCode code)
    : object_(&root),
      shared_(std::make_shared<Shared>(Shared{std::move(file), code, std::nullopt})) {
  if (!root.is_object()) {
    shared_->error =
        Error{code, fmt::format("{}: expected an object, found {}", shared_->file, excerpt(root))};
  }
}

JsonReader::JsonReader(const json& object, std::string path, std::shared_ptr<Shared> shared)
    : object_(&object), path_(std::move(path)), shared_(std::move(shared)) {}

Status JsonReader::status() const {
  if (shared_->error) return tl::unexpected(*shared_->error);
  return {};
}

void JsonReader::fail_at(std::string_view key, std::string_view text) {
  if (!ok()) return;
  shared_->error =
      Error{shared_->code, fmt::format("{}: {}{}: {}", shared_->file, path_, key, text)};
}

const json* JsonReader::find(std::string_view key) const {
  if (!object_->is_object()) return nullptr;
  const auto member = object_->find(key);
  return member == object_->end() || member->is_null() ? nullptr : &*member;
}

void JsonReader::refuse(std::string_view key, const json* value, std::string_view expected) {
  fail_at(key, value == nullptr ? fmt::format("missing; expected {}", expected)
                                : fmt::format("expected {}, found {}", expected, excerpt(*value)));
}

JsonReader JsonReader::object(std::string_view key) {
  static const json kEmpty = json::object();
  const json* value = find(key);
  const bool found = value != nullptr && value->is_object();
  if (!found) refuse(key, value, "an object");
  return {found ? *value : kEmpty, fmt::format("{}{}.", path_, key), shared_};
}

namespace {

std::optional<int64_t> integer_within(const json& value, int64_t min, int64_t max) {
  if (!value.is_number_integer()) return std::nullopt;
  if (value.is_number_unsigned() &&
      value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return std::nullopt;
  }
  const auto number = value.get<int64_t>();
  if (number < min || number > max) return std::nullopt;
  return number;
}

}  // namespace

void JsonReader::integer(std::string_view key, int64_t& out, int64_t min, int64_t max) {
  const json* value = find(key);
  if (value != nullptr) {
    if (const auto number = integer_within(*value, min, max)) {
      out = *number;
      return;
    }
  }
  refuse(key, value, fmt::format("an integer from {} to {}", min, max));
}

void JsonReader::integer(std::string_view key, int32_t& out, int64_t min, int64_t max) {
  int64_t wide = out;
  integer(key, wide, min, std::min<int64_t>(max, std::numeric_limits<int32_t>::max()));
  out = static_cast<int32_t>(wide);
}

void JsonReader::number(std::string_view key, double& out, double min, double max) {
  const json* value = find(key);
  if (value != nullptr && value->is_number()) {
    const auto number = value->get<double>();
    if (number >= min && number <= max) {
      out = number;
      return;
    }
  }
  refuse(key, value, fmt::format("a number from {} to {}", min, max));
}

void JsonReader::number(std::string_view key, float& out, double min, double max) {
  double wide = out;
  number(key, wide, min, max);
  out = static_cast<float>(wide);
}

void JsonReader::boolean(std::string_view key, bool& out) {
  const json* value = find(key);
  if (value == nullptr || !value->is_boolean()) return refuse(key, value, "true or false");
  out = value->get<bool>();
}

void JsonReader::string(std::string_view key, std::string& out) {
  const json* value = find(key);
  if (value == nullptr || !value->is_string()) return refuse(key, value, "a string");
  out = value->get<std::string>();
}

void JsonReader::integers(std::string_view key, std::vector<int64_t>& out, int64_t min, int64_t max,
                          size_t max_size) {
  const auto expected = [&] {
    return fmt::format("an array of at most {} integers from {} to {}", max_size, min, max);
  };
  const json* value = find(key);
  if (value == nullptr || !value->is_array() || value->size() > max_size) {
    return refuse(key, value, expected());
  }
  std::vector<int64_t> numbers;
  for (const json& element : *value) {
    const auto number = integer_within(element, min, max);
    if (!number) {
      return fail_at(key, fmt::format("expected {}, found {} at index {}", expected(),
                                      excerpt(element), numbers.size()));
    }
    numbers.push_back(*number);
  }
  out = std::move(numbers);
}

void JsonReader::numbers(std::string_view key, std::vector<float>& out, double min, double max,
                         size_t max_size) {
  const json* value = find(key);
  const auto within = [&](const json& element) {
    return element.is_number() && element.get<double>() >= min && element.get<double>() <= max;
  };
  if (value == nullptr || !value->is_array() || value->size() > max_size ||
      !std::all_of(value->begin(), value->end(), within)) {
    return refuse(key, value,
                  fmt::format("an array of at most {} numbers from {} to {}", max_size, min, max));
  }
  out = value->get<std::vector<float>>();
}

void JsonReader::require(std::string_view key, const json& only) {
  if (!has(key)) refuse(key, nullptr, only.dump());
  require_if_present(key, only);
}

void JsonReader::require_if_present(std::string_view key, const json& only) {
  const json* value = find(key);
  if (value == nullptr || *value == only) return;
  fail_at(key, fmt::format("only {} is implemented, found {}", only.dump(), excerpt(*value)));
}

}  // namespace tidemill
