#include "sample/penalties.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace tidemill {
namespace {

using testing::ElementsAre;

// Token 0 unseen, 1 in the prompt, 2 once in the output, 3 three times, 4 in both.
TokenHistory history() {
  TokenHistory result;
  result.add_prompt(std::vector<int32_t>{1, 4, 1});
  for (const int32_t token : {2, 3, 3, 3, 4}) result.add_output(token);
  return result;
}

std::vector<float> edited(std::vector<float> logits, const SamplingParams& params) {
  edit_logits(logits, params, history());
  return logits;
}

TEST(Penalties, RepetitionCountsPromptAndOutputAndKeepsTheSign) {
  SamplingParams params;
  params.repetition_penalty = 2.0f;
  EXPECT_THAT(edited({4, 4, 4, 4, 4}, params), ElementsAre(4, 2, 2, 2, 2));
  EXPECT_THAT(edited({-4, -4, -4, 0, -4}, params), ElementsAre(-4, -8, -8, 0, -8));
}

TEST(Penalties, FrequencyAndPresenceCountTheOutputOnly) {
  SamplingParams params;
  params.frequency_penalty = 0.5f;
  EXPECT_THAT(edited({1, 1, 1, 1, 1}, params), ElementsAre(1, 1, 0.5f, -0.5f, 0.5f));
  params = {};
  params.presence_penalty = -1.5f;
  EXPECT_THAT(edited({1, 1, 1, 1, 1}, params), ElementsAre(1, 1, 2.5f, 2.5f, 2.5f));
}

TEST(Penalties, BiasComesFirstThenRepetitionThenTheSubtractions) {
  SamplingParams params;
  params.logit_bias = {{0, 10.0f}, {3, 5.0f}};
  params.repetition_penalty = 2.0f;
  params.frequency_penalty = 0.25f;
  params.presence_penalty = 0.5f;
  // Token 3: (1 + 5) / 2 - 3 * 0.25 - 0.5
  EXPECT_THAT(edited({1, 1, 1, 1, 1}, params), ElementsAre(11, 0.5f, -0.25f, 1.75f, -0.25f));
}

TEST(Penalties, MaskedStaysMasked) {
  constexpr float kMasked = -std::numeric_limits<float>::infinity();
  SamplingParams params;
  params.logit_bias = {{3, 100.0f}};
  params.repetition_penalty = 0.5f;
  params.presence_penalty = -2.0f;
  EXPECT_THAT(edited({1, 1, 1, kMasked, 1}, params), ElementsAre(1, 2, 4, kMasked, 4));
}

TEST(Penalties, RemovedOutputLeavesNoTrace) {
  SamplingParams params;
  params.repetition_penalty = 2.0f;
  params.frequency_penalty = 1.0f;
  params.presence_penalty = 1.0f;
  TokenHistory tokens;
  tokens.add_output(0);
  tokens.add_output(1);
  tokens.add_output(1);
  tokens.remove_output(0);
  tokens.remove_output(1);
  std::vector<float> logits = {4, 4};
  edit_logits(logits, params, tokens);
  EXPECT_THAT(logits, ElementsAre(4, 0));
}

TEST(Penalties, IdsOutsideTheVocabularyAreIgnored) {
  SamplingParams params;
  params.repetition_penalty = 2.0f;
  TokenHistory tokens;
  tokens.add_prompt(std::vector<int32_t>{-1, 2, std::numeric_limits<int32_t>::max()});
  std::vector<float> logits = {4, 4};
  edit_logits(logits, params, tokens);
  EXPECT_THAT(logits, ElementsAre(4, 4));
}

}  // namespace
}  // namespace tidemill
