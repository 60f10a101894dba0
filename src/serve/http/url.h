// Where a server is.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace tidemill {

struct ServerUrl {
  std::string host;  // a name or an address; IPv6 without brackets
  std::string port = "80";
  std::string base;  // "" or "/prefix": in front of "/v1/..."

  // For the Host header and messages: "[::1]:8000".
  std::string authority() const;
  std::string text() const { return "http://" + authority() + base; }
};

// "http://HOST[:PORT][/PREFIX]"; a last "/" or "/v1" is dropped, so that the base URL of an OpenAI
// client fits too. Error kInvalidArgument names `option`, the flag that it came from.
Result<ServerUrl> parse_url(std::string_view option, std::string_view text);

}  // namespace tidemill
