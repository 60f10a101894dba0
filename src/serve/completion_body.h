// The body of POST /v1/completions: text to be continued, or the gap between two texts (FIM).
#pragma once

#include <variant>

#include "serve/generation.h"

namespace tidemill {

// A text prompt begins with the begin-of-sentence token and holds no other special token, whatever
// it spells, but those of a gap: <｜fim▁begin｜> prefix <｜fim▁hole｜> suffix <｜fim▁end｜>, the
// layout published for the family. Token ids are taken as they are.
using CompletionPrompt = std::variant<Prompt, std::vector<int32_t>>;

struct CompletionRequest {
  std::vector<CompletionPrompt> prompts;  // one engine request each, n choices each
  bool echo = false;                      // the answer repeats the prompt
  std::vector<std::string> echoes;        // with echo: of each text prompt, as sent
  Generation generation;                  // request.start is kContent
};

// At most Request::kMaxChoices choices over all prompts. Errors: kRequest with the path of the
// field.
Result<CompletionRequest> read_completion_body(const Json& body, const RequestPolicy& policy);

}  // namespace tidemill
