// Outputs of a model, good and bad, for tests of what is made of them.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

namespace tidemill {

inline std::string parameter(const std::string& name, bool is_string, const std::string& value) {
  return "<｜DSML｜ parameter name=\"" + name + "\" string=\"" + (is_string ? "true" : "false") +
         "\">" + value + "</｜DSML｜ parameter>";
}

inline std::string invoke(const std::string& name, const std::string& parameters) {
  return "<｜DSML｜ invoke name=\"" + name + "\">\n" + parameters + "\n</｜DSML｜ invoke>";
}

inline std::string calls(const std::vector<std::string>& invokes) {
  std::string text = "\n\n<｜DSML｜ calls>\n";
  for (const std::string& one : invokes) text += one + "\n";
  return text + "</｜DSML｜ calls>";
}

inline std::vector<std::string> pieces_of(const std::string& text, size_t size) {
  std::vector<std::string> pieces;
  for (size_t at = 0; at < text.size(); at += size) pieces.push_back(text.substr(at, size));
  return pieces;
}

// Answers of a thinking model with the tools f and g. Those after the first `good` ones are cut
// short or malformed.
inline std::vector<std::string> sample_outputs() {
  const std::string city = parameter("city", true, "S\xC3\xA3o \"Paulo\"\n\xF0\x9F\x8C\x8A");
  const std::string days = parameter("days", false, "[1, {\"a\": null}]");
  std::vector<std::string> outputs = {
      "Hm.</think>Hello \xE2\x80\xA6 \xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x94\xA7!",
      "</think>",
      "Only reasoning, cut short",
      std::string("R\n\n</think>\n\n") + calls({invoke("f", city + "\n" + days)}),
      std::string("R</think>Text first.") +
          calls({invoke("f", city), invoke("g", ""), invoke("f", days)}),
      std::string("R") + calls({invoke("g", "")}),
      "R</think>The tag <｜DSM in prose, and 2 <",
      "R</think>a</think>b",
      std::string("R</think>") +
          calls({invoke("f", parameter("arguments", false, "{\"city\": \"X\"}"))}),
      std::string("R</think>") + calls({invoke("f\nx", city)}),
      std::string("R</think>") + calls({"<｜DSML｜ invoke name=\"f\">junk" + city}),
      "R</think>bytes \xff\xfe and \xE2\x82",
  };
  // Every cut of one of them.
  const std::string whole = outputs[3];
  for (size_t size = 0; size < whole.size(); size += 7) outputs.push_back(whole.substr(0, size));
  return outputs;
}

}  // namespace tidemill
