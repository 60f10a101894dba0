// Byte 0 chooses the options, byte 1 the number of bytes that say how the rest is cut.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "text/output_parser.h"
#include "text/utf8.h"

namespace {

using namespace tidemill;

// The deltas, with the pieces of one text joined.
std::vector<OutputDelta> joined(const OutputParserOptions& options, std::string_view text,
                                std::string_view cuts) {
  OutputParser parser(options);
  const bool is_valid = is_valid_utf8(text);
  std::vector<OutputDelta> all;
  const auto take = [&](const std::vector<OutputDelta>& deltas) {
    for (const OutputDelta& delta : deltas) {
      if (is_valid && !is_valid_utf8(delta.text)) std::abort();
      const bool is_text = delta.kind != OutputDelta::Kind::kToolCallBegin &&
                           delta.kind != OutputDelta::Kind::kToolCallEnd;
      if (is_text && !all.empty() && all.back().kind == delta.kind &&
          all.back().index == delta.index) {
        all.back().text += delta.text;
      } else {
        all.push_back(delta);
      }
    }
  };
  for (size_t i = 0; !text.empty(); ++i) {
    const size_t size = i < cuts.size()
                            ? std::min<size_t>(static_cast<uint8_t>(cuts[i]), text.size())
                            : text.size();
    take(parser.push(text.substr(0, size)));
    text.remove_prefix(size);
  }
  take(parser.finish());
  return all;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view input(reinterpret_cast<const char*>(data), size);
  if (input.size() < 2) return 0;
  const unsigned choice = data[0];
  const size_t cut_count = std::min<size_t>(data[1], input.size() - 2);
  const std::string_view cuts = input.substr(2, cut_count);
  const std::string_view text = input.substr(2 + cut_count);

  OutputParserOptions options;
  options.start = static_cast<Prompt::Start>((choice & 3) % 3);
  options.continues_prefix = choice & 4;
  options.tools_declared = choice & 8;
  if (choice & 16) options.stop = {"STOP", "\n\n"};
  if (choice & 32) options.stop.push_back("aab");

  const std::vector<OutputDelta> whole = joined(options, text, {});
  const std::vector<OutputDelta> pieces = joined(options, text, cuts);
  const bool equal = std::equal(whole.begin(), whole.end(), pieces.begin(), pieces.end(),
                                [](const OutputDelta& a, const OutputDelta& b) {
                                  return a.kind == b.kind && a.text == b.text && a.index == b.index;
                                });
  if (!equal) std::abort();
  return 0;
}
