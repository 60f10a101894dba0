#include "text/tokenizer.h"
#include "text/utf8.h"

namespace tidemill {

Detokenizer::Detokenizer(const Tokenizer& tokenizer, bool skip_special)
    : tokenizer_(&tokenizer), skip_special_(skip_special) {}

std::string Detokenizer::push(int32_t id) {
  if (skip_special_ && tokenizer_->is_special(id)) return {};
  pending_ += tokenizer_->bytes(id);

  std::string text;
  std::string_view rest = pending_;
  while (!rest.empty()) {
    const Utf8Unit unit = next_utf8(rest);
    if (unit.kind == Utf8Unit::Kind::kIncomplete) break;
    append_utf8(text, unit.code_point);
    rest.remove_prefix(unit.size);
  }
  pending_.erase(0, pending_.size() - rest.size());
  return text;
}

std::string Detokenizer::finish() {
  std::string text = replace_invalid_utf8(pending_);
  pending_.clear();
  return text;
}

}  // namespace tidemill
