// What happened to each request of a load run, and when. Times and words only: no sockets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/json.h"

namespace tidemill::cli {

enum class LoadOutcome {
  kOk,
  kError,    // `reason` says which
  kAborted,  // in flight, or waiting for a connection, when the run was interrupted
};
std::string_view to_string(LoadOutcome outcome);

// Times are seconds from the start of the run.
struct LoadRecord {
  size_t index = 0;
  // Its place on the arrival clock. What a user waits for starts here, even if the generator was
  // late or had no connection left: otherwise a slow server would slow down its own measurement.
  double intended_s = 0;
  // When the client began with it: to connect, or to write on an open connection. < 0: never.
  double sent_s = -1;
  double end_s = 0;     // [DONE], or the error
  bool waited = false;  // no connection was free when it was due

  LoadOutcome outcome = LoadOutcome::kAborted;
  int status = 0;      // HTTP; 0: there was none
  std::string reason;  // of kError: http, connect, closed, timeout, no_done, bad_answer,
                       // server_error, too_large
  std::string detail;  // the server's or the system's words, at most kMaxLoadDetail bytes
  std::string finish;  // the last finish_reason

  // When each content chunk could be read: an event with text, reasoning or a part of a tool call.
  // Chunks that one read brought share a time.
  std::vector<double> chunks_s;
  bool has_usage = false;
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t completion_tokens = 0;

  bool ok() const { return outcome == LoadOutcome::kOk; }
  bool sent() const { return sent_s >= 0; }
  double lag_ms() const { return 1000 * (sent_s - intended_s); }
  // As the server's usage says; without one, a token for each chunk.
  int64_t output_tokens() const;

  // From the intended time. The first is of a record with chunks only.
  double ttft_ms() const { return 1000 * (chunks_s.front() - intended_s); }
  double e2e_ms() const { return 1000 * (end_s - intended_s); }

  // Between neighbouring chunks, undivided. 0 with less than two.
  double mean_gap_ms() const;
  double longest_gap_ms() const;
  // Per token after the first: from the first chunk to the last, over output_tokens() - 1. Chunks
  // may hold several tokens (drafts), or some tokens no text. 0 with less than two.
  double tpot_ms() const;
};

inline constexpr size_t kMaxLoadDetail = 300;

// `gaps`: every gap between chunks in it.
Json load_record_json(const LoadRecord& record, bool gaps);

}  // namespace tidemill::cli
