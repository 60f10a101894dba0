// One JSON object of a request body, read field by field. Every error is kRequest and begins with
// the path of the field: "messages[2].content: ...".
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/json.h"

namespace tidemill {

// The JSON value must outlive it. A field that is null counts as absent: clients send either.
class Fields {
 public:
  // `path` of the body itself is "".
  static Result<Fields> of(const Json& value, std::string path);

  const Json* find(std::string_view key) const;  // nullptr: absent
  std::string path(std::string_view key) const;
  const std::string& path() const { return path_; }
  const Json& json() const { return *object_; }

  Result<std::optional<bool>> boolean(std::string_view key) const;
  // A float with an integral value counts: 3.0 is 3.
  Result<std::optional<int64_t>> integer(std::string_view key, int64_t low, int64_t high) const;
  Result<std::optional<double>> number(std::string_view key, double low, double high) const;
  Result<std::optional<std::string>> string(std::string_view key) const;
  Result<std::optional<Fields>> object(std::string_view key) const;
  Result<const Json*> array(std::string_view key) const;  // nullptr: absent
  Result<std::string> require_string(std::string_view key) const;

  // "PATH.KEY: expected WHAT, got TYPE".
  tl::unexpected<Error> wrong(std::string_view key, std::string_view what) const;

 private:
  Fields(const Json& object, std::string path) : object_(&object), path_(std::move(path)) {}

  const Json* object_;
  std::string path_;
};

// A field whose other values this server cannot honour.
struct FixedField {
  std::string_view name;
  std::string_view accepted;  // a JSON array; empty: none
  std::string_view advice;    // what to do instead; may be empty
};

// All that a protocol knows about the fields of one object.
struct FieldTable {
  std::span<const std::string_view> read;  // by the code, or without effect on the answer
  std::span<const FixedField> fixed;
};

// Refuses by name what is not honoured. Fields that no table knows are appended to `unknown` by
// their paths.
Status check_fields(const Fields& fields, std::span<const FieldTable> tables,
                    std::vector<std::string>& unknown);

}  // namespace tidemill
