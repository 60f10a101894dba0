// What a user would call good: limits on the latencies of one request.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "cli/load/record.h"

namespace tidemill::cli {

struct Slo {
  std::optional<double> ttft_ms;   // intended time to first content chunk
  std::optional<double> itl_ms;    // mean gap between the request's content chunks
  std::optional<double> tpot_ms;   // mean time per output token after the first
  std::optional<double> stall_ms;  // longest gap between content chunks
  std::optional<double> e2e_ms;    // intended time to [DONE]

  bool empty() const { return !(ttft_ms || itl_ms || tpot_ms || stall_ms || e2e_ms); }
  // Only a request that ended well can be good, and one without content has no first token: it
  // misses every `ttft`.
  bool is_met_by(const LoadRecord& record) const;
  // As parse_slo reads it, in milliseconds.
  std::string text() const;
};

// "ttft=500ms,itl=50ms,e2e=10s": ttft, itl, tpot, stall and e2e, each once; times above 0 in ms, s
// or us. Error kInvalidArgument names --slo and what is wrong.
Result<Slo> parse_slo(std::string_view text);

}  // namespace tidemill::cli
