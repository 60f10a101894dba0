#include "serve/completion_answer.h"

#include <gtest/gtest.h>

namespace tidemill {
namespace {

CompletionAnswerOptions options() {
  return {.head = {.nonce = "N", .created = 7, .model = "m"},
          .choices = 2,
          .logprobs = true,
          .include_usage = true};
}

TEST(CompletionAnswer, JoinedStreamIsTheCompleteAnswer) {
  CompletionStream stream(options());
  Completion completion(options());
  std::vector<StreamEvent> events;
  const auto take = [&](std::vector<StreamEvent> of) {
    std::move(of.begin(), of.end(), std::back_inserter(events));
  };
  const auto push = [&](int64_t choice, const std::string& text) {
    const std::vector<TokenText> tokens = {{text, -0.25f, {{text, -0.25f}}}};
    take(stream.push(choice, text, tokens));
    completion.push(choice, text, tokens);
  };
  push(0, "a\xC3\xA9");
  push(1, "x");
  push(0, "\n");
  EXPECT_TRUE(stream.push(0, "").empty());
  for (const int64_t choice : {1, 0}) {
    take(stream.end(choice, AnswerEnd::kStop));
    completion.end(choice, AnswerEnd::kStop);
  }
  take(stream.finish({}));

  const Json complete = completion.finish({});
  EXPECT_EQ(complete["choices"][0].dump(),
            R"({"index":0,"text":"aé\n","logprobs":{"tokens":["aé","\n"],)"
            R"("token_logprobs":[-0.25,-0.25],"top_logprobs":[{"aé":-0.25},{"\n":-0.25}],)"
            R"("text_offset":[0,2]},"finish_reason":"stop"})");

  ASSERT_EQ(events.back().data, kStreamDone);
  Json joined = complete;
  for (Json& choice : joined["choices"]) {
    choice["text"] = "";
    for (Json& list : choice["logprobs"]) list = Json::array();
  }
  joined["usage"] = nullptr;
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    const Json chunk = Json::parse(events[i].data);
    EXPECT_EQ(chunk["object"], "text_completion");
    if (chunk["choices"].empty()) {
      joined["usage"] = chunk["usage"];
      continue;
    }
    const Json& piece = chunk["choices"][0];
    Json& choice = joined["choices"][piece["index"].get<size_t>()];
    choice["text"] = choice["text"].get<std::string>() + piece["text"].get<std::string>();
    if (piece["logprobs"].is_null()) continue;
    for (const auto& [key, list] : piece["logprobs"].items()) {
      for (const Json& value : list) choice["logprobs"][key].push_back(value);
    }
  }
  EXPECT_EQ(joined, complete);
}

TEST(CompletionAnswer, AnErrorEndsWithDone) {
  const auto events = CompletionStream::fail(http_error({ErrorCode::kInternal, "x"}));
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[1].data, kStreamDone);
}

}  // namespace
}  // namespace tidemill
