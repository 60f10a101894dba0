// Masks, matchers, tool calls, limits and the cache.
#include "sample/grammar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <thread>

#include "sample/grammar_for_tests.h"
#include "text/output_parser.h"

namespace tidemill {
namespace {

using testing::HasSubstr;
using Kind = GrammarSpec::Kind;
using Start = Prompt::Start;

constexpr int64_t kMegabyte = 1 << 20;

int32_t think_end() { return *mini_tokenizer()->added_token(special::kThinkEnd); }
int32_t marker() { return *mini_tokenizer()->added_token(special::kDsml); }
int32_t stop() { return stop_token(*mini_tokenizer()); }
std::vector<int32_t> encode(std::string_view text) { return mini_tokenizer()->encode(text); }

GrammarSpec schema(std::string text) { return {Kind::kJsonSchema, std::move(text)}; }

const char* const kPerson =
    R"({"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"enum": ["a", "ü", "long one"]}}},
        "required": ["name", "age"]})";

Tool tool(std::string name, std::string_view parameters) {
  return {std::move(name), "", *parse_json(parameters)};
}

std::vector<Tool> tools() {
  return {tool("get_weather", R"({"type": "object", "properties": {
                  "city": {"type": "string"},
                  "days": {"type": "integer", "minimum": 1, "maximum": 14},
                  "unit": {"enum": ["c", "f", null]},
                  "near": {"anyOf": [{"type": "string"}, {"type": "null"},
                                     {"type": "array", "items": {"type": "string"}}]},
                  "code": {"type": "string", "pattern": "^[A-Z<]{3}$"}},
                  "required": ["city", "days"], "additionalProperties": false})"),
          tool("now", "{}")};
}

GrammarSpec calls(ToolChoice choice, bool strict, std::vector<Tool> of = tools()) {
  return {.kind = Kind::kToolCalls, .tools = std::move(of), .choice = choice, .strict = strict};
}

// The answer's text with the markers' spelling.
bool accept_markup(GrammarMatcher& matcher, std::string_view text) {
  for (const int32_t token : mini_tokenizer()->encode_with_added_tokens(text)) {
    if (!matcher.accept(token)) return false;
  }
  return true;
}

struct Call {
  std::string name;
  std::string arguments;
};

std::vector<Call> read_calls(std::string_view text, Start start = Start::kContent) {
  OutputParser parser({.start = start, .tools_declared = true});
  std::vector<Call> calls;
  std::vector<OutputDelta> deltas = parser.push(text);
  for (const OutputDelta& delta : parser.finish()) deltas.push_back(delta);
  for (const OutputDelta& delta : deltas) {
    if (delta.kind == OutputDelta::Kind::kToolCallBegin) calls.push_back({delta.text, ""});
    if (delta.kind == OutputDelta::Kind::kToolCallArguments) calls.back().arguments += delta.text;
  }
  EXPECT_FALSE(parser.tool_call_open());
  return calls;
}

// --- masks

TEST(GrammarMatcher, TheMaskHoldsWhatAcceptTakes) {
  std::mt19937 random(3);
  for (const GrammarSpec& spec :
       {schema(kPerson), GrammarSpec{Kind::kJsonObject},
        GrammarSpec{Kind::kRegex, "([a-z]{2} ?)+!"}, calls(ToolChoice::kRequired, true),
        calls(ToolChoice::kAuto, false)}) {
    GrammarMatcher matcher = matcher_of(spec);
    for (int step = 0; step < 40 && !matcher.is_terminated(); ++step) {
      const std::vector<uint32_t> mask = mask_of(matcher);
      std::vector<int32_t> taken;
      for (int32_t token = 0; token < mini_tokenizer()->size(); ++token) {
        const bool accepted = matcher.accept(token);
        ASSERT_EQ(accepted, allows(mask, token))
            << mini_tokenizer()->bytes(token) << ", step " << step << " of " << spec.text;
        if (!accepted) continue;
        taken.push_back(token);
        matcher.rollback(1);
      }
      ASSERT_FALSE(taken.empty());
      ASSERT_EQ(mask, mask_of(matcher));
      ASSERT_TRUE(matcher.accept(taken[random() % taken.size()]));
    }
  }
}

