#include "observe/access_line.h"

#include <fmt/core.h>

#include <algorithm>
#include <string_view>

#include "base/escape.h"

namespace tidemill {
namespace {

class Line {
 public:
  explicit Line(std::string_view first) : text_(first) {}

  void text(std::string_view key, std::string_view value) {
    if (value.empty()) return;
    text_ += fmt::format(" {}={}", key, is_plain(value) ? std::string(value) : quoted(value));
  }
  void number(std::string_view key, int64_t value) { text_ += fmt::format(" {}={}", key, value); }
  void span(std::string_view key, double begin_ms, double end_ms) {
    if (begin_ms >= 0 && end_ms >= 0) text_ += fmt::format(" {}={:.1f}", key, end_ms - begin_ms);
  }
  std::string take() { return std::move(text_); }

 private:
  static bool is_plain(std::string_view value) {
    return std::none_of(value.begin(), value.end(), [](char c) {
      const auto byte = static_cast<unsigned char>(c);
      return byte <= ' ' || byte == 0x7f || c == '"' || c == '=' || c == '\\';
    });
  }
  static std::string quoted(std::string_view value) {
    std::string inside;
    for (const char c : value) {
      if (c == '"' || c == '\\') inside += '\\';
      inside += c;
    }
    return '"' + escape_control(inside) + '"';
  }

  std::string text_;
};

}  // namespace

std::string access_line(const RequestRecord& record) {
  Line line("request");
  line.text("id", record.id);
  if (record.request_id != record.id) line.text("request", record.request_id);
  line.text("client", record.client);
  line.text("endpoint", record.endpoint);
  line.text("model", record.model);
  line.text("stream", record.stream ? "true" : "");
  line.number("status", record.status);
  line.text("outcome", record.outcome);
  line.text("reason", record.reason);
  if (record.choices > 0) {
    line.number("choices", record.choices);
    line.number("prompt", record.prompt_tokens);
    line.number("cached", record.cached_tokens);
    line.number("output", record.output_tokens);
    line.number("reasoning", record.reasoning_tokens);
  }
  if (record.preemptions > 0) line.number("preemptions", record.preemptions);
  line.span("queue_ms", record.prepared_ms, record.started_ms);
  line.span("ttft_ms", 0, record.first_token_ms);
  line.span("total_ms", 0, record.ended_ms);
  line.number("bytes", record.bytes_sent);
  return line.take();
}

}  // namespace tidemill
