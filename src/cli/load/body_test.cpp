#include "cli/load/body.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace tidemill::cli {
namespace {

PromptShape shape(const char* prompt, uint64_t seed = 0) {
  PromptShape made;
  made.prompt = *parse_lengths("--prompt-tokens", prompt);
  made.output = *parse_lengths("--output-tokens", "4:9");
  made.seed = seed;
  return made;
}

int64_t words(std::string_view text) {
  return text.empty() ? 0 : 1 + std::count(text.begin(), text.end(), ' ');
}

std::string first_words(const std::string& text, int64_t count) {
  size_t end = 0;
  for (; count > 0 && end != std::string::npos; --count) end = text.find(' ', end + 1);
  return text.substr(0, end);
}

TEST(ParseLengths, TakesRangesNumbersAndForms) {
  EXPECT_EQ(parse_lengths("--x", "3:7")->text(), "uniform:3-7");
  EXPECT_EQ(parse_lengths("--x", "5")->text(), "fixed:5");
  EXPECT_EQ(parse_lengths("--x", "lognormal:100,0.5")->text(), "lognormal:100,0.5");
  for (const char* text : {"", ":", "3:", ":7", "7:3", "0:3", "0", "1:2:3", "3-7", "-1", "1.5"}) {
    const auto lengths = parse_lengths("--x", text);
    ASSERT_FALSE(lengths) << text;
    EXPECT_THAT(lengths.error().message, testing::HasSubstr("--x"));
  }
}

TEST(Prompts, DependOnTheSeedAndTheIndexOnly) {
  const PromptShape one = shape("20:30", 1), other = shape("20:30", 2);
  std::set<std::string> texts;
  for (uint64_t i = 0; i < 100; ++i) {
    const DrawnLengths drawn = draw_lengths(one, i);
    EXPECT_GE(drawn.prompt_tokens, 20);
    EXPECT_LE(drawn.prompt_tokens, 30);
    EXPECT_GE(drawn.output_tokens, 4);
    EXPECT_LE(drawn.output_tokens, 9);
    const std::string text = make_prompt(one, i, drawn.prompt_tokens);
    EXPECT_EQ(words(text), drawn.prompt_tokens);
    EXPECT_EQ(text, make_prompt(one, i, drawn.prompt_tokens));
    EXPECT_NE(text, make_prompt(other, i, drawn.prompt_tokens));
    texts.insert(text);
  }
  EXPECT_EQ(texts.size(), 100u);
}

TEST(Prompts, BeginWithOneOfThePrefixes) {
  PromptShape made = shape("40");
  made.prefixes = 4;
  made.prefix_share = 0.5;
  std::set<std::string> starts, longer;
  for (uint64_t i = 0; i < 200; ++i) {
    const std::string text = make_prompt(made, i, 40);
    EXPECT_EQ(words(text), 40);
    starts.insert(first_words(text, 20));
    longer.insert(first_words(text, 23));
  }
  EXPECT_EQ(starts.size(), 4u);
  EXPECT_GT(longer.size(), 190u);

  made.prefix_share = 0;
  made.prefix_tokens = 100;
  EXPECT_EQ(words(make_prompt(made, 0, 40)), 140);
  // A longer prompt's prefix begins with a shorter one's: that is what a cache can share.
  made.prefix_tokens = 0;
  made.prefix_share = 0.5;
  made.prefixes = 1;
  EXPECT_EQ(first_words(make_prompt(made, 0, 40), 20), first_words(make_prompt(made, 1, 80), 20));
  made.prefix_share = 1;
  EXPECT_EQ(make_prompt(made, 0, 40), make_prompt(made, 1, 40));
}

TEST(Bodies, AreStreamingRequests) {
  LoadBodies bodies{.model = "m", .shape = shape("8")};
  const Json chat = *parse_json(bodies.body(0));
  EXPECT_EQ(chat["model"], "m");
  EXPECT_EQ(chat["stream"], true);
  EXPECT_EQ(chat["stream_options"]["include_usage"], true);
  EXPECT_EQ(chat["messages"][0]["role"], "user");
  EXPECT_EQ(words(chat["messages"][0]["content"].get<std::string>()), 8);
  EXPECT_EQ(chat["max_tokens"], draw_lengths(bodies.shape, 0).output_tokens);
  EXPECT_FALSE(chat.contains("ignore_eos"));
  EXPECT_EQ(bodies.body(3), bodies.body(3));
  EXPECT_NE(bodies.body(3), bodies.body(4));
  EXPECT_NE(bodies.body(3), bodies.warmup_body(3));

  bodies.endpoint = LoadEndpoint::kCompletions;
  bodies.ignore_eos = true;
  bodies.extra = {{"max_tokens", 5}, {"top_k", 1}};
  const Json completion = *parse_json(bodies.body(0));
  EXPECT_TRUE(completion["prompt"].is_string());
  EXPECT_FALSE(completion.contains("messages"));
  EXPECT_EQ(completion["ignore_eos"], true);
  EXPECT_EQ(completion["max_tokens"], 5);
  EXPECT_EQ(completion["top_k"], 1);
}

TEST(Bodies, OfATraceHaveItsFields) {
  std::vector<TraceItem> trace(4);
  trace[0].prompt = "text";
  trace[0].max_tokens = 77;
  trace[1].messages = *parse_json(R"([{"role": "system", "content": "s"}])");
  trace[1].priority = -3;
  trace[2].prompt_tokens = 50;
  LoadBodies bodies{.model = "m", .shape = shape("8"), .trace = trace};
  const Json first = *parse_json(bodies.body(0));
  EXPECT_EQ(first["messages"][0]["content"], "text");
  EXPECT_EQ(first["max_tokens"], 77);
  EXPECT_FALSE(first.contains("priority"));
  const Json second = *parse_json(bodies.body(1));
  EXPECT_EQ(second["messages"], trace[1].messages);
  EXPECT_EQ(second["priority"], -3);
  EXPECT_EQ(second["max_tokens"], draw_lengths(bodies.shape, 1).output_tokens);
  const auto content = [&](size_t i) {
    return (*parse_json(bodies.body(i)))["messages"][0]["content"].get<std::string>();
  };
  EXPECT_EQ(words(content(2)), 50);
  EXPECT_EQ(words(content(3)), 8);
  bodies.endpoint = LoadEndpoint::kCompletions;
  EXPECT_EQ((*parse_json(bodies.body(0)))["prompt"], "text");
}

}  // namespace
}  // namespace tidemill::cli
