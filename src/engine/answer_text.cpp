#include "engine/answer_text.h"

#include "text/special_tokens.h"

namespace tidemill {
namespace {

std::vector<Marker> markers(const std::vector<std::string>& stop) {
  std::vector<Marker> out;
  for (const std::string& text : stop) out.push_back({.text = text});
  return out;
}

}  // namespace

AnswerText::AnswerText(const Tokenizer& tokenizer, const std::vector<std::string>& stop,
                       AnswerStart start)
    : detokenizer_(tokenizer), scanner_(markers(stop)), has_stops_(!stop.empty()) {
  if (start == AnswerStart::kReasoning)
    end_of_reasoning_ = tokenizer.added_token(special::kThinkEnd);
  scans_ = has_stops_ && !end_of_reasoning_;
}

bool AnswerText::push(int32_t token, std::string& text) {
  const std::string bytes = detokenizer_.push(token);
  if (scans_) return scan(bytes, text);
  text += bytes;
  if (end_of_reasoning_ && token == *end_of_reasoning_) {
    end_of_reasoning_.reset();
    scans_ = has_stops_;
  }
  return false;
}

bool AnswerText::scan(std::string_view bytes, std::string& text) {
  for (const char byte : bytes) {
    held_ += byte;
    if (const auto match = scanner_.step(byte)) {
      text.append(held_, 0, held_.size() - match->size);
      held_.clear();
      return true;
    }
  }
  const size_t certain = held_.size() - scanner_.held();
  text.append(held_, 0, certain);
  held_.erase(0, certain);
  return false;
}

void AnswerText::finish(std::string& text) {
  text += held_;
  held_.clear();
  text += detokenizer_.finish();
}

}  // namespace tidemill