TEST(GrammarMatcher, AfterARollbackNothingHasHappened) {
  std::mt19937 random(11);
  for (const Start start : {Start::kReasoning, Start::kContent}) {
    for (const GrammarSpec& spec :
         {schema(kPerson), calls(ToolChoice::kAuto, true), calls(ToolChoice::kRequired, true)}) {
      GrammarMatcher plain = matcher_of(spec, start);
      GrammarMatcher drafted = plain.fork();
      Walk walk;
      {
        GrammarMatcher scout = plain.fork();
        if (start == Start::kReasoning) {
          for (const int32_t token : encode("Let me <think/ think")) {
            ASSERT_TRUE(scout.accept(token));
            walk.tokens.push_back(token);
          }
          ASSERT_TRUE(scout.accept(think_end()));
          walk.tokens.push_back(think_end());
        }
        for (const int32_t token : random_walk(scout, random, 80).tokens) {
          walk.tokens.push_back(token);
        }
      }
      // Before each token: up to six drafts that come to nothing.
      for (const int32_t token : walk.tokens) {
        GrammarMatcher scout = drafted.fork();
        const Walk drafts = random_walk(scout, random, 1 + random() % 6);
        for (const int32_t draft : drafts.tokens) ASSERT_TRUE(drafted.accept(draft));
        drafted.rollback(static_cast<int64_t>(drafts.tokens.size()));
        ASSERT_EQ(mask_of(drafted), mask_of(plain));
        ASSERT_EQ(drafted.is_constrained(), plain.is_constrained());
        ASSERT_TRUE(plain.accept(token));
        ASSERT_TRUE(drafted.accept(token));
      }
      // And all the way back.
      GrammarMatcher fresh = matcher_of(spec, start);
      drafted.rollback(drafted.accepted());
      EXPECT_EQ(mask_of(drafted), mask_of(fresh));
    }
  }
}

