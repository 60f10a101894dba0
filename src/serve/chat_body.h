// The body of POST /v1/chat/completions: OpenAI's schema, DeepSeek's extensions (thinking,
// reasoning_effort, prefix, reasoning_content), vLLM's extras.
#pragma once

#include "serve/generation.h"

namespace tidemill {

// A forced tool choice holds while thinking too: the call comes after the reasoning. History
// without reasoning_content is taken as it is; what the prompt then lacks, its cached prefix lacks.
// Errors: kRequest with the path of the field.
Result<ConversationRequest> read_chat_body(const Json& body, const RequestPolicy& policy);

}  // namespace tidemill
