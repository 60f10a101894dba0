// The network side of a load run: HTTP/1.1 without TLS, streaming, one thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/load/record.h"
#include "serve/http/url.h"

namespace tidemill::cli {

// What a server may send: a head, one event, a whole answer. More is the error too_large.
inline constexpr uint32_t kMaxAnswerHead = 32 << 10;
inline constexpr size_t kMaxAnswerEvent = 4 << 20;
inline constexpr uint64_t kMaxAnswerBytes = uint64_t{256} << 20;

struct LoadServer {
  ServerUrl url;
  std::string api_key;  // "": no Authorization header
};

struct LoadPlan {
  LoadServer server;
  std::string path;                               // "/v1/chat/completions"; url.base goes before
  std::span<const double> arrivals;               // seconds from the start, ascending
  std::function<std::string(size_t index)> body;  // called once, shortly before the arrival
  // Open at most. A request that finds all in use waits for one, in the order of arrival.
  int64_t connections = 1;
  // Of every request, from its intended time to [DONE]; waiting for a connection counts. So a run
  // ends at the latest so long after its last arrival.
  double timeout_s = 1;
  const std::atomic<bool>* cancel = nullptr;  // polled; aborts what is in flight
  std::function<void(double fraction)> progress;
};

struct LoadRun {
  std::vector<LoadRecord> records;  // in the order of their ends; of all that arrived
  bool interrupted = false;
};

// Sends each request when it is due, however many are unanswered. Nothing is tried again: a
// connection is taken from the pool only if the server has neither closed it nor sent anything.
// Errors: kRequest when the host has no address, kNoCapacity when the process may not open so many
// sockets. What a server does wrong is in the records.
Result<LoadRun> run_load(const LoadPlan& plan);

// The body of a GET within `timeout_s`, e.g. of "/v1/models". Errors: kRequest, with the server's
// words unless it answered with 200.
Result<std::string> http_get(const LoadServer& server, const std::string& path, double timeout_s);

}  // namespace tidemill::cli
