// The body of POST /v1/responses: OpenAI's Responses protocol without state on the server, and
// vLLM's extras.
#pragma once

#include "serve/generation.h"

namespace tidemill {

struct ResponsesRequest : ConversationRequest {
  Json echo;  // fields of the body that the response object repeats
};

// Reasoning, text and calls of the assistant that follow each other are one message of the
// conversation; `developer` is the system. Errors: kRequest with the path of the field.
Result<ResponsesRequest> read_responses_body(const Json& body, const RequestPolicy& policy);

}  // namespace tidemill
