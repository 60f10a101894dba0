#include "serve/http/http.h"

#include "serve/http/http_text.h"

namespace tidemill {

std::string_view HttpHead::header(std::string_view name) const {
  for (const HttpHeader& header : headers) {
    if (equals_ignoring_case(header.name, name)) return header.value;
  }
  return {};
}

std::string_view to_string(HttpClose reason) {
  switch (reason) {
    case HttpClose::kClientGone:
      return "client gone";
    case HttpClose::kSlowReader:
      return "slow reader";
    case HttpClose::kShutdown:
      return "shutdown";
    case HttpClose::kFailed:
      return "failed";
  }
  return "unknown";
}

}  // namespace tidemill
