#include "cli/check/report.h"

#include <algorithm>

namespace tidemill::cli {

CheckReport::Property& CheckReport::find(std::string_view name) {
  for (Property& property : properties_) {
    if (property.name == name) return property;
  }
  return properties_.emplace_back(Property{.name = name, .checked = 0, .difference = {}});
}

bool CheckReport::ok() const {
  return std::all_of(properties_.begin(), properties_.end(),
                     [](const Property& property) { return property.difference.empty(); });
}

std::string CheckReport::to_text() const {
  std::string text = title_ + "\n";
  for (const Property& property : properties_) {
    text +=
        fmt::format("  {:<52}{:>12}  {}\n", property.name, property.checked,
                    property.difference.empty() ? "equal" : "DIFFERENT: " + property.difference);
  }
  for (const std::string& note : notes_) text += "  " + note + "\n";
  return text;
}

Json CheckReport::to_json() const {
  Json json;
  json["title"] = title_;
  json["properties"] = Json::array();
  for (const Property& property : properties_) {
    json["properties"].push_back(
        {{"name", property.name},
         {"checked", property.checked},
         {"difference", property.difference.empty() ? Json() : Json(property.difference)}});
  }
  json["notes"] = notes_;
  json["ok"] = ok();
  return json;
}

}  // namespace tidemill::cli
