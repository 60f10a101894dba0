// The events of one streamed answer, into its record.
#pragma once

#include <string>
#include <string_view>

#include "cli/load/record.h"
#include "serve/sse.h"

namespace tidemill::cli {

// Of an OpenAI-compatible server, chat or completions. Content is a non-empty `text`,
// `delta.content`, `delta.reasoning_content`, `delta.reasoning` or `delta.tool_calls`; a chunk that
// brings none of them (the role, a finish reason, usage) is no content chunk. Usage may come with
// any chunk; the last one counts.
class AnswerReader {
 public:
  explicit AnswerReader(LoadRecord& record) : record_(record) {}

  // `now_s`: when the event could be read. Sets chunks_s, finish and usage. true: more may follow.
  // false: over; the record's outcome is kOk after [DONE], else kError with its reason
  // (server_error, bad_answer).
  bool take(const StreamEvent& event, double now_s);
  bool over() const { return over_; }

 private:
  bool end_with_error(std::string_view reason, std::string_view detail);
  void take_usage(const Json& usage);

  LoadRecord& record_;
  bool over_ = false;
};

// The record ends as kError.
void set_error(LoadRecord& record, std::string_view reason, std::string_view detail);

// The words of an error body: error.message, error, message or detail of a JSON object, else the
// text itself. Valid UTF-8, cut to kMaxLoadDetail bytes at a character's border.
std::string error_text(std::string_view body);

}  // namespace tidemill::cli