TEST(GrammarMatcher, AForkGoesOnByItself) {
  GrammarMatcher matcher = matcher_of(schema(kPerson));
  ASSERT_TRUE(accept_text(matcher, R"({"name": "Ann)"));
  const std::vector<uint32_t> before = mask_of(matcher);
  GrammarMatcher other = matcher.fork();
  EXPECT_TRUE(matches(std::move(other), R"(a", "age": 3})"));
  EXPECT_EQ(mask_of(matcher), before);
  EXPECT_TRUE(matches(std::move(matcher), R"(", "age": 30, "tags": ["ü"]})"));
}

TEST(GrammarMatcher, NothingFollowsAStopToken) {
  GrammarMatcher matcher = matcher_of({Kind::kRegex, "a+"});
  EXPECT_FALSE(matcher.accept(stop()));
  ASSERT_TRUE(matcher.accept(encode("a")[0]));
  EXPECT_TRUE(allows(mask_of(matcher), stop()));
  ASSERT_TRUE(matcher.accept(stop()));
  EXPECT_TRUE(matcher.is_terminated());
  EXPECT_FALSE(matcher.accept(encode("a")[0]));
  EXPECT_FALSE(matcher.accept(stop()));
  for (const uint32_t word : mask_of(matcher)) EXPECT_EQ(word, 0u);
  matcher.rollback(1);
  EXPECT_FALSE(matcher.is_terminated());
  EXPECT_TRUE(matcher.accept(encode("a")[0]));
}

TEST(GrammarMatcher, TakesNoIdsFromOutside) {
  GrammarMatcher matcher = matcher_of({Kind::kRegex, ".*"});
  for (const int32_t token : {-1, mini_tokenizer()->size(), std::numeric_limits<int32_t>::max(),
                              std::numeric_limits<int32_t>::min()}) {
    EXPECT_FALSE(matcher.accept(token));
  }
  // Special tokens are no text, whatever they spell.
  EXPECT_FALSE(matcher.accept(marker()));
  EXPECT_FALSE(matcher.accept(think_end()));
}

TEST(GrammarMatcher, AppliesToLogits) {
  GrammarMatcher matcher = matcher_of({Kind::kRegex, "a"});
  const auto width = static_cast<size_t>(mini_tokenizer()->size());
  std::vector<float> logits(width, 1.5f);
  const std::vector<uint32_t> mask = mask_of(matcher);
  apply_mask(mask, logits);
  for (size_t token = 0; token < width; ++token) {
    const bool is_allowed = allows(mask, static_cast<int32_t>(token));
    EXPECT_EQ(logits[token], is_allowed ? 1.5f : -std::numeric_limits<float>::infinity());
  }
}

TEST(GrammarMatcher, MasksTheRowsOfDrafts) {
  GrammarMatcher matcher = matcher_of(schema(kPerson));
  const auto width = static_cast<size_t>(mini_tokenizer()->size());
  std::vector<uint32_t> mask(static_cast<size_t>(mini_compiler().vocabulary().mask_words()));
  const std::vector<uint32_t> before = mask_of(matcher);

  std::vector<int32_t> drafts = encode(R"({"name": "x", "age": 1})");
  drafts.push_back(stop());
  drafts.push_back(stop());
  std::vector<float> logits((drafts.size() + 1) * width, 0.0f);
  auto rows = mask_rows(matcher, drafts, logits, mask);
  ASSERT_TRUE(rows);
  // All but the row behind the first stop token.
  EXPECT_EQ(*rows, static_cast<int64_t>(drafts.size()) - 1);
  EXPECT_EQ(matcher.accepted(), 0);
  EXPECT_EQ(mask_of(matcher), before);
  GrammarMatcher step = matcher.fork();
  for (size_t row = 0; row < static_cast<size_t>(*rows); ++row) {
    const std::vector<uint32_t> expected = mask_of(step);
    for (size_t token = 0; token < width; ++token) {
      ASSERT_EQ(std::isinf(logits[row * width + token]),
                !allows(expected, static_cast<int32_t>(token)));
    }
    ASSERT_TRUE(step.accept(drafts[row]));
  }

  // A draft that may not follow is masked in the row that it is compared with.
  drafts = encode("{\"name");
  const size_t good = drafts.size();
  drafts.push_back(encode("!")[0]);
  drafts.push_back(encode("x")[0]);
  logits.assign((drafts.size() + 1) * width, 0.0f);
  rows = mask_rows(matcher, drafts, logits, mask);
  ASSERT_TRUE(rows);
  EXPECT_EQ(*rows, static_cast<int64_t>(good) + 1);
  EXPECT_TRUE(std::isinf(logits[good * width + static_cast<size_t>(drafts[good])]));
  EXPECT_EQ(logits[(good + 1) * width], 0.0f);
}

// --- reasoning

TEST(GrammarMatcher, HoldsFromTheFirstByteAfterTheReasoning) {
  GrammarMatcher matcher = matcher_of(schema(kPerson), Start::kReasoning);
  EXPECT_FALSE(matcher.is_constrained());
  std::vector<uint32_t> mask = mask_of(matcher);
  EXPECT_TRUE(allows(mask, encode("Well")[0]));
  EXPECT_TRUE(allows(mask, think_end()));
  EXPECT_FALSE(allows(mask, stop()));
  EXPECT_FALSE(allows(mask, marker()));
  EXPECT_FALSE(matcher.accept(stop()));
  EXPECT_FALSE(matcher.accept(marker()));
  ASSERT_TRUE(accept_text(matcher, "Well, {\"name\": is not yet JSON.\n\n"));
  ASSERT_TRUE(matcher.accept(think_end()));
  EXPECT_TRUE(matcher.is_constrained());
  mask = mask_of(matcher);
  for (int32_t token = 0; token < mini_tokenizer()->size(); ++token) {
    EXPECT_TRUE(!allows(mask, token) || mini_tokenizer()->bytes(token).starts_with('{'));
  }
  EXPECT_TRUE(matches(std::move(matcher), R"({"name": "x", "age": 1})"));
}

// The reader of the output takes these texts for the markers, so ordinary tokens must not spell
// them.
TEST(GrammarMatcher, FreeTextDoesNotSpellMarkers) {
  for (const auto& [spec, start, text] :
       {std::tuple{schema(kPerson), Start::kReasoning, "a </think"},
        std::tuple{calls(ToolChoice::kAuto, true), Start::kContent, "a <<｜DSML"}}) {
    GrammarMatcher matcher = matcher_of(spec, start);
    ASSERT_TRUE(accept_text(matcher, text));
    const std::vector<uint32_t> mask = mask_of(matcher);
    const std::string_view last = start == Start::kReasoning ? ">" : "｜";
    // Bytes of the marker's end, token by token where the vocabulary has no longer ones.
    const std::vector<int32_t> end = encode(last);
    GrammarMatcher spelled = matcher.fork();
    size_t taken = 0;
    while (taken < end.size() && spelled.accept(end[taken])) ++taken;
    EXPECT_LT(taken, end.size());
    for (int32_t token = 0; token < mini_tokenizer()->size(); ++token) {
      const bool is_added = mini_tokenizer()->added_token(mini_tokenizer()->raw(token)) == token;
      if (is_added || token == stop()) continue;
      EXPECT_EQ(allows(mask, token), !mini_tokenizer()->bytes(token).starts_with(last));
    }
    EXPECT_TRUE(accept_text(matcher, "x"));
  }
}

// --- tool calls

TEST(GrammarTools, StrictCallsAreReadBack) {
  const GrammarMatcher start = matcher_of(calls(ToolChoice::kRequired, true));
  const std::string text =
      "\n\n<｜DSML｜ calls>\n"
      "<｜DSML｜ invoke name=\"get_weather\">\n"
      "<｜DSML｜ parameter name=\"city\" string=\"true\">São \"Paulo\" </ <｜ \n2 < 3</｜DSML｜ "
      "parameter>\n"
      "<｜DSML｜ parameter name=\"days\" string=\"false\">14</｜DSML｜ parameter>\n"
      "<｜DSML｜ parameter name=\"unit\" string=\"false\">null</｜DSML｜ parameter>\n"
      "<｜DSML｜ parameter name=\"near\" string=\"false\">[\"a\", \"b\"]</｜DSML｜ parameter>\n"
      "<｜DSML｜ parameter name=\"code\" string=\"true\">A<B</｜DSML｜ parameter>\n"
      "</｜DSML｜ invoke>\n"
      "<｜DSML｜ invoke name=\"now\">\n\n</｜DSML｜ invoke>\n"
      "</｜DSML｜ calls>";
  GrammarMatcher matcher = start.fork();
  ASSERT_TRUE(accept_markup(matcher, text));
  EXPECT_TRUE(matcher.accept(stop()));
  const std::vector<Call> read = read_calls(text);
  ASSERT_EQ(read.size(), 2u);
  EXPECT_EQ(parse_json(read[0].arguments).value(),
            parse_json(R"({"city": "São \"Paulo\" </ <｜ \n2 < 3", "days": 14, "unit": null,
                           "near": ["a", "b"], "code": "A<B"})")
                .value());
  EXPECT_EQ(read[1].name, "now");

  const std::string head = "\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"get_weather\">\n";
  const std::string city =
      "<｜DSML｜ parameter name=\"city\" string=\"true\">Rome</｜DSML｜ parameter>\n";
  for (const std::string& bad :
       {std::string("Hello"), std::string("\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"other\">"),
        head + "<｜DSML｜ parameter name=\"days\"", head + "</｜DSML｜ invoke>",
        head + "<｜DSML｜ parameter name=\"city\" string=\"false\">",
        head + city + "<｜DSML｜ parameter name=\"days\" string=\"false\">15",
        head + city + "<｜DSML｜ parameter name=\"days\" string=\"true\">",
        head + city + "</｜DSML｜ invoke>"}) {
    GrammarMatcher other = start.fork();
    EXPECT_FALSE(accept_markup(other, bad)) << bad;
  }
  // The markers in ordinary tokens are not markers, and cannot end a value.
  GrammarMatcher plain = start.fork();
  EXPECT_FALSE(accept_text(plain, "\n\n<｜DSML｜ calls>"));
  GrammarMatcher inside = start.fork();
  ASSERT_TRUE(accept_markup(inside, head + "<｜DSML｜ parameter name=\"city\" string=\"true\">a"));
  EXPECT_FALSE(accept_text(inside, "</｜DSML｜"));
}

