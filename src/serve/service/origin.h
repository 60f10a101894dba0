// Where a request comes from: a program, or a script of a web page in somebody's browser.
//
// Scripts of any page can send requests to a server that the user's machine reaches, also by a name
// of theirs that resolves to it. Neither is let in unless the operator names the page.
#pragma once

#include <optional>
#include <vector>

#include "serve/http/http.h"
#include "serve/http_error.h"
#include "serve/service/service.h"

namespace tidemill {

// 403: a name in Host that is not answered to, or a page that was not named.
std::optional<HttpError> check_origin(const ServiceOptions& options, const HttpHead& head);

// From this machine, not through a proxy on it, and not by a name that somebody else made resolve
// to it.
bool is_local(const HttpHead& head);

// What a browser needs to hand the answer to the page. Nothing for requests without Origin.
void add_origin_headers(const HttpHead& head, std::vector<HttpHeader>& headers);

// The answer to a browser that asks before it sends. check_origin() has let it pass.
HttpResponse preflight(const HttpHead& head);

}  // namespace tidemill
