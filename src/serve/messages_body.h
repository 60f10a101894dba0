// The body of POST /v1/messages and /v1/messages/count_tokens: Anthropic's Messages protocol, and
// vLLM's extras.
#pragma once

#include "serve/generation.h"

namespace tidemill {

// Thinking is on unless "thinking" says disabled; a budget has no effect. Text of an assistant in
// last place is continued. A larger max_tokens than the context has room for is cut.
// Errors: kRequest with the path of the field.
Result<ConversationRequest> read_messages_body(const Json& body, const RequestPolicy& policy);

}  // namespace tidemill
