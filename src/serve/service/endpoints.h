// Answers that need no engine: what the server says about itself.
#pragma once

#include "serve/http/http.h"
#include "serve/service/service.h"

namespace tidemill {

Json models_json(const Service& service);
// 404 for a name that is not served.
tl::expected<Json, HttpError> model_json(const Service& service, std::string_view name);
// The client's own sums; an admin's and an anonymous one's: those of all.
Json usage_json(const Service& service, const ApiClient& client);
// What the status page shows (docs/manual.md lists the fields).
Json status_json(Service& service);
std::string metrics_text(const Service& service);

}  // namespace tidemill
