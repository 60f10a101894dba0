// What compiling may take: grammars that are small to write and cost a compiler without bounds
// minutes or gigabytes, each in another stage.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <stop_token>
#include <thread>

#include "sample/grammar_for_tests.h"

namespace tidemill {
namespace {

using testing::HasSubstr;
using Kind = GrammarSpec::Kind;
using std::chrono::milliseconds;

double seconds(milliseconds time) { return 1e-3 * static_cast<double>(time.count()); }

// `count` times the pattern with the number in place of its '#', `between` between them.
std::string listed(int count, std::string_view pattern, std::string_view between) {
  std::string out;
  for (int i = 0; i < count; ++i) {
    if (i > 0) out += between;
    for (const char c : pattern) out += c == '#' ? std::to_string(i) : std::string(1, c);
  }
  return out;
}

std::string many_ranges(int count) {
  std::string out = "[";
  for (int i = 0; i < count; ++i) out += fmt::format("\\u{:04X}", 0x1000 + 3 * i);
  return out + ']';
}

struct Case {
  const char* what;
  Kind kind;
  std::string text;
};

std::vector<Case> costly_grammars() {
  const std::string a(9000, 'a');
  std::string references;
  for (int i = 0; i < 9000; ++i) {
    references += fmt::format(R"("d{}": {{"anyOf": [{{"$ref": "#/$defs/d{}"}}]}}, )", i, i + 1);
  }
  return {
      {"counted in xgrammar, in a counted group", Kind::kRegex, "(.{0,9}[a-z]{0,80}x){1,150}"},
      {"the whole vocabulary in each state", Kind::kRegex, "(.{1,60}x){1,60}"},
      {"optional parts", Kind::kRegex, "(((a?b?c?){0,9}d?){0,9}e){0,60}"},
      {"wide classes", Kind::kRegex, "(" + many_ranges(2000) + "{0,60}x){1,300}"},
      {"a class that is wide and negated", Kind::kRegex,
       "([^" + many_ranges(900).substr(1) + "{0,60}x){1,300}"},
      {"strings of one beginning", Kind::kRegex, a + "x|" + a + "y"},
      {"all alternatives call another rule", Kind::kEbnf,
       "root ::= " + listed(25000, "a# \"x\"", "|") + '\n' + listed(25000, "a#::=\"\"", "\n")},
      {"a long sequence of rules", Kind::kEbnf,
       "root ::= " + listed(40000, "a#", " ") + '\n' + listed(40000, "a#::=\"b\"|\"\"", "\n")},
      {"inlining multiplies", Kind::kEbnf,
       "root ::= " + listed(900, "a \"#\"", "|") + "\na ::= " + listed(90000, "[xy]", "|")},
      {"counted rules", Kind::kEbnf,
       "root ::= " + listed(40000, "a{0,120}", " ") + "\na ::= \"x\" | \"yz\""},
      {"counted classes", Kind::kEbnf,
       "root ::= " + listed(100, "c{120}", " ") + "\nc ::= " + many_ranges(3000)},
      {"many alternatives of one rule", Kind::kEbnf, "root ::= " + listed(90000, "\"#\"", "|")},
      {"many rules that differ", Kind::kEbnf,
       "root ::= " + listed(30000, "a#", "|") + '\n' + listed(30000, "a#::=\"#\" root", "\n")},
      {"negated classes", Kind::kEbnf, "root ::= " + listed(200000, "[^x]", " ")},
      {"ambiguous", Kind::kEbnf, "root ::= root root root | [a-z] | \"\""},
      {"a chain of references", Kind::kJsonSchema,
       R"({"$ref": "#/$defs/d0", "$defs": {)" + references + R"("d9000": {"type": "null"}}})"},
      {"required members", Kind::kJsonSchema,
       R"({"type": "object", "properties": {)" + listed(25000, R"("m#": {})", ",") +
           R"(}, "required": [)" + listed(25000, R"("m#")", ",") + "]}"},
      {"exclusive constants", Kind::kJsonSchema,
       R"({"oneOf": [{"enum": [)" + listed(60000, "#", ",") + R"(]}, {"enum": [)" +
           listed(60000, R"("#")", ",") + "]}]}"},
      {"a long enum", Kind::kJsonSchema, R"({"enum": [)" + listed(3000, R"("word #")", ",") + "]}"},
      {"long constants", Kind::kJsonSchema, R"({"enum": [")" + a + R"(x", ")" + a + R"(y"]})"},
      {"objects in arrays", Kind::kJsonSchema,
       R"({"type": "array", "minItems": 60, "maxItems": 64, "items": {"type": "array", "minItems":
          20, "maxItems": 30, "items": {"type": "string", "maxLength": 9}}})"},
  };
}

TEST(GrammarBounds, ACompileEndsNearItsTime) {
  GrammarLimits limits;
  limits.compile_time = milliseconds(300);
  GrammarCompiler compiler(mini_compiler().vocabulary(), limits, 0);
  for (const Case& one : costly_grammars()) {
    SCOPED_TRACE(one.what);
    const Clock::time_point begin = Clock::now();
    const auto compiled = compiler.compile({one.kind, one.text});
    // Mostly below 0.4 s; without the bounds many take ten seconds and more.
    EXPECT_LT(seconds_since(begin), 10 * seconds(limits.compile_time));
    if (compiled) continue;
    EXPECT_THAT(compiled.error().code, testing::AnyOf(ErrorCode::kDeadline, ErrorCode::kRequest));
    EXPECT_THAT(compiled.error().message, HasSubstr("the output constraint"));
  }
}

TEST(GrammarBounds, RefusesWhatTakesTooMuchMemory) {
  GrammarLimits limits;
  limits.working_bytes = 100000;
  GrammarCompiler compiler(mini_compiler().vocabulary(), limits, 0);
  EXPECT_TRUE(compiler.compile({Kind::kRegex, "[a-z]{3}"}));
  for (const GrammarSpec& spec : {GrammarSpec{Kind::kRegex, "(.{0,9}x){1,50}"},
                                  GrammarSpec{Kind::kEbnf, costly_grammars()[9].text}}) {
    const auto compiled = compiler.compile(spec);
    ASSERT_FALSE(compiled);
    EXPECT_EQ(compiled.error().code, ErrorCode::kRequest);
    EXPECT_THAT(compiled.error().message, HasSubstr("more than 100000 bytes to compile"));
  }
}

TEST(GrammarBounds, AnAutomatonThatIsNotMergedMatchesTheSameTexts) {
  const std::string a(6500, 'a');
  const GrammarMatcher matcher = matcher_of({Kind::kRegex, a + "x|" + a + "y|" + a});
  EXPECT_TRUE(matches(matcher.fork(), a + "x"));
  EXPECT_TRUE(matches(matcher.fork(), a + "y"));
  EXPECT_TRUE(matches(matcher.fork(), a));
  EXPECT_FALSE(matches(matcher.fork(), a + "z"));
  EXPECT_FALSE(matches(matcher.fork(), a + "xy"));
}

TEST(GrammarBounds, ACompileIsStoppedFromOutside) {
  GrammarLimits limits;
  limits.compile_time = std::chrono::minutes(2);
  GrammarCompiler compiler(mini_compiler().vocabulary(), limits, 0);
  std::stop_source stop;
  const GrammarSpec endless{Kind::kEbnf, costly_grammars()[9].text};
  std::thread later([&] {
    std::this_thread::sleep_for(milliseconds(50));
    stop.request_stop();
  });
  const auto compiled = compiler.compile(endless, Deadline::never(), stop.get_token());
  later.join();
  ASSERT_FALSE(compiled);
  EXPECT_EQ(compiled.error().code, ErrorCode::kCancelled);
}

}  // namespace
}  // namespace tidemill
