// Constraints through the public engine, on the bundled model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <regex>

#include "engine/engine_for_tests.h"
#include "text/json.h"

namespace tidemill {
namespace {

using testing::HasSubstr;
using Kind = Constraint::Kind;
using std::chrono::milliseconds;

const char* const kSchema =
    R"({"type": "object", "properties": {"name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 1, "maximum": 120},
        "tags": {"type": "array", "maxItems": 3, "items": {"enum": ["a", "ü", "long one"]}}},
        "required": ["name", "age", "tags"], "additionalProperties": false})";
const char* const kPhrase = "[a-z]{3,8}( [a-z]{3,8}){2}\\.";
const char* const kTools =
    R"([{"name": "now", "parameters": {"type": "object", "properties": {
        "zone": {"enum": ["UTC", "CET"]}}, "required": ["zone"], "additionalProperties": false}}])";

std::vector<Request> structured_requests(const Engine& engine) {
  std::vector<Request> requests{
      constrained(engine, Kind::kJsonSchema, kSchema), constrained(engine, Kind::kRegex, kPhrase),
      constrained(engine, Kind::kEbnf, "root ::= (\"yes\" | \"no\") \", \" [0-9]{2,4}"),
      constrained(engine, Kind::kJsonObject, "", 60)};
  requests.push_back(constrained(engine, Kind::kToolCalls, kTools));
  requests.back().constraint->choice = Constraint::Choice::kRequired;
  requests.back().constraint->strict = true;
  requests.back().constraint->parallel = false;
  // Some reasoning, then the phrase.
  requests.push_back(constrained(engine, Kind::kRegex, kPhrase));
  requests.back().start = AnswerStart::kReasoning;
  requests.push_back(constrained(engine, Kind::kRegex, "[a-z]{4,9}STOP[0-9]{3}"));
  requests.back().stop = {"STOP"};
  return requests;
}

// Two stop strings for the request that reasons, `letter` being one of its reasoning's. How soon a
// model ends that is its own affair: the least bias of </think> with which it does leaves some.
void stop_reasoning_at_a_letter(Engine& engine, Request& request, std::string& letter) {
  int32_t end = 0;
  while (end < engine.info().vocabulary && engine.decode(std::span(&end, 1)) != "</think>") ++end;
  for (float bias = -20; bias <= 100 && letter.empty(); bias += 2) {
    request.sampling.logit_bias = {{end, bias}};
    const std::string text = answer(engine, request).text;
    const size_t reasoning = text.find("</think>");
    const size_t at = text.find_first_of("abcdefghijklmnopqrstuvwxyz");
    if (reasoning != std::string::npos && at < reasoning) letter = text.substr(at, 1);
  }
  ASSERT_NE(letter, "") << "no reasoning that ends";
  request.stop = {".", letter};
}

void expect_structure(const std::vector<Heard>& heard, const std::string& letter) {
  for (const Heard& one : heard) {
    EXPECT_EQ(one.error.message, "");
    const bool may_be_cut = &one == &heard[3];
    EXPECT_TRUE(may_be_cut || one.finish == FinishReason::kStop) << one.text;
  }
  const auto person = parse_json(heard[0].text);
  ASSERT_TRUE(person) << heard[0].text;
  EXPECT_EQ(person->size(), 3u);
  EXPECT_TRUE((*person)["name"].is_string());
  EXPECT_GE((*person)["age"].get<int>(), 1);
  EXPECT_LE((*person)["tags"].size(), 3u);
  EXPECT_TRUE(std::regex_match(heard[1].text, std::regex(kPhrase))) << heard[1].text;
  EXPECT_TRUE(std::regex_match(heard[2].text, std::regex("(yes|no), [0-9]{2,4}")));
  if (heard[3].finish == FinishReason::kStop) {
    EXPECT_TRUE(parse_json(heard[3].text)->is_object());
  } else {
    EXPECT_TRUE(heard[3].text.starts_with("{")) << heard[3].text;
  }
  EXPECT_THAT(heard[4].text, HasSubstr("invoke name=\"now\""));
  EXPECT_THAT(heard[4].text, testing::AnyOf(HasSubstr("UTC"), HasSubstr("CET")));
  const size_t end = heard[5].text.find("</think>");
  ASSERT_NE(end, std::string::npos) << heard[5].text;
  // In the reasoning stop strings do not count.
  EXPECT_NE(heard[5].text.substr(0, end).find(letter), std::string::npos) << heard[5].text;
  // The letter ends it within the phrase, or the phrase has none and ends with the ".".
  const std::string phrase = heard[5].text.substr(end + std::string("</think>").size());
  EXPECT_TRUE(std::regex_match(phrase, std::regex("[a-z ]*"))) << phrase;
  EXPECT_EQ(phrase.find_first_of("." + letter), std::string::npos);
  EXPECT_TRUE(std::regex_match(heard[6].text, std::regex("[a-z]{4,9}"))) << heard[6].text;
}

TEST(EngineApi, StructuredOutputIsTheSameWithDrafts) {
  std::vector<std::vector<int32_t>> plain;
  std::string letter;
  Request reasons;
  for (const char* drafts : {"off", "fixed:3", "dynamic"}) {
    SCOPED_TRACE(drafts);
    Options options = small_options();
    options.drafts = drafts;
    const auto engine = open(options);
    auto requests = structured_requests(*engine);
    if (plain.empty()) {
      stop_reasoning_at_a_letter(*engine, requests[5], letter);
      reasons = requests[5];
    }
    requests[5] = reasons;
    Listener listener(*engine);
    std::vector<RequestId> ids;
    for (Request& request : requests) ids.push_back(submit(*engine, std::move(request)));
    listener.wait_for(ids.size());
    std::vector<Heard> heard;
    std::vector<std::vector<int32_t>> tokens;
    int64_t drafted = 0;
    for (const RequestId id : ids) {
      heard.push_back(listener.of(id));
      tokens.push_back(heard.back().tokens);
      for (const int64_t count : heard.back().usage.drafted) drafted += count;
    }
    expect_structure(heard, letter);
    if (plain.empty()) plain = tokens;
    EXPECT_EQ(tokens, plain);
    if (std::string_view(drafts) != "dynamic") {  // which drafts where it pays
      EXPECT_EQ(drafted > 0, std::string_view(drafts) != "off");
    }
  }
}

