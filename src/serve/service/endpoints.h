// Answers that need no engine: what the server says about itself.
#pragma once

#include "serve/http/http.h"
#include "serve/service/service.h"

namespace tidemill {

// In the shape of the protocol's clients: Anthropic's (kMessages) or OpenAI's.
Json models_json(const Service& service, Protocol protocol);
// 404 for a name that is not served.
tl::expected<Json, HttpError> model_json(const Service& service, std::string_view name,
                                         Protocol protocol);
// The client's own sums; an admin's and an anonymous one's: those of all.
Json usage_json(const Service& service, const ApiClient& client);
// What the status page shows (docs/manual.md lists the fields).
Json status_json(Service& service);
std::string metrics_text(const Service& service);

}  // namespace tidemill
