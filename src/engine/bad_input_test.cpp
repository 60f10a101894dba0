// What the public engine cannot take is an error value, and nobody else notices.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <string_view>

#include "engine/engine_for_tests.h"
#include "model/test_checkpoint.h"

namespace tidemill {
namespace {

using testing::HasSubstr;
using Kind = Constraint::Kind;
using std::chrono::milliseconds;

struct BadRequest {
  const char* name;
  void (*spoil)(Request&);
  ErrorCode code;
  const char* says;
};

const BadRequest kBadRequests[] = {
    {"no prompt", [](Request& r) { r.prompt.clear(); }, ErrorCode::kRequest, "prompt"},
    {"token", [](Request& r) { r.prompt = {8192}; }, ErrorCode::kTokenOutOfRange, "8192"},
    {"negative token", [](Request& r) { r.prompt = {-1}; }, ErrorCode::kTokenOutOfRange, "-1"},
    {"stop token", [](Request& r) { r.stop_tokens = {8192}; }, ErrorCode::kTokenOutOfRange, "8192"},
    {"long prompt", [](Request& r) { r.prompt.assign(2048, 1); }, ErrorCode::kContextLength,
     "2048"},
    {"max_tokens 0", [](Request& r) { r.max_tokens = 0; }, ErrorCode::kRequest, "max_tokens is 0"},
    {"max_tokens < 0", [](Request& r) { r.max_tokens = -5; }, ErrorCode::kRequest, "-5"},
    {"max_tokens least", [](Request& r) { r.max_tokens = INT64_MIN; }, ErrorCode::kRequest, "max_"},
    {"max_tokens huge", [](Request& r) { r.max_tokens = INT64_MAX; }, ErrorCode::kContextLength,
     "2048"},
    {"max_tokens of context", [](Request& r) { r.max_tokens = 2048; }, ErrorCode::kContextLength,
     "2048"},
    {"n 0", [](Request& r) { r.n = 0; }, ErrorCode::kRequest, "n is 0"},
    {"n < 0", [](Request& r) { r.n = -1; }, ErrorCode::kRequest, "n is -1"},
    {"n huge", [](Request& r) { r.n = 1'000'000; }, ErrorCode::kRequest, "1000000"},
    {"empty stop",
     [](Request& r) {
       r.stop = {"a", ""};
     },
     ErrorCode::kRequest, "stop[1]"},
    {"many stops", [](Request& r) { r.stop.assign(65, "x"); }, ErrorCode::kRequest, "65"},
    {"drafts", [](Request& r) { r.drafts = 6; }, ErrorCode::kRequest, "drafts is 6"},
    {"drafts < -1", [](Request& r) { r.drafts = -2; }, ErrorCode::kRequest, "drafts is -2"},
    {"priority", [](Request& r) { r.priority = INT32_MIN; }, ErrorCode::kRequest, "priority"},
    {"timeout 0", [](Request& r) { r.timeout_ms = 0; }, ErrorCode::kRequest, "timeout_ms"},
    {"timeout nan", [](Request& r) { r.timeout_ms = NAN; }, ErrorCode::kRequest, "timeout_ms"},
    {"temperature", [](Request& r) { r.sampling.temperature = NAN; }, ErrorCode::kInvalidArgument,
     "temperature"},
    {"top_p", [](Request& r) { r.sampling.top_p = 0; }, ErrorCode::kInvalidArgument, "top_p"},
    {"logprobs", [](Request& r) { r.sampling.logprobs = 21; }, ErrorCode::kInvalidArgument,
     "logprobs"},
    {"logit_bias",
     [](Request& r) {
       r.sampling.logit_bias = {{8192, 1.0f}};
     },
     ErrorCode::kInvalidArgument, "8192"},
    {"named tools",
     [](Request& r) {
       r.constraint = Constraint{.kind = Kind::kToolCalls,
                                 .text = R"([{"name": "a"}, {"name": "b"}])",
                                 .choice = Constraint::Choice::kNamed};
     },
     ErrorCode::kRequest, "named"},
};

TEST(EngineApi, BadRequestsAreErrorsAndLeaveNoTrace) {
  const auto engine = open(small_options());
  const Request good = ask(*engine, prompt_of(0));
  const Heard before = answer(*engine, good);
  for (const BadRequest& bad : kBadRequests) {
    Request request = good;
    bad.spoil(request);
    const Error error = refusal(*engine, std::move(request));
    EXPECT_EQ(error.code, bad.code) << bad.name << ": " << error.message;
    EXPECT_THAT(error.message, HasSubstr(bad.says)) << bad.name;
    EXPECT_EQ(error.message.find('\n'), std::string::npos) << bad.name;
  }
  EXPECT_TRUE(engine->poll(milliseconds(20)).empty());
  const Stats stats = engine->stats();
  EXPECT_EQ(stats.submitted, 1);
  EXPECT_EQ(stats.waiting + stats.running, 0);
  EXPECT_EQ(answer(*engine, good).tokens, before.tokens);
}

TEST(EngineApi, IdsDifferWhileTheyAreInUse) {
  const auto engine = open(small_options());
  Listener listener(*engine);
  Request request = ask(*engine, prompt_of(0), 200);
  request.ignore_end = true;
  request.id = 77;
  EXPECT_EQ(submit(*engine, request), 77u);
  const Error error = refusal(*engine, request);
  EXPECT_EQ(error.code, ErrorCode::kRequest);
  EXPECT_THAT(error.message, HasSubstr("77"));
  request.id = 0;
  const RequestId other = submit(*engine, request);
  EXPECT_NE(other, 77u);

  EXPECT_FALSE(engine->cancel(12345));
  EXPECT_FALSE(engine->cancel(0));
  EXPECT_TRUE(engine->cancel(77));
  EXPECT_FALSE(engine->cancel(77));
  listener.wait_for(2);
  EXPECT_EQ(listener.of(77).finish, FinishReason::kCancelled);
  EXPECT_EQ(listener.of(other).tokens.size(), 200u);
  request.id = 77;  // may be used again
  request.max_tokens = 1;
  EXPECT_EQ(answer(*engine, request).tokens.size(), 1u);
}

// The model of the tests with another generation_config.json.
void link_model(const std::filesystem::path& folder, std::string_view generation) {
  for (const auto& file : std::filesystem::directory_iterator(kMiniModel)) {
    if (file.path().filename() == "generation_config.json") continue;
    std::filesystem::create_symlink(file.path(), folder / file.path().filename());
  }
  std::ofstream(folder / "generation_config.json") << generation;
}

TEST(EngineApi, TheCheckpointsConfidenceTemperaturesCountUnlessOthersAreGiven) {
  const TestDirectory folder;
  link_model(folder.path(), R"({"dspark_confidence_temperatures": [1, 2, 3]})");
  Options options = small_options();
  options.model = folder.path().string();
  const auto engine = Engine::open(options);
  ASSERT_FALSE(engine);
  EXPECT_EQ(engine.error().code, ErrorCode::kConfig);
  EXPECT_THAT(engine.error().message,
              HasSubstr("generation_config.json: dspark_confidence_temperatures: 3 temperatures"));
  options.confidence_temperatures = {1, 2, 3, 4, 5};
  EXPECT_TRUE(Engine::open(options));
}

// A temperature of 1,000 leaves every confidence near a half.
TEST(EngineApi, ConfidencesAreThoseOfTheTemperatures) {
  const TestDirectory folder;
  link_model(folder.path(), R"({"dspark_confidence_temperatures": [1000]})");
  const auto mean_confidence = [](const Options& options) {
    const auto engine = open(options);
    answer(*engine, ask(*engine, "The sea", 30));
    const Stats stats = engine->stats();
    EXPECT_GT(stats.reached[0], 10);
    return stats.predicted[0] / static_cast<double>(stats.reached[0]);
  };
  Options options = small_options();
  options.drafts = "fixed:2";
  EXPECT_GT(std::abs(mean_confidence(options) - 0.5), 0.05);
  options.model = folder.path().string();
  EXPECT_NEAR(mean_confidence(options), 0.5, 0.02);
  options.confidence_temperatures = {1};
  EXPECT_GT(std::abs(mean_confidence(options) - 0.5), 0.05);
}

TEST(EngineApi, OptionsThatCannotBeAreErrors) {
  struct Case {
    void (*spoil)(Options&);
    ErrorCode code;
    const char* says;
  };
  const Case cases[] = {
      {[](Options& o) { o.model = "/nonexistent"; }, ErrorCode::kFileNotFound, "/nonexistent"},
      {[](Options& o) { o.backend = "gpu"; }, ErrorCode::kInvalidArgument, "gpu"},
      {[](Options& o) { o.threads = -1; }, ErrorCode::kInvalidArgument, "threads"},
      {[](Options& o) { o.context = -1; }, ErrorCode::kInvalidArgument, "context"},
      {[](Options& o) { o.sequences = -1; }, ErrorCode::kInvalidArgument, "sequences"},
      {[](Options& o) { o.max_step_tokens = -1; }, ErrorCode::kInvalidArgument, "max_step_tokens"},
      {[](Options& o) { o.step_ms = NAN; }, ErrorCode::kInvalidArgument, "step_ms"},
      {[](Options& o) { o.drafts = "fixed:6"; }, ErrorCode::kInvalidArgument, "fixed:6"},
      {[](Options& o) { o.drafts = "many"; }, ErrorCode::kInvalidArgument, "many"},
      {[](Options& o) { o.verification = "none"; }, ErrorCode::kInvalidArgument, "none"},
      {[](Options& o) {
         o.confidence_temperatures = {1, 1};
       },
       ErrorCode::kInvalidArgument, "2"},
      {[](Options& o) { o.window_lifetime_s = 0; }, ErrorCode::kInvalidArgument, "window_lifetime"},
      {[](Options& o) { o.max_waiting = 0; }, ErrorCode::kInvalidArgument, "max_waiting"},
      {[](Options& o) { o.grammar_depth = 0; }, ErrorCode::kInvalidArgument, "grammar_depth"},
      {[](Options& o) { o.grammar_threads = 0; }, ErrorCode::kInvalidArgument, "grammar_threads"},
      {[](Options& o) { o.pool_blocks = -1; }, ErrorCode::kInvalidArgument, "pool"},
      {[](Options& o) { o.encoder_replay = true; }, ErrorCode::kConflictingOptions, "replay_keep"},
      {[](Options& o) {
         o.encoder_replay = true;
         o.replay_keep = 140;
         o.prefix_cache = false;
       },
       ErrorCode::kConflictingOptions, "prefix_cache"},
      {[](Options& o) { o.state_bytes = o.pool_blocks = 1 << 20; }, ErrorCode::kConflictingOptions,
       "state_bytes"},
  };
  for (const Case& one : cases) {
    Options options = small_options();
    one.spoil(options);
    const auto engine = Engine::open(options);
    ASSERT_FALSE(engine) << one.says;
    EXPECT_EQ(engine.error().code, one.code) << engine.error().message;
    EXPECT_THAT(engine.error().message, HasSubstr(one.says));
  }
}
}  // namespace
}  // namespace tidemill
