// The cases of tests/cases/serve/NAME.json: [{"name", "body", "expect": {..} or "error": ".."}].
// A case without "messages" and "prompt" in its body gets those of `usual`.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>

#include "text/json.h"

namespace tidemill {

inline Json read_cases(const std::string& name) {
  std::ifstream file(std::string(TIDEMILL_SOURCE_DIR) + "/tests/cases/serve/" + name);
  std::stringstream text;
  text << file.rdbuf();
  const Result<Json> cases = parse_json(text.str());
  EXPECT_TRUE(cases) << name << ": " << (cases ? "" : cases.error().message);
  return cases ? *cases : Json::array();
}

// `run` maps a body to Result<Json>, the description of what was read.
template <typename Run>
void check_cases(const std::string& name, const Json& usual, const Run& run) {
  const Json cases = read_cases(name);
  EXPECT_FALSE(cases.empty());
  for (const Json& test : cases) {
    SCOPED_TRACE(name + ": " + test.at("name").get<std::string>());
    Json body = test.at("body");
    if (body.is_object()) {
      for (const auto& [key, value] : usual.items()) {
        if (!body.contains(key)) body[key] = value;
      }
    }
    const Result<Json> got = run(body);
    if (test.contains("error")) {
      ASSERT_FALSE(got) << got->dump();
      EXPECT_EQ(got.error().message, test["error"].get<std::string>());
    } else {
      ASSERT_TRUE(got) << got.error().message;
      // Key order is of no importance here.
      EXPECT_EQ(nlohmann::json::parse(got->dump()), nlohmann::json::parse(test["expect"].dump()))
          << "got " << got->dump();
    }
  }
}

}  // namespace tidemill