TEST(EngineApi, AConstraintThatCannotBeMetRefusesItsRequestOnly) {
  Options options = small_options();
  options.grammar_compile_ms = 300;
  const auto engine = open(options);
  std::vector<std::vector<int32_t>> expected;
  for (int i = 0; i < 3; ++i) {
    expected.push_back(answer(*engine, ask(*engine, prompt_of(i))).tokens);
  }
  engine->clear_cache();

  std::string deep(20'000, '[');
  deep.append(20'000, ']');
  std::string deep_schema;
  for (int i = 0; i < 2000; ++i) deep_schema += R"({"items": )";
  deep_schema += "{}" + std::string(2000, '}');
  const std::vector<std::pair<Kind, std::string>> bad{
      {Kind::kJsonSchema, R"({"type": "integer", "minimum": 2, "maximum": 1})"},
      {Kind::kJsonSchema, R"({"enum": []})"},
      {Kind::kJsonSchema, R"({"description": ")" + std::string(5 << 20, 'x') + "\"}"},
      {Kind::kJsonSchema, deep},
      {Kind::kJsonSchema, deep_schema},
      {Kind::kJsonSchema, "{"},
      {Kind::kJsonSchema, ""},
      {Kind::kJsonSchema, "\xff\xfe"},
      {Kind::kRegex, kSlowRegex},
      {Kind::kRegex, "((a{1,1000}){1,1000}){1,1000}"},
      {Kind::kRegex, std::string(5000, '(') + std::string(5000, ')')},
      {Kind::kRegex, "[z-a]"},
      {Kind::kRegex, "(?<=a)b"},
      {Kind::kEbnf, "root ::= root"},
      {Kind::kEbnf, "leaf ::= \"a\""},
      {Kind::kEbnf, ""},
      {Kind::kToolCalls, "[]"},
      {Kind::kToolCalls, "{"},
  };
  Listener listener(*engine);
  std::vector<RequestId> plain;
  std::vector<RequestId> refused;
  size_t at_once = 0;
  for (size_t i = 0; i < bad.size(); ++i) {
    if (i % 6 == 0)
      plain.push_back(submit(*engine, ask(*engine, prompt_of(static_cast<int>(i / 6)))));
    Request request = constrained(*engine, bad[i].first, bad[i].second);
    request.n = 1 + static_cast<int64_t>(i % 2);
    const auto id = engine->submit(std::move(request));
    if (id) {
      refused.push_back(*id);
    } else {
      EXPECT_EQ(id.error().code, ErrorCode::kRequest) << id.error().message;
      ++at_once;
    }
  }
  ASSERT_EQ(refused.size() + at_once, bad.size());
  listener.wait_for(plain.size() + refused.size());
  for (const RequestId id : refused) {
    for (size_t k = 0; k < listener.choices(id); ++k) {
      const Heard& heard = listener.of(id, static_cast<int64_t>(k));
      // That a rule never ends is found when its first token is due.
      EXPECT_TRUE(heard.finish == FinishReason::kRefused || heard.finish == FinishReason::kError);
      EXPECT_TRUE(heard.tokens.empty());
      EXPECT_TRUE(heard.error.code == ErrorCode::kRequest ||
                  heard.error.code == ErrorCode::kDeadline)
          << heard.error.message;
      EXPECT_FALSE(heard.error.message.empty());
      EXPECT_LT(heard.error.message.size(), 1000u);
    }
  }
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_EQ(listener.of(plain[i]).tokens, expected[i]);
}

TEST(EngineApi, ASlowCompileHoldsUpNobody) {
  Options options = small_options();
  options.grammar_compile_ms = 60'000;
  const auto engine = open(options);
  const Clock::time_point begin = Clock::now();
  Request slow = constrained(*engine, Kind::kRegex, kSlowRegex);
  slow.timeout_ms = 500;
  Listener listener(*engine);
  const RequestId timed = submit(*engine, slow);
  slow.timeout_ms = std::numeric_limits<double>::infinity();
  slow.constraint->text += "y";
  const RequestId cancelled = submit(*engine, slow);
  EXPECT_EQ(engine->stats().grammars_compiling, 2);
  EXPECT_TRUE(engine->cancel(cancelled));
  EXPECT_EQ(engine->stats().grammars_compiling, 1);
  Request two = ask(*engine, prompt_of(1), 2);
  two.ignore_end = true;
  const RequestId plain = submit(*engine, std::move(two));
  listener.wait_for(3);
  EXPECT_EQ(listener.of(cancelled).finish, FinishReason::kCancelled);
  EXPECT_EQ(listener.of(plain).tokens.size(), 2u);
  EXPECT_EQ(listener.of(timed).finish, FinishReason::kRefused);
  EXPECT_EQ(listener.of(timed).error.code, ErrorCode::kDeadline);
  EXPECT_EQ(engine->stats().grammars_compiling, 0);
  // The compile has ended too, not only its request.
  EXPECT_EQ(answer(*engine, constrained(*engine, Kind::kRegex, "[ab]{4}")).text.size(), 4u);
  EXPECT_LT(seconds_since(begin), 30.0);
}

}  // namespace
}  // namespace tidemill
