// Typed reading of a JSON object's members. The first thing that is wrong is kept, named by its
// full key: a caller reads everything and asks once.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/result.h"

namespace tidemill {

// Strict JSON, UTF-8, at most kMaxJsonDepth containers deep. Errors: `code`, with the file's name
// and the place. A key that an object has twice is one: which of the two counts would be a guess.
inline constexpr int kMaxJsonDepth = 16;
Result<nlohmann::json> parse_document(std::string_view text, std::string_view file, ErrorCode code);

// `value` as one short line for an error message.
std::string excerpt(const nlohmann::json& value);

// A cheap view: copies share the error. The document must outlive it.
class JsonReader {
 public:
  // `root` of `file`; errors get `code`.
  JsonReader(const nlohmann::json& root, std::string file, ErrorCode code);

  bool ok() const { return !shared_->error; }
  Status status() const;

  // Is the key there, and not null?
  bool has(std::string_view key) const { return find(key) != nullptr; }
  // The member object; an empty one after an error.
  JsonReader object(std::string_view key);

  // Required members; `out` is unchanged on an error. The limits are inclusive.
  void integer(std::string_view key, int64_t& out, int64_t min, int64_t max);
  void integer(std::string_view key, int32_t& out, int64_t min, int64_t max);
  void number(std::string_view key, double& out, double min, double max);
  void number(std::string_view key, float& out, double min, double max);
  void boolean(std::string_view key, bool& out);
  void string(std::string_view key, std::string& out);
  // At most max_size elements, each within the limits.
  void integers(std::string_view key, std::vector<int64_t>& out, int64_t min, int64_t max,
                size_t max_size);
  void numbers(std::string_view key, std::vector<float>& out, double min, double max,
               size_t max_size);

  // The only value that is implemented, for a member that must be there / that may be absent.
  void require(std::string_view key, const nlohmann::json& only);
  void require_if_present(std::string_view key, const nlohmann::json& only);

  void fail_at(std::string_view key, std::string_view text);

 private:
  struct Shared {
    std::string file;
    ErrorCode code;
    std::optional<Error> error;
  };
  JsonReader(const nlohmann::json& object, std::string path, std::shared_ptr<Shared> shared);

  const nlohmann::json* find(std::string_view key) const;
  // Notes that the member, null if missing, is not what was expected.
  void refuse(std::string_view key, const nlohmann::json* value, std::string_view expected);

  const nlohmann::json* object_;
  std::string path_;  // "text_config." inside a member object
  std::shared_ptr<Shared> shared_;
};

}  // namespace tidemill
