// Any bytes as the body of a chat request, up to the prompt.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "text/prompt.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tidemill;
  const std::string_view text(reinterpret_cast<const char*>(data), size);

  // With our reader, and with the library's: values that parse_json would refuse.
  const Result<Json> request = parse_json(text);
  if (request && *parse_json(python_json(*request)) != *request) std::abort();
  const Json lenient = Json::parse(text, nullptr, false);
  for (const Json* json : {request ? &*request : nullptr, &lenient}) {
    if (!json) continue;
    const Result<Conversation> conversation = parse_chat_request(*json);
    if (!conversation) continue;
    const Result<Prompt> prompt = render_prompt(*conversation);
    if (!prompt) continue;
    bool was_plain = false;
    for (const PromptPiece& piece : prompt->pieces) {
      if (piece.text.empty() || (was_plain && !piece.special)) std::abort();
      was_plain = !piece.special;
    }
  }
  return 0;
}
