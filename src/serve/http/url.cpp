#include "serve/http/url.h"

#include <algorithm>
#include <charconv>

namespace tidemill {
namespace {

bool is_port(std::string_view text) {
  int value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && rest == end && value > 0 && value < 65536;
}

// Goes into a request as it is, so it can hold no space and no line end.
bool is_plain(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 0x7f; });
}

}  // namespace

std::string ServerUrl::authority() const {
  const bool is_v6 = host.find(':') != std::string::npos;
  return fmt::format(fmt::runtime(is_v6 ? "[{}]:{}" : "{}:{}"), host, port);
}

Result<ServerUrl> parse_url(std::string_view option, std::string_view text) {
  const auto wrong = [&](std::string_view what) {
    return fail(ErrorCode::kInvalidArgument, "{} \"{}\": {}; http://HOST:PORT", option, text, what);
  };
  constexpr std::string_view kScheme = "http://";
  if (text.starts_with("https://")) {
    return wrong("TLS is not spoken here: use the server's plain port, or a proxy in front");
  }
  if (!text.starts_with(kScheme)) return wrong("does not begin with http://");
  if (!is_plain(text)) return wrong("holds spaces or bytes that are not ASCII");
  if (text.find_first_of("?#@") != std::string_view::npos) {
    return wrong("has a user, a query or a fragment");
  }
  std::string_view rest = text.substr(kScheme.size());
  const size_t slash = std::min(rest.find('/'), rest.size());
  std::string_view authority = rest.substr(0, slash);
  std::string_view base = rest.substr(slash);

  ServerUrl url;
  if (authority.starts_with('[')) {
    const size_t close = authority.find(']');
    if (close == std::string_view::npos) return wrong("the address has no \"]\"");
    url.host = authority.substr(1, close - 1);
    authority.remove_prefix(close + 1);
  } else {
    const size_t colon = std::min(authority.find(':'), authority.size());
    url.host = authority.substr(0, colon);
    authority.remove_prefix(colon);
  }
  if (url.host.empty()) return wrong("has no host");
  if (!authority.empty()) {
    if (!authority.starts_with(':') || !is_port(authority.substr(1))) {
      return wrong("the port is not a number from 1 to 65535");
    }
    url.port = authority.substr(1);
  }
  while (base.ends_with('/')) base.remove_suffix(1);
  if (base.ends_with("/v1")) base.remove_suffix(3);
  while (base.ends_with('/')) base.remove_suffix(1);
  url.base = base;
  return url;
}

}  // namespace tidemill