TEST(GrammarTools, EveryWalkIsReadBackAsCallsOfTheTools) {
  std::mt19937 random(5);
  int complete = 0;
  for (const bool strict : {true, false}) {
    const GrammarMatcher start = matcher_of(calls(ToolChoice::kRequired, strict));
    for (int i = 0; i < 60; ++i) {
      GrammarMatcher matcher = start.fork();
      const Walk walk = random_walk(matcher, random, 600);
      if (!walk.is_complete) continue;
      ++complete;
      const std::vector<Call> read = read_calls(walk.text);
      ASSERT_FALSE(read.empty()) << walk.text;
      for (const Call& call : read) {
        const auto arguments = parse_json(call.arguments);
        ASSERT_TRUE(arguments) << walk.text << "\n" << call.arguments;
        EXPECT_THAT(call.name, testing::AnyOf("get_weather", "now"));
        if (!strict || call.name == "now") continue;
        EXPECT_TRUE(arguments->at("city").is_string());
        EXPECT_TRUE(arguments->at("days").is_number_integer());
        EXPECT_TRUE(arguments->at("days") >= 1 && arguments->at("days") <= 14);
      }
    }
  }
  EXPECT_GT(complete, 30);
}

TEST(GrammarTools, AutoIsFreeUntilTheBlock) {
  GrammarMatcher matcher = matcher_of(calls(ToolChoice::kAuto, true));
  EXPECT_FALSE(matcher.is_constrained());
  EXPECT_TRUE(matcher.accept(stop()));  // an empty answer
  matcher.rollback(1);
  ASSERT_TRUE(accept_text(matcher, "I will look. a < b"));
  EXPECT_FALSE(matcher.accept(marker()));
  ASSERT_TRUE(accept_text(matcher, "\n\n<"));
  EXPECT_TRUE(allows(mask_of(matcher), marker()));
  ASSERT_TRUE(matcher.accept(marker()));
  EXPECT_TRUE(matcher.is_constrained());
  EXPECT_FALSE(matcher.fork().accept(stop()));
  ASSERT_TRUE(accept_markup(
      matcher, " calls>\n<｜DSML｜ invoke name=\"now\">\n\n</｜DSML｜ invoke>\n</｜DSML｜ calls>"));
  EXPECT_FALSE(matcher.fork().accept(encode("x")[0]));
  EXPECT_TRUE(matcher.accept(stop()));
}

