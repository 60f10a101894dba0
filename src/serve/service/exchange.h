// One request for an answer, from its body to its record:
//
//   reading -> queued -> answering -> ended
//
// reading: a work thread has the body. queued: the engine has its requests, nothing has been sent,
// so an error still has its own status. answering: a stream has begun. ended: the record is made;
// that is when all of the engine's last events have come, also for a client that has left.
// Belongs to the thread of its connection.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "observe/request_record.h"
#include "serve/http/http.h"
#include "serve/service/event_pump.h"
#include "serve/service/service.h"

namespace tidemill {

// What the handler has found out about the request before anyone reads its body.
struct Admission {
  Protocol protocol = Protocol::kChat;
  std::string_view endpoint;  // the route's path
  std::string request_id;     // X-Request-Id
  const ApiClient* client = nullptr;
  std::vector<HttpHeader> headers;  // of the response, whatever it is
  Quotas::Permit permit;
  IdempotencyStore::Claim claim;
  double timeout_ms = 0;  // from the request's arrival to the end of its answer
};

class Exchange : public std::enable_shared_from_this<Exchange> {
 public:
  // `number`: EngineId::exchange of its engine requests. Service and thread must outlive it.
  Exchange(Service& service, HttpThread& thread, uint64_t number, Admission admission,
           HttpRequest request, std::shared_ptr<HttpReply> reply);
  ~Exchange();

  // Gives the body to the work threads.
  void start();
  void take(Event event);
  void tick(Clock::time_point now);
  // Ends it with an error for the client; its engine requests are cancelled.
  void abort(const HttpError& error, std::string reason);
  // The same, and the end at once: what the engine still says goes unheard. For a fault of ours.
  void break_off(const HttpError& error);
  bool ended() const { return state_ == State::kEnded; }

 private:
  enum class State { kReading, kQueued, kAnswering, kEnded };
  // Made by a work thread.
  struct Reading;

  static Reading read(Service& service, uint64_t number, Protocol protocol, const ApiClient& client,
                      Deadline deadline, const std::string& body, const std::atomic<bool>& is_gone);
  void has_read(Reading reading);
  void add_headers(const PreparedAnswer& prepared);
  void push(Event event);
  void note_tokens(int64_t request, const Event& event);
  void fail_answer();
  void finish();
  void begin_stream(std::string& out);
  void send(std::string bytes);
  void keep(const std::string& bytes);
  void send_whole(int status, std::string body);
  void send_error(const HttpError& error);
  void closed(HttpClose reason);
  void cancel_engine();
  void cancel_request(int64_t request);
  void end(std::string outcome, std::string reason);
  double now_ms() const;

  Service& service_;
  HttpThread& thread_;
  const uint64_t number_;
  Admission admission_;
  HttpRequest request_;
  std::shared_ptr<HttpReply> reply_;
  // Shared with the work thread, which may outlive the exchange.
  std::shared_ptr<std::atomic<bool>> is_gone_ = std::make_shared<std::atomic<bool>>(false);

  State state_ = State::kReading;
  std::unique_ptr<AnswerAssembly> answer_;
  bool stream_ = false;
  int64_t open_requests_ = 0;    // of the engine: without a last event
  std::vector<bool> cancelled_;  // of each
  std::vector<Event> early_;     // came before has_read()
  std::string aborted_;          // why it was, if it was
  std::string refusal_;          // why the engine or the body ended it, if they did
  bool is_answered_ = false;     // nothing more goes to the client
  std::string kept_;             // with a claim: what was sent
  bool keeps_ = false;           // all of it so far
  Clock::time_point last_sent_;
  std::vector<std::optional<Clock::time_point>> last_tokens_;  // of each choice
  Deadline deadline_;                                          // of the answer
  RequestRecord record_;
};

}  // namespace tidemill
