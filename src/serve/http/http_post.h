// One request to another server, for what this one reports to its operator's.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "base/result.h"
#include "serve/http/url.h"

namespace tidemill {

// POSTs JSON and waits for the status. Errors: kDeadline; kFileWrite for a connection that fails or
// a status other than 2xx.
Status http_post(const ServerUrl& url, std::string_view path, std::string body,
                 std::chrono::milliseconds timeout);

}  // namespace tidemill
