// The text of an answer as its tokens come: whole characters, without stop strings.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/marker_scanner.h"
#include "text/tokenizer.h"
#include "tidemill/request.h"

namespace tidemill {

// Not thread safe. The tokenizer must outlive it.
class AnswerText {
 public:
  // Stop strings count from the first token after </think> when the answer starts in its
  // reasoning.
  AnswerText(const Tokenizer& tokenizer, const std::vector<std::string>& stop, AnswerStart start);

  // Appends what is certain by now to `text`. True: a stop string is complete; the answer ends
  // before it.
  bool push(int32_t token, std::string& text);
  // The rest, at an end that no stop string made.
  void finish(std::string& text);

 private:
  bool scan(std::string_view bytes, std::string& text);

  Detokenizer detokenizer_;
  MarkerScanner scanner_;
  bool scans_ = false;
  std::optional<int32_t> end_of_reasoning_;  // until it comes
  bool has_stops_;
  std::string held_;  // may be the start of a stop string
};

}  // namespace tidemill
