// Server-sent events: the bytes of one event.
#pragma once

#include <string>
#include <string_view>

namespace tidemill {

struct StreamEvent {
  std::string name;  // "" in the OpenAI protocols but Responses
  std::string data;  // normally JSON of one line
};

// Ends every stream of the OpenAI chat and completions protocols, also after an error.
inline constexpr std::string_view kStreamDone = "[DONE]";

// A comment, which clients skip: keeps proxies from closing a silent stream.
inline constexpr std::string_view kKeepAlive = ": keep-alive\n\n";

// "event: NAME\n" unless empty, "data: " for each line of the data, an empty line. Every line end
// (CR, LF, CRLF) begins a new data line, which a reader joins with LF; in a name, control bytes are
// dropped. So no data can end the event or add a field.
void append_sse(std::string& out, const StreamEvent& event);

}  // namespace tidemill
