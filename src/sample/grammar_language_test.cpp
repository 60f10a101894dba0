// Which texts the grammars of schemas, regexes and EBNF accept.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>

#include "sample/grammar_for_tests.h"
#include "sample/grammar_number.h"

namespace tidemill {
namespace {

using testing::HasSubstr;
using Kind = GrammarSpec::Kind;

GrammarSpec schema_spec(const Json& schema) { return {Kind::kJsonSchema, python_json(schema)}; }

std::string error_of(const GrammarSpec& spec) {
  const auto compiled = mini_compiler().compile(spec);
  if (compiled) return "compiles";
  EXPECT_EQ(compiled.error().code, ErrorCode::kRequest) << compiled.error().message;
  return compiled.error().message;
}

// Does the document satisfy the schema? As far as the schemas of the cases go; a judge that shares
// nothing with the grammars.
bool satisfies(const Json& document, const Json& schema, const Json& root) {
  if (schema.is_boolean()) return schema.get<bool>();
  const auto has = [&](const char* key) { return schema.contains(key); };
  const auto inside = [&](const Json& value, const Json& s) { return satisfies(value, s, root); };
  if (has("$ref")) {
    return inside(document,
                  root.at(Json::json_pointer(schema["$ref"].get<std::string>().substr(1))));
  }
  for (const char* key : {"anyOf", "oneOf", "allOf"}) {
    if (!has(key)) continue;
    const auto count = std::count_if(schema[key].begin(), schema[key].end(),
                                     [&](const Json& s) { return inside(document, s); });
    const bool is_any = std::string_view(key) == "anyOf";
    return std::string_view(key) == "allOf" ? count == static_cast<ptrdiff_t>(schema[key].size())
           : is_any                         ? count > 0
                                            : count == 1;
  }
  if (has("const") && document != schema["const"]) return false;
  if (has("enum") &&
      std::find(schema["enum"].begin(), schema["enum"].end(), document) == schema["enum"].end()) {
    return false;
  }
  if (has("type")) {
    const auto is = [&](const Json& type) {
      if (type == "integer") return document.is_number_integer() || document.is_binary();
      if (type == "number") return document.is_number();
      if (type == "array") return document.is_array();
      return type == document.type_name();
    };
    const Json types = schema["type"].is_array() ? schema["type"] : Json::array({schema["type"]});
    if (std::none_of(types.begin(), types.end(), is)) return false;
  }
  if (document.is_number()) {
    const double value = document.get<double>();
    if (has("minimum") && value < schema["minimum"].get<double>()) return false;
    if (has("maximum") && value > schema["maximum"].get<double>()) return false;
    if (has("exclusiveMinimum") && value <= schema["exclusiveMinimum"].get<double>()) return false;
    if (has("exclusiveMaximum") && value >= schema["exclusiveMaximum"].get<double>()) return false;
  }
  if (document.is_string()) {
    const std::string& text = document.get_ref<const std::string&>();
    const auto length =
        std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
    if (has("minLength") && length < schema["minLength"].get<int64_t>()) return false;
    if (has("maxLength") && length > schema["maxLength"].get<int64_t>()) return false;
    if (has("pattern") &&
        !std::regex_search(text, std::regex(schema["pattern"].get<std::string>())))
      return false;
  }
  if (document.is_array()) {
    const size_t prefix = has("prefixItems") ? schema["prefixItems"].size() : 0;
    for (size_t i = 0; i < document.size(); ++i) {
      if (i < prefix && !inside(document[i], schema["prefixItems"][i])) return false;
      if (i >= prefix && has("items") && !inside(document[i], schema["items"])) return false;
    }
    if (has("minItems") && document.size() < schema["minItems"].get<size_t>()) return false;
    if (has("maxItems") && document.size() > schema["maxItems"].get<size_t>()) return false;
  }
  if (document.is_object()) {
    for (const auto& [name, value] : document.items()) {
      if (has("properties") && schema["properties"].contains(name)) {
        if (!inside(value, schema["properties"][name])) return false;
      } else if (has("additionalProperties") && !inside(value, schema["additionalProperties"])) {
        return false;
      }
    }
    if (has("required")) {
      for (const Json& name : schema["required"]) {
        if (!document.contains(name.get<std::string>())) return false;
      }
    }
  }
  return true;
}

TEST(GrammarSchema, AcceptsAndRefusesTheTextsOfTheCases) {
  const Json cases = grammar_cases();
  ASSERT_FALSE(cases["accepted"].empty());
  for (const Json& one : cases["accepted"]) {
    SCOPED_TRACE(one["name"].get<std::string>());
    const GrammarMatcher matcher = matcher_of(schema_spec(one["schema"]));
    for (const Json& text : one["yes"]) {
      EXPECT_TRUE(matches(matcher.fork(), text.get<std::string>())) << text;
    }
    for (const Json& text : one["no"]) {
      EXPECT_FALSE(matches(matcher.fork(), text.get<std::string>())) << text;
    }
  }
}

TEST(GrammarSchema, NamesWhatItDoesNotSupport) {
  const Json cases = grammar_cases();
  ASSERT_FALSE(cases["refused"].empty());
  for (const Json& one : cases["refused"]) {
    EXPECT_THAT(error_of(schema_spec(one["schema"])), HasSubstr(one["error"].get<std::string>()))
        << one["schema"];
  }
}

TEST(GrammarSchema, DocumentsOfRandomWalksSatisfyTheSchema) {
  std::mt19937 random(7);
  int complete = 0;
  const Json cases = grammar_cases();
  for (const Json& one : cases["accepted"]) {
    SCOPED_TRACE(one["name"].get<std::string>());
    const GrammarMatcher start = matcher_of(schema_spec(one["schema"]));
    for (int i = 0; i < 20; ++i) {
      GrammarMatcher matcher = start.fork();
      const Walk walk = random_walk(matcher, random);
      if (!walk.is_complete) continue;
      ++complete;
      const auto document = parse_json(walk.text);
      ASSERT_TRUE(document) << walk.text << "\n" << document.error().message;
      EXPECT_TRUE(satisfies(*document, one["schema"], one["schema"])) << walk.text;
    }
  }
  EXPECT_GT(complete, 400);
}

TEST(GrammarSchema, AJsonObjectIsAnObject) {
  const GrammarMatcher matcher = matcher_of({Kind::kJsonObject});
  EXPECT_TRUE(matches(matcher.fork(), R"({"a": {"b": [1, "x", null]}})"));
  EXPECT_FALSE(matches(matcher.fork(), "[]"));
  EXPECT_FALSE(matches(matcher.fork(), R"({"a": 1)"));
}

// The grammar and std::regex, which reads the same dialect, on every text of up to five characters.
TEST(GrammarRegex, AgreesWithAnotherReader) {
  const std::vector<std::string> texts = [] {
    std::vector<std::string> all = {""};
    for (size_t i = 0; i < all.size() && all[i].size() < 5; ++i) {
      for (const char c : std::string_view("ab1-")) all.push_back(all[i] + c);
    }
    return all;
  }();
  for (const char* regex : {"a",
                            "",
                            "a|b",
                            "ab|",
                            "(a|b)*1",
                            "a+?b",
                            "a{2,3}",
                            "(?:ab){2}",
                            "[^a]*",
                            "[a-b1-]+",
                            "[ab]{0,2}-?",
                            "\\d+",
                            "\\w*",
                            "\\W",
                            "[\\d-]b",
                            ".",
                            "a.b",
                            "(a|ab)(b|1)?",
                            "^a*$",
                            "^(|.*)$",
                            "(a*)*b",
                            "((a|b)(1|-)){1,2}",
                            "a{2,}",
                            "a{0}b",
                            "\\x61\\u0062",
                            "[\\x61-b]",
                            "^a|b$",
                            "(?:)",
                            "[^\\w]",
                            "a{1,2}{1}"}) {
    SCOPED_TRACE(regex);
    const std::string error = error_of({Kind::kRegex, regex});
    if (error != "compiles") {
      EXPECT_THAT(error, HasSubstr("quantifier after a quantifier"));
      continue;
    }
    const GrammarMatcher matcher = matcher_of({Kind::kRegex, regex});
    const std::regex other(regex);
    for (const std::string& text : texts) {
      EXPECT_EQ(matches(matcher.fork(), text), std::regex_match(text, other)) << '"' << text << '"';
    }
  }
}

TEST(GrammarRegex, TakesUnicode) {
  const GrammarMatcher matcher = matcher_of({Kind::kRegex, "[α-ω]+\\s日{2}."});
  EXPECT_TRUE(matches(matcher.fork(), "αβγ 日日😀"));
  EXPECT_FALSE(matches(matcher.fork(), "abc 日日x"));
  EXPECT_FALSE(matches(matcher.fork(), "αβγ 日x"));
  EXPECT_TRUE(matches(matcher_of({Kind::kRegex, "\\u{1F600}"}), "😀"));
}

TEST(GrammarRegex, SaysWhereItFails) {
  const std::pair<const char*, const char*> cases[] = {
      {"(", "position 1: '(' without ')'"},
      {"ab)", "position 3: ')' without '('"},
      {"(?<=x)*", "look-behind is not supported"},
      {"(?=x)", "look-ahead is not supported"},
      {"(?i)x", "flags"},
      {"*", "position 1: nothing to repeat"},
      {"a|*", "position 3: nothing to repeat"},
      {"a**", "position 3: a quantifier after"},
      {"a{3,1}", "out of order"},
      {"a{1", "a repetition is"},
      {"a{x}", "a repetition count is a number"},
      {"a{999999999}", "above 100000"},
      {"(a{1000}){1000}", "1000000 positions"},
      {"[a", "position 1: '[' without ']'"},
      {"[z-a]", "out of order"},
      {"[\\d-z]", "out of order"},
      {"\\", "\\ at the end"},
      {"\\1", "back-references"},
      {"\\bx", "\\b is not supported"},
      {"\\p{L}", "\\p is not supported"},
      {"\\xZZ", "names no character"},
      {"\\ud800", "names no character"},
      {"a^b", "^ is supported at the beginning"},
      {"(^a)", "^ is supported at the beginning"},
      {"a$b", "$ is supported at the end"},
      {"[^\\s\\S]", "cannot be satisfied"},
      {"\xff", "position 1: invalid UTF-8"},
  };
  for (const auto& [regex, error] : cases) {
    EXPECT_THAT(error_of({Kind::kRegex, regex}), HasSubstr(error)) << regex;
  }
  EXPECT_THAT(error_of({Kind::kRegex, std::string(10000, '(')}), HasSubstr("deeper than 64"));
}

TEST(GrammarEbnf, FollowsTheRules) {
  const GrammarMatcher matcher = matcher_of({Kind::kEbnf, R"ebnf(
root ::= sum ("=" number)?   # a comment (
sum ::= number ("+" number)*
number ::= [0-9]+ | "(" sum ")"
)ebnf"});
  EXPECT_TRUE(matches(matcher.fork(), "1+(2+3)=6"));
  EXPECT_TRUE(matches(matcher.fork(), "12"));
  EXPECT_FALSE(matches(matcher.fork(), "1+"));
  EXPECT_FALSE(matches(matcher.fork(), "(1"));
}

TEST(GrammarEbnf, RefusesWhatCouldNotBeMeant) {
  const std::pair<std::string, const char*> cases[] = {
      {"", "root"},
      {"a ::= \"x\"", "root"},
      {"root ::= a", "\"a\" is not defined"},
      {"root ::= \"a", "Expect \""},
      {"root ::= (\"a\"", "line 1"},
      {"root ::= \"a\"\nb ::= Token(1)", "line 2: Token is not supported"},
      {"root ::= TagDispatch((\"a\", root))", "TagDispatch is not supported"},
      {"root ::= \"a\" (= \"b\")", "look-ahead is not supported"},
      {std::string("root ::= \"a\"\0 garbage", 21), "U+0000"},
      {"root ::= \"\xff\"", "invalid UTF-8"},
      {"root ::= " + std::string(10000, '('), "deeper than 64"},
  };
  for (const auto& [grammar, error] : cases) {
    EXPECT_THAT(error_of({Kind::kEbnf, grammar}), HasSubstr(error)) << grammar.substr(0, 80);
  }
  // In strings and classes the same characters are text.
  EXPECT_EQ(error_of({Kind::kEbnf, "root ::= \"Token((=\" [(]"}), "compiles");
}

TEST(GrammarEbnf, RefusesRulesThatNeverEnd) {
  const std::pair<const char*, const char*> cases[] = {
      {"root ::= root", "\"root\" never ends"},
      {"root ::= \"a\" root", "\"root\" never ends"},
      {"root ::= \"a\" root | root root", "\"root\" never ends"},
      {"root ::= \"x\" | b\nb ::= \"y\" b", "\"b\" never ends"},
      {"root ::= \"x\" | b\nb ::= c\nc ::= \"y\" b+", "never ends"},
      {"root ::= \"x\" | b{2,3}\nb ::= b", "never ends"},
  };
  for (const auto& [grammar, error] : cases) {
    EXPECT_THAT(error_of({Kind::kEbnf, grammar}), HasSubstr(error)) << grammar;
  }
  for (const char* ends : {"root ::= \"a\" root | \"\"", "root ::= (\"x\" root)*",
                           "root ::= root{0,3} \"x\"", "root ::= b? \"x\"\nb ::= root | \"y\"",
                           "root ::= a\na ::= b\nb ::= \"x\" a | c\nc ::= [0-9]*"}) {
    EXPECT_EQ(error_of({Kind::kEbnf, ends}), "compiles") << ends;
  }
}

TEST(GrammarNumber, IntegersBetweenAreExactlyThose) {
  for (const auto& [first, last] : {std::pair{0, 0},
                                    {0, 9},
                                    {7, 7},
                                    {3, 12},
                                    {9, 1000},
                                    {95, 105},
                                    {100, 199},
                                    {123, 456},
                                    {0, 1234}}) {
    SCOPED_TRACE(fmt::format("{} to {}", first, last));
    const GrammarMatcher matcher =
        matcher_of(schema_spec({{"type", "integer"}, {"minimum", first}, {"maximum", last}}));
    for (int value = -2; value < 1300; ++value) {
      EXPECT_EQ(matches(matcher.fork(), std::to_string(value)), first <= value && value <= last)
          << value;
    }
  }
}

}  // namespace
}  // namespace tidemill
