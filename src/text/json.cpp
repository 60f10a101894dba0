#include "text/json.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tidemill {
namespace {

// ordered_map looks every key up by a linear search on insertion, so a large object would cost
// quadratic time. Objects are filled without a search; this then removes repeated keys.
void merge_repeated_keys(Json::object_t& object) {
  if (object.size() < 2) return;
  std::unordered_map<std::string_view, Json*> first;
  first.reserve(object.size());
  for (auto& [key, value] : object) {
    const auto [place, is_new] = first.try_emplace(key, &value);
    if (!is_new) *place->second = std::move(value);
  }
  if (first.size() == object.size()) return;

  Json::object_t merged;
  merged.reserve(first.size());
  for (auto& [key, value] : object) {
    if (first.at(key) == &value) merged.emplace_back(key, std::move(value));
  }
  object = std::move(merged);
}

// Receives the events of nlohmann's SAX parser. Returning false ends the parse.
class Builder : public nlohmann::json_sax<Json> {
 public:
  Result<Json> take() {
    if (error_) return tl::unexpected<Error>(std::move(*error_));
    return std::move(root_);
  }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(int64_t value) override { return add(value); }
  bool number_unsigned(uint64_t value) override { return add(value); }
  bool number_float(double value, const std::string& text) override {
    const bool is_integer = text.find_first_of(".eE") == std::string::npos;
    if (!is_integer) return add(value);
    return add(Json::binary(std::vector<uint8_t>(text.begin(), text.end())));
  }
  bool string(std::string& value) override { return add(std::move(value)); }
  bool binary(Json::binary_t&) override { return false; }  // JSON text has none

  bool start_object(size_t) override { return open(Json::object()); }
  bool start_array(size_t) override { return open(Json::array()); }
  bool end_array() override { return close(); }
  bool end_object() override {
    merge_repeated_keys(open_.back().value.get_ref<Json::object_t&>());
    return close();
  }
  bool key(std::string& value) override {
    open_.back().key = std::move(value);
    return true;
  }

  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception& problem) override {
    // The library's own text quotes the input, which may be long and not UTF-8.
    constexpr int kOutOfRange = 406;
    error_ = Error{ErrorCode::kRequest,
                   fmt::format("{} near byte {}",
                               problem.id == kOutOfRange ? "number beyond the range of a double"
                                                         : "malformed JSON",
                               position)};
    return false;
  }

 private:
  struct Container {
    Json value;
    std::string key;  // of the member that is being read
  };

  bool open(Json container) {
    if (open_.size() == static_cast<size_t>(kMaxJsonDepth)) {
      error_ = Error{ErrorCode::kRequest,
                     fmt::format("JSON is nested deeper than {} levels", kMaxJsonDepth)};
      return false;
    }
    open_.push_back({std::move(container), {}});
    return true;
  }

  bool close() {
    Json finished = std::move(open_.back().value);
    open_.pop_back();
    return add(std::move(finished));
  }

  bool add(Json value) {
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (Container& parent = open_.back(); parent.value.is_array()) {
      parent.value.get_ref<Json::array_t&>().push_back(std::move(value));
    } else {
      parent.value.get_ref<Json::object_t&>().emplace_back(std::move(parent.key), std::move(value));
    }
    return true;
  }

  Json root_;
  std::vector<Container> open_;  // innermost last
  std::optional<Error> error_;
};

}  // namespace

Result<Json> parse_json(std::string_view text) {
  Builder builder;
  Json::sax_parse(text, &builder);
  return builder.take();
}

bool is_deeper_than(const Json& value, int depth) {
  if (!value.is_structured()) return false;
  if (depth == 0) return true;
  for (const Json& element : value) {
    if (is_deeper_than(element, depth - 1)) return true;
  }
  return false;
}

}  // namespace tidemill
