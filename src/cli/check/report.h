// What a check found: properties with counts, and the first difference of each.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "text/json.h"

namespace tidemill::cli {

class CheckReport {
 public:
  struct Property {
    std::string_view name;
    int64_t checked = 0;     // comparisons
    std::string difference;  // the first one; empty: none
  };

  explicit CheckReport(std::string title) : title_(std::move(title)) {}

  // One comparison of the property called `name`, a literal; `describe()` gives the text of a
  // difference and is called for the first one only.
  template <typename Describe>
  void expect(std::string_view name, bool equal, Describe&& describe) {
    Property& property = find(name);
    ++property.checked;
    if (!equal && property.difference.empty()) property.difference = describe();
  }
  // A line that states and judges nothing.
  void note(std::string line) { notes_.push_back(std::move(line)); }

  bool ok() const;
  const std::vector<Property>& properties() const { return properties_; }
  // One line per property, then the notes.
  std::string to_text() const;
  Json to_json() const;

 private:
  Property& find(std::string_view name);

  std::string title_;
  std::vector<Property> properties_;
  std::vector<std::string> notes_;
};

}  // namespace tidemill::cli