TEST(GrammarTools, AForcedCallFollowsTheReasoning) {
  const GrammarSpec named = calls(ToolChoice::kNamed, true, {tools()[1]});
  GrammarMatcher matcher = matcher_of(named, Start::kReasoning);
  ASSERT_TRUE(accept_text(matcher, "The time is needed."));
  EXPECT_FALSE(matcher.accept(stop()));
  ASSERT_TRUE(matcher.accept(think_end()));
  EXPECT_FALSE(matcher.accept(stop()));
  ASSERT_TRUE(accept_markup(matcher,
                            "\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"now\">\n\n"
                            "</｜DSML｜ invoke>\n</｜DSML｜ calls>"));
  EXPECT_TRUE(matcher.accept(stop()));
}

TEST(GrammarTools, APromptMayOpenTheBlock) {
  GrammarMatcher matcher = matcher_of(calls(ToolChoice::kRequired, false), Start::kToolCalls);
  const std::string text =
      "<｜DSML｜ invoke name=\"now\">\n"
      "<｜DSML｜ parameter name=\"x y\" string=\"false\">{\"a\": [1]}</｜DSML｜ parameter>\n"
      "</｜DSML｜ invoke>\n</｜DSML｜ calls>";
  ASSERT_TRUE(accept_markup(matcher, text));
  EXPECT_TRUE(matcher.accept(stop()));
  EXPECT_EQ(read_calls(text, Start::kToolCalls).at(0).arguments, R"({"x y": {"a": [1]}})");
}

TEST(GrammarTools, OneCallWhenThereMayBeNoMore) {
  GrammarSpec spec = calls(ToolChoice::kRequired, true);
  spec.parallel = false;
  GrammarMatcher matcher = matcher_of(spec);
  ASSERT_TRUE(accept_markup(
      matcher, "\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"now\">\n\n</｜DSML｜ invoke>\n"));
  EXPECT_FALSE(matcher.fork().accept(encode("<")[0]) && accept_markup(matcher, "<｜DSML｜ invoke"));
}

