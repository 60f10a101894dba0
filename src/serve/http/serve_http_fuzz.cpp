// Bytes of a connection as requests: read at once and in pieces they are the same ones, within the
// limits.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "serve/http/request_reader.h"

namespace {

using tidemill::RequestReader;
using Stage = RequestReader::Stage;

constexpr int64_t kHeader = 512;
constexpr int64_t kBody = 300;

void check(bool holds) {
  if (!holds) std::abort();
}

// Method, target, headers and body of each request. What is behind them may be refused sooner or
// later, with more bytes behind it or fewer, but is never a request.
std::vector<std::string> read_requests(std::string_view bytes, size_t step) {
  std::vector<std::string> out;
  size_t offered = 0;
  for (;;) {
    RequestReader reader(kHeader, kBody);
    for (;;) {
      const size_t taken = reader.read(bytes.substr(0, offered));
      check(taken <= offered);
      bytes.remove_prefix(taken);
      offered -= taken;
      if (reader.stage() == Stage::kDone || reader.stage() == Stage::kRefused) break;
      if (taken > 0) continue;
      // What waits is bounded.
      check(offered < 8192);
      if (offered == bytes.size()) return out;
      offered = std::min(bytes.size(), offered + step);
    }
    if (reader.stage() == Stage::kRefused) {
      check(reader.status() >= 400 && reader.status() < 500);
      return out;
    }
    const tidemill::HttpRequest& request = reader.request();
    check(request.path.starts_with('/'));
    check(static_cast<int64_t>(request.body.size()) <= kBody);
    check(reader.content_length() < 0 ||
          reader.content_length() == static_cast<int64_t>(request.body.size()));
    std::string text = request.method + " " + request.path + "?" + request.query + "\n";
    for (const auto& header : request.headers) {
      for (const std::string& part : {header.name, header.value}) {
        check(std::none_of(part.begin(), part.end(),
                           [](char c) { return c == '\r' || c == '\n' || c == '\0'; }));
      }
      text += header.name + ":" + header.value + "\n";
    }
    out.push_back(text + request.body);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(bytes), size);
  const std::vector<std::string> at_once = read_requests(input, size + 1);
  check(at_once == read_requests(input, 1));
  check(at_once == read_requests(input, 7));
  return 0;
}
