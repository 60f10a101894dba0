#include "model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "model/test_checkpoint.h"
#include "model/topology.h"

namespace tidemill {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

json cases(const std::string& name) {
  return json::parse(read_file(TIDEMILL_SOURCE_DIR "/tests/cases/config/" + name));
}

// The released configuration with a case's changes: "set" maps JSON pointers to values.
std::string changed(const json& test) {
  json config = cases("released.json");
  if (test.contains("set")) {
    for (const auto& [pointer, value] : test["set"].items()) {
      config[json::json_pointer(pointer)] = value;
    }
  }
  if (test.contains("remove")) {
    for (const auto& pointer : test["remove"]) {
      const json::json_pointer at(pointer.get<std::string>());
      config[at.parent_pointer()].erase(at.back());
    }
  }
  return config.dump();
}

TEST(Config, ReadsTheReleasedFile) {
  const auto config = Config::parse(cases("released.json").dump());
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->vocab_size, 129280);
  EXPECT_EQ(config->hidden_size, 5120);
  EXPECT_EQ(config->rms_norm_eps, 1e-20f);
  EXPECT_EQ(config->image_token_id, 129264);
  EXPECT_TRUE(config->has_vision);
  EXPECT_FALSE(config->fp8_experts);
  EXPECT_EQ(config->compress_ratios.size(), 43u);
  EXPECT_EQ(config->rope_scaling.original_max_position_embeddings, 65536);
  EXPECT_EQ(config->engram_columns(), 24);
  EXPECT_THAT(config->engram_num_embeddings, ElementsAre(384006168, 384016682));
  EXPECT_THAT(config->dspark_target_layer_ids, ElementsAre(37, 38, 39));
}

TEST(Config, AcceptsLegalVariants) {
  for (const json& test : cases("accepted.json")) {
    SCOPED_TRACE(test["name"].get<std::string>());
    const auto config = Config::parse(changed(test));
    ASSERT_TRUE(config) << config.error().message;
    const auto topology = Topology::build(*config);
    EXPECT_TRUE(topology) << topology.error().message;
  }
}

TEST(Config, NamesWhatItRefuses) {
  for (const json& test : cases("refused.json")) {
    SCOPED_TRACE(test.dump());
    const auto config = Config::parse(changed(test));
    if (!config) {
      EXPECT_EQ(config.error().code, ErrorCode::kConfig);
      EXPECT_THAT(config.error().message, HasSubstr(test["error"].get<std::string>()));
      continue;
    }
    const auto topology = Topology::build(*config);
    ASSERT_FALSE(topology);
    EXPECT_EQ(topology.error().code, ErrorCode::kConfig);
    EXPECT_THAT(topology.error().message, HasSubstr(test["error"].get<std::string>()));
  }
}

TEST(Config, RefusesWhatIsNoJsonObject) {
  const std::string deep = std::string(100000, '[');
  const std::pair<std::string, std::string> texts[] = {
      {"", "not valid JSON"},
      {"{\"a\": 1", "not valid JSON"},
      {"{\"a\": \"\xff\"}", "not valid JSON"},
      {"[1]", "expected an object, found [1]"},
      {"{\"a\": 1, \"a\": 2}", "the key \"a\" appears twice"},
      {deep, "nested more than 16 deep"},
  };
  for (const auto& [text, error] : texts) {
    const auto config = Config::parse(text);
    ASSERT_FALSE(config);
    EXPECT_EQ(config.error().code, ErrorCode::kConfig);
    EXPECT_THAT(config.error().message, HasSubstr(error));
    EXPECT_LT(config.error().message.size(), 300u);
  }
}

TEST(Config, MissingFileIsNamed) {
  const auto config = Config::load("/nonexistent");
  ASSERT_FALSE(config);
  EXPECT_EQ(config.error().code, ErrorCode::kFileNotFound);
  EXPECT_THAT(config.error().message, HasSubstr("/nonexistent/config.json"));
}

TEST(GenerationConfig, ReadsDefaultsAndLists) {
  const auto one = GenerationConfig::parse(
      R"({"do_sample": true, "temperature": 0.7, "top_p": 0.95, "eos_token_id": 1})");
  ASSERT_TRUE(one) << one.error().message;
  EXPECT_TRUE(one->do_sample);
  EXPECT_EQ(one->temperature, 0.7f);
  EXPECT_EQ(one->top_p, 0.95f);
  EXPECT_THAT(one->eos_token_ids, ElementsAre(1));

  const auto many = GenerationConfig::parse(R"({"eos_token_id": [1, 7]})");
  ASSERT_TRUE(many) << many.error().message;
  EXPECT_FALSE(many->do_sample);
  EXPECT_THAT(many->eos_token_ids, ElementsAre(1, 7));

  const auto fitted = GenerationConfig::parse(R"({"dspark_confidence_temperatures": [1.5, 0.25]})");
  ASSERT_TRUE(fitted) << fitted.error().message;
  EXPECT_THAT(fitted->dspark_confidence_temperatures, ElementsAre(1.5f, 0.25f));
  for (const char* value : {"1", "[0]", "[1, \"2\"]", "[1e9]"}) {
    const std::string text = std::string(R"({"dspark_confidence_temperatures": )") + value + "}";
    EXPECT_FALSE(GenerationConfig::parse(text)) << value;
  }

  const auto wrong = GenerationConfig::parse(R"({"top_p": 2})");
  ASSERT_FALSE(wrong);
  EXPECT_THAT(wrong.error().message,
              HasSubstr("generation_config.json: top_p: expected a number from 0 to 1, found 2"));

  const TestDirectory empty;
  const auto missing = GenerationConfig::load(empty.path());
  ASSERT_TRUE(missing);
  EXPECT_FALSE(missing->do_sample);
}

}  // namespace
}  // namespace tidemill