TEST(GrammarTools, SaysWhatCannotBeWritten) {
  const auto error_of = [](const GrammarSpec& spec) {
    const auto compiled = mini_compiler().compile(spec);
    return compiled ? "compiles" : compiled.error().message;
  };
  EXPECT_THAT(error_of(calls(ToolChoice::kAuto, true, {})), HasSubstr("no tools"));
  EXPECT_THAT(error_of(calls(ToolChoice::kNamed, true)), HasSubstr("given alone"));
  EXPECT_THAT(error_of(calls(ToolChoice::kAuto, true, {tool("f", R"({"type": "string"})")})),
              HasSubstr("tool \"f\": JSON schema, #: the parameters of a tool are an object"));
  EXPECT_THAT(error_of(calls(ToolChoice::kAuto, true,
                             {tool("f", R"({"properties": {"a\"b": {"type": "string"}}})")})),
              HasSubstr("has quotes in its name"));
  EXPECT_THAT(error_of(calls(ToolChoice::kAuto, true, {tool("f", R"({"type": "object"})")})),
              HasSubstr("additionalProperties"));
}

// --- limits and cache

TEST(GrammarCompiler, RefusesWhatIsTooLarge) {
  const auto error_of = [](const GrammarSpec& spec) {
    const Clock::time_point begin = Clock::now();
    const auto compiled = mini_compiler().compile(spec);
    EXPECT_LT(seconds_since(begin), 5.0);
    return compiled ? "compiles" : compiled.error().message;
  };
  std::string large = R"({"type": "object", "properties": {)";
  for (int i = 0; large.size() < 5 * kMegabyte; ++i) {
    large += fmt::format("\"property{}\": {{\"type\": \"string\"}}, ", i);
  }
  EXPECT_THAT(error_of(schema(large + "\"z\": {}}}")), HasSubstr("more than 1048576"));
  EXPECT_THAT(error_of(calls(ToolChoice::kAuto, true, {tool("f", large + "\"z\": {}}}")})),
              HasSubstr("bytes, more than"));
  std::string deep;
  for (int i = 0; i < 100; ++i) deep += R"({"items": )";
  EXPECT_THAT(error_of(schema(deep + "{}" + std::string(100, '}'))), HasSubstr("deeper than 64"));
  EXPECT_THAT(error_of(schema(std::string(100000, '['))), HasSubstr("deep"));
  EXPECT_THAT(error_of(schema("{")), HasSubstr("JSON"));
  EXPECT_THAT(error_of({Kind::kRegex, "(a{100}b){1000}"}), HasSubstr("positions"));
}

TEST(GrammarCompiler, AChainOfReferencesTakesNoStack) {
  std::string chain = R"({"$ref": "#/$defs/d0", "$defs": {)";
  for (int i = 0; i < 2000; ++i) {
    chain += fmt::format(R"("d{}": {{"anyOf": [{{"$ref": "#/$defs/d{}"}}, {{"type": "null"}}]}}, )",
                         i, i + 1);
  }
  const auto compiled = mini_compiler().compile(schema(chain + R"("d2000": {"type": "null"}}})"));
  ASSERT_TRUE(compiled) << compiled.error().message;
}

TEST(GrammarCompiler, StopsAtTheDeadline) {
  GrammarLimits limits;
  limits.compile_time = std::chrono::milliseconds(20);
  GrammarCompiler compiler(vocabulary_of(*deepseek_tokenizer()), limits, 0);
  const Clock::time_point begin = Clock::now();
  const auto compiled = compiler.compile({Kind::kRegex, "(.{1,60}x){1,60}"});
  ASSERT_FALSE(compiled);
  EXPECT_EQ(compiled.error().code, ErrorCode::kDeadline) << compiled.error().message;
  EXPECT_LT(seconds_since(begin), 5.0);
  // Nothing is left behind on this thread.
  limits.compile_time = std::chrono::minutes(1);
  GrammarCompiler patient(compiler.vocabulary(), limits, 0);
  EXPECT_TRUE(patient.compile({Kind::kRegex, "[ab]x"}));
  EXPECT_EQ(patient.compile({Kind::kRegex, "x"}, Deadline::at(Clock::now())).error().code,
            ErrorCode::kDeadline);
}

TEST(GrammarCompiler, KeepsTheGrammarsUsedLastWithinItsBytes) {
  const auto regex = [](int i) { return GrammarSpec{Kind::kRegex, fmt::format("[a-z]{{{}}}", i)}; };
  GrammarCompiler measure(vocabulary_of(*mini_tokenizer()), {}, 64 * kMegabyte);
  ASSERT_TRUE(measure.compile(regex(20)));
  const int64_t one = measure.stats().bytes;
  ASSERT_GT(one, 0);

  GrammarCompiler compiler(measure.vocabulary(), {}, one * 5 / 2);
  const auto first = compiler.compile(regex(20));
  ASSERT_TRUE(first && compiler.compile(regex(19)));
  EXPECT_EQ(compiler.compile(regex(20)).value(), *first);
  EXPECT_EQ(compiler.stats().hits, 1);
  ASSERT_TRUE(compiler.compile(regex(18)));  // drops 19, the least recently used
  EXPECT_EQ(compiler.stats().evictions, 1);
  EXPECT_EQ(compiler.compile(regex(20)).value(), *first);
  ASSERT_TRUE(compiler.compile(regex(19)));
  EXPECT_EQ(compiler.stats().misses, 4);
  for (int i = 1; i < 30; ++i) {
    ASSERT_TRUE(compiler.compile(regex(i)));
    EXPECT_LE(compiler.stats().bytes, one * 5 / 2);
  }
  // One that was dropped lives on with those who use it.
  EXPECT_TRUE(GrammarMatcher::make(*first, Start::kContent));

  GrammarCompiler none(measure.vocabulary(), {}, 0);
  ASSERT_TRUE(none.compile(regex(20)));
  EXPECT_EQ(none.stats().entries, 0);
  EXPECT_EQ(none.stats().bytes, 0);
}

TEST(GrammarCompiler, FindsWhatIsInTheCacheOnly) {
  GrammarCompiler compiler(vocabulary_of(*mini_tokenizer()), {}, 64 * kMegabyte);
  const GrammarSpec spec{Kind::kRegex, "[a-z]"};
  EXPECT_EQ(compiler.find(spec), nullptr);
  EXPECT_EQ(compiler.find({Kind::kRegex, std::string(2 * kMegabyte, 'a')}), nullptr);
  const auto compiled = compiler.compile(spec);
  ASSERT_TRUE(compiled);
  EXPECT_EQ(compiler.find(spec), *compiled);
  EXPECT_EQ(compiler.find({Kind::kEbnf, "[a-z]"}), nullptr);
  EXPECT_EQ(compiler.stats().hits, 1);
  EXPECT_EQ(compiler.stats().misses, 1);  // of compile() only
}

TEST(GrammarCompiler, DoesNotMixUpSpecs) {
  GrammarCompiler compiler(vocabulary_of(*mini_tokenizer()), {}, 64 * kMegabyte);
  const std::vector<GrammarSpec> specs = {{Kind::kRegex, "{}"},
                                          {Kind::kJsonSchema, "{}"},
                                          {Kind::kJsonObject, "{}"},
                                          calls(ToolChoice::kAuto, true),
                                          calls(ToolChoice::kAuto, false),
                                          calls(ToolChoice::kRequired, true)};
  for (const GrammarSpec& spec : specs) compiler.compile(spec);
  EXPECT_EQ(compiler.stats().hits, 0);
}

TEST(GrammarCompiler, CompilesOnManyThreads) {
  GrammarCompiler compiler(vocabulary_of(*mini_tokenizer()), {}, kMegabyte);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 12; ++i) {
        const auto compiled =
            compiler.compile({Kind::kRegex, fmt::format("[a-z]{{{}}}", (i + t) % 6 + 1)});
        ASSERT_TRUE(compiled);
        auto matcher = GrammarMatcher::make(*compiled, Start::kContent);
        ASSERT_TRUE(matcher);
        EXPECT_TRUE(matches(*std::move(matcher), std::string(size_t(i + t) % 6 + 1, 'q')));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(GrammarMatcher, GivesUpOnAGrammarThatIsTooAmbiguous) {
  GrammarMatcher matcher = matcher_of({Kind::kEbnf, "root ::= root root root | \"a\" | \"\""});
  std::vector<uint32_t> mask(static_cast<size_t>(mini_compiler().vocabulary().mask_words()));
  const int32_t a = encode("a")[0];
  Status filled;
  while ((filled = matcher.fill_mask(mask)) && matcher.accepted() < 2000) {
    ASSERT_TRUE(matcher.accept(a));
  }
  ASSERT_FALSE(filled);
  EXPECT_EQ(filled.error().code, ErrorCode::kDeadline);
}

// --- vocabulary

TEST(GrammarVocabulary, SaysWhatIsMissing) {
  EXPECT_THAT(GrammarVocabulary::make(*micro_tokenizer(), 320, {1}).error().message,
              HasSubstr("has no token"));
  const Tokenizer& mini = *mini_tokenizer();
  EXPECT_FALSE(GrammarVocabulary::make(mini, mini.size() - 1, {stop()}));
  EXPECT_FALSE(GrammarVocabulary::make(mini, mini.size(), {}));
  EXPECT_FALSE(GrammarVocabulary::make(mini, mini.size(), {mini.size()}));
  const auto wider = GrammarVocabulary::make(mini, mini.size() + 77, {stop()});
  ASSERT_TRUE(wider);
  EXPECT_EQ(wider->size(), mini.size() + 77);
}

}  // namespace
}  // namespace tidemill
