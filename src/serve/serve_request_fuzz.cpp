// Any bytes as the body of any protocol, up to the engine's request; errors up to their envelopes.
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "serve/answer.h"
#include "serve/chat_body.h"
#include "serve/completion_body.h"
#include "serve/http_error.h"
#include "serve/messages_body.h"
#include "serve/responses_body.h"

namespace tidemill {
namespace {

void check_error(const Error& error) {
  const HttpError http = http_error(error);
  if (http.status != 400 || http.message.empty()) std::abort();
  if (to_text(openai_error(http)).empty() || to_text(anthropic_error(http)).empty()) std::abort();
}

void check_generation(Generation& generation) {
  const Request& request = generation.request;
  if (request.n < 1 || request.n > Request::kMaxChoices) std::abort();
  if (!request.prompt.empty()) std::abort();
  if (generation.default_max_tokens < 1) std::abort();
  for (const int64_t prompt : {0, 1000}) {
    if (!limit_tokens(generation, prompt, 1000)) continue;
    if (request.max_tokens < 1 || request.max_tokens > 1000 - prompt) std::abort();
  }
}

void check_conversation_request(Result<ConversationRequest> request) {
  if (!request) return check_error(request.error());
  check_generation(request->generation);
  AnswerReader reader(*request);
  reader.push("a</think>b");
  reader.finish();
}

void check_body(const Json& body) {
  for (const bool strict : {false, true}) {
    const RequestPolicy policy{.hosted_sampling = strict, .refuse_unknown = strict};
    check_conversation_request(read_chat_body(body, policy));
    check_conversation_request(read_messages_body(body, policy));
    if (auto responses = read_responses_body(body, policy)) {
      if (to_text(responses->echo).empty()) std::abort();
      check_conversation_request(std::move(*responses));
    } else {
      check_error(responses.error());
    }
    if (auto completion = read_completion_body(body, policy)) {
      check_generation(completion->generation);
      if (completion->prompts.empty()) std::abort();
    } else {
      check_error(completion.error());
    }
  }
}

}  // namespace
}  // namespace tidemill

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tidemill;
  const Result<Json> body = parse_json({reinterpret_cast<const char*>(data), size});
  if (body) {
    check_body(*body);
  } else {
    check_error(body.error());
  }
  return 0;
}
