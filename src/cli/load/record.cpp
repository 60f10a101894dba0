#include "cli/load/record.h"

#include <algorithm>

namespace tidemill::cli {

std::string_view to_string(LoadOutcome outcome) {
  switch (outcome) {
    case LoadOutcome::kOk:
      return "ok";
    case LoadOutcome::kError:
      return "error";
    case LoadOutcome::kAborted:
      return "aborted";
  }
  return "?";
}

int64_t LoadRecord::output_tokens() const {
  return has_usage ? completion_tokens : static_cast<int64_t>(chunks_s.size());
}

double LoadRecord::mean_gap_ms() const {
  if (chunks_s.size() < 2) return 0;
  return 1000 * (chunks_s.back() - chunks_s.front()) / static_cast<double>(chunks_s.size() - 1);
}

double LoadRecord::longest_gap_ms() const {
  double longest = 0;
  for (size_t i = 1; i < chunks_s.size(); ++i) {
    longest = std::max(longest, chunks_s[i] - chunks_s[i - 1]);
  }
  return 1000 * longest;
}

double LoadRecord::tpot_ms() const {
  const int64_t later = output_tokens() - 1;
  if (chunks_s.size() < 2 || later < 1) return 0;
  return 1000 * (chunks_s.back() - chunks_s.front()) / static_cast<double>(later);
}

Json load_record_json(const LoadRecord& record, bool gaps) {
  const bool any = !record.chunks_s.empty();
  Json json = {{"record", "request"}, {"index", record.index}};
  json["outcome"] = to_string(record.outcome);
  json["status"] = record.status;
  if (!record.reason.empty()) json["reason"] = record.reason;
  if (!record.detail.empty()) json["detail"] = record.detail;
  json["finish"] = record.finish.empty() ? Json() : Json(record.finish);
  json["intended_ms"] = 1000 * record.intended_s;
  json["sent_ms"] = record.sent() ? Json(1000 * record.sent_s) : Json();
  json["waited"] = record.waited;
  json["ttft_ms"] = any ? Json(record.ttft_ms()) : Json();
  json["e2e_ms"] = record.e2e_ms();
  json["chunks"] = record.chunks_s.size();
  json["mean_gap_ms"] = record.mean_gap_ms();
  json["longest_gap_ms"] = record.longest_gap_ms();
  json["tpot_ms"] = record.tpot_ms();
  json["usage"] = record.has_usage;
  json["prompt_tokens"] = record.prompt_tokens;
  json["cached_tokens"] = record.cached_tokens;
  json["output_tokens"] = record.output_tokens();
  if (gaps) {
    Json list = Json::array();
    for (size_t i = 1; i < record.chunks_s.size(); ++i) {
      list.push_back(1000 * (record.chunks_s[i] - record.chunks_s[i - 1]));
    }
    json["gaps_ms"] = std::move(list);
  }
  return json;
}

}  // namespace tidemill::cli
