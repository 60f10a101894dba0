#include "serve/completion_body.h"

#include <gtest/gtest.h>

#include "serve/cases_for_tests.h"
#include "serve/describe_for_tests.h"

namespace tidemill {
namespace {

// Special tokens in ⟦⟧, so that what only spells one is seen to be text.
Json describe(const CompletionPrompt& prompt) {
  if (const auto* ids = std::get_if<std::vector<int32_t>>(&prompt)) return *ids;
  std::string text;
  for (const PromptPiece& piece : std::get<Prompt>(prompt).pieces) {
    text += piece.special ? "⟦" + piece.text + "⟧" : piece.text;
  }
  return text;
}

TEST(CompletionBody, Cases) {
  const Json usual = {{"prompt", "P"}};
  check_cases("completions.json", usual, [](const Json& body) -> Result<Json> {
    TRY(const CompletionRequest request, read_completion_body(body, {}));
    Json json = tidemill::describe(request.generation);
    for (const CompletionPrompt& prompt : request.prompts) {
      json["prompts"].push_back(describe(prompt));
    }
    if (request.echo) json["echoes"] = request.echoes;
    return json;
  });
}

TEST(CompletionBody, SixteenTokensUnlessAskedFor) {
  auto request = read_completion_body({{"prompt", "P"}, {"max_tokens", nullptr}}, {});
  ASSERT_TRUE(request && limit_tokens(request->generation, 1, 100));
  EXPECT_EQ(request->generation.request.max_tokens, 16);
}

}  // namespace
}  // namespace tidemill
