#include "serve/service/exchange.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/escape.h"
#include "base/log.h"

namespace tidemill {
namespace {

constexpr std::chrono::seconds kGrace{30};  // that the engine has beyond a request's deadline
constexpr size_t kMostIgnored = 1000;       // bytes of the header X-Ignored-Fields

std::string reason_of(const HttpError& error) {
  if (error.code == "context_length_exceeded") return "context_length";
  if (error.code == "overloaded") return "overloaded";
  if (error.code == "deadline_exceeded") return "deadline";
  return error.status < 500 ? "invalid" : "internal";
}

// As reason of a record.
std::string reason_of(HttpClose close) {
  switch (close) {
    case HttpClose::kClientGone:
      return "client_gone";
    case HttpClose::kSlowReader:
      return "slow_reader";
    case HttpClose::kShutdown:
      return "shutdown";
    case HttpClose::kFailed:
      break;
  }
  return "internal";
}

std::string outcome_of(AnswerEnd end) {
  switch (end) {
    case AnswerEnd::kStop:
    case AnswerEnd::kStopString:
      return "stop";
    case AnswerEnd::kToolCalls:
      return "tool_calls";
    case AnswerEnd::kLength:
      return "length";
    case AnswerEnd::kCancelled:
      return "abort";
    case AnswerEnd::kFailed:
      break;
  }
  return "error";
}

}  // namespace

struct Exchange::Reading {
  tl::expected<PreparedAnswer, HttpError> prepared;
  int64_t submitted = 0;  // requests that the engine has: all, or those before the one it refused
};

Exchange::Exchange(Service& service, HttpThread& thread, uint64_t number, Admission admission,
                   HttpRequest request, std::shared_ptr<HttpReply> reply)
    : service_(service),
      thread_(thread),
      number_(number),
      admission_(std::move(admission)),
      request_(std::move(request)),
      reply_(std::move(reply)),
      keeps_(static_cast<bool>(admission_.claim)),
      last_sent_(request_.arrived),
      deadline_(Deadline::after(
          std::chrono::microseconds(static_cast<int64_t>(1e3 * admission_.timeout_ms)),
          request_.arrived)) {
  ++service_.answers;
  record_.id = admission_.request_id;
  record_.request_id = admission_.request_id;
  record_.arrived_unix_s = unix_seconds() - 1e-3 * now_ms();
  record_.client = admission_.client->name;
  record_.endpoint = admission_.endpoint;
}

Exchange::~Exchange() {
  if (state_ == State::kAnswering) --service_.streams;
  if (state_ != State::kEnded) --service_.answers;
}

double Exchange::now_ms() const { return 1e3 * seconds_since(request_.arrived); }

// ---- reading

void Exchange::start() {
  reply_->on_close([weak = weak_from_this()](HttpClose reason) {
    if (const auto self = weak.lock()) self->closed(reason);
  });
  const auto bytes = static_cast<int64_t>(request_.body.size());
  const bool accepted = service_.workers.submit(
      admission_.client->tenant, bytes,
      [weak = weak_from_this(), is_gone = is_gone_, &service = service_, &thread = thread_,
       number = number_, protocol = admission_.protocol, client = admission_.client,
       deadline = deadline_, body = std::move(request_.body)] {
        auto reading = std::make_shared<Reading>(
            read(service, number, protocol, *client, deadline, body, *is_gone));
        thread.post([weak, reading] {
          if (const auto self = weak.lock()) self->has_read(std::move(*reading));
        });
      });
  if (accepted) return;
  const HttpError error = overloaded_error("requests wait to be read");
  send_error(error);
  end("refused", "overloaded");
}

Exchange::Reading Exchange::read(Service& service, uint64_t number, Protocol protocol,
                                 const ApiClient& client, Deadline deadline,
                                 const std::string& body, const std::atomic<bool>& is_gone) {
  Reading reading{.prepared = tl::unexpected(HttpError{})};
  const auto fail_with = [&](ErrorCode code, const char* message) {
    reading.prepared = tl::unexpected(report({code, message}, "a request for an answer"));
    return std::move(reading);
  };
  try {
    // A client that has left by now is not worth the work.
    if (is_gone.load()) return fail_with(ErrorCode::kCancelled, "the client has left");
    if (service.options.log_bodies) log_info("{}: {}", client.name, body);
    reading.prepared = prepare_answer(protocol, body, service.model, random_nonce(), random_seed());
    if (!reading.prepared) return reading;
    for (Request& request : reading.prepared->requests) {
      if (is_gone.load()) return reading;
      const std::chrono::duration<double, std::milli> left = deadline.remaining();
      if (left.count() <= 0) {
        return fail_with(ErrorCode::kDeadline, "the deadline passed before the request was read");
      }
      request.id = EngineId::of(number, reading.submitted);
      request.tenant = client.tenant;
      request.priority = std::max(request.priority, client.priority_floor);
      request.timeout_ms = left.count();
      if (service.options.cache_per_key) {
        request.cache_salt.insert(0, client.name + '\0');  // no name has a NUL
      }
      const auto id = service.engine.submit(std::move(request));
      if (!id) {
        reading.prepared = tl::unexpected(report(id.error(), "a request for an answer"));
        return reading;
      }
      ++reading.submitted;
    }
  } catch (const std::exception& error) {
    return fail_with(ErrorCode::kInternal, error.what());
  }
  return reading;
}

void Exchange::has_read(Reading reading) {
  open_requests_ = reading.submitted;
  cancelled_.resize(static_cast<size_t>(reading.submitted));
  if (reading.prepared) {
    PreparedAnswer& prepared = *reading.prepared;
    answer_ = std::move(prepared.answer);
    stream_ = prepared.stream;
    record_.id = prepared.id;
    record_.model = prepared.model;
    record_.stream = prepared.stream;
    record_.max_tokens = prepared.max_tokens;
    record_.choices = answer_->choices();
    record_.prompt_tokens = prepared.prompt_tokens;
    last_tokens_.resize(static_cast<size_t>(record_.choices));
    record_.prepared_ms = now_ms();
    add_headers(prepared);
  } else if (!is_answered_) {
    send_error(reading.prepared.error());
    refusal_ = reason_of(reading.prepared.error());
  }
  state_ = State::kQueued;
  if (!answer_ || is_answered_) cancel_engine();
  for (Event& event : std::exchange(early_, {})) push(std::move(event));
  if (state_ == State::kQueued && open_requests_ == 0) finish();
}

// What the client cannot see otherwise: how to get the same answer again, and what of its body had
// no effect.
void Exchange::add_headers(const PreparedAnswer& prepared) {
  admission_.headers.push_back({"X-Seed", std::to_string(prepared.seed)});
  if (prepared.ignored.empty()) return;
  std::string names;
  for (const std::string& name : prepared.ignored) {
    if (names.size() + name.size() > kMostIgnored) break;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", escape_control(name));
  }
  admission_.headers.push_back({"X-Ignored-Fields", names});
}

// ---- the engine's events

void Exchange::take(Event event) {
  if (state_ == State::kReading) {
    early_.push_back(std::move(event));
  } else if (state_ != State::kEnded) {
    push(std::move(event));
  }
}

void Exchange::push(Event event) {
  const int64_t request = EngineId::prompt(event.id);
  if (event.last) --open_requests_;
  if (answer_) {
    note_tokens(request, event);
    std::string out;
    const bool fails =
        event.finish == FinishReason::kRefused || event.finish == FinishReason::kError;
    if (stream_ && !is_answered_ && !fails) begin_stream(out);
    answer_->push(request, event, out);
    send(std::move(out));
    if (answer_->failure()) {
      fail_answer();
    } else if (!event.last && answer_->is_complete(request)) {
      cancel_request(request);
    }
  }
  if (open_requests_ == 0) finish();
}

void Exchange::note_tokens(int64_t request, const Event& event) {
  const auto tokens = static_cast<int64_t>(event.tokens.size());
  if (tokens == 0) return;
  const Clock::time_point now = Clock::now();
  std::optional<Clock::time_point>& last =
      last_tokens_[static_cast<size_t>(answer_->index(request, event.choice))];
  if (last) {
    service_.metrics.inter_token(seconds_between(*last, now), tokens);
  } else {
    const bool is_first = record_.first_token_ms < 0;
    if (is_first) record_.first_token_ms = now_ms();
    service_.metrics.first_tokens(tokens, is_first ? record_.prompt_tokens : 0);
  }
  last = now;
}

// The engine broke off or refused a choice: the whole answer fails.
void Exchange::fail_answer() {
  if (is_answered_) return;
  const HttpError error = report(*answer_->failure(), record_.id,
                                 answer_->has_started() || state_ == State::kAnswering);
  refusal_ = reason_of(error);
  send_error(error);
  cancel_engine();
}

void Exchange::finish() {
  if (answer_ && !is_answered_) {
    std::string out;
    if (stream_) begin_stream(out);
    answer_->finish(out);
    if (stream_) {
      send(std::move(out));
      // It may have been closed by now, which closed() would say in a later turn.
      if (!reply_->is_open()) return end("abort", "client_gone");
      reply_->end();
      is_answered_ = true;
    } else {
      send_whole(200, std::move(out));
    }
    end(outcome_of(answer_->end()), "");
  } else if (!aborted_.empty()) {
    end("abort", aborted_);
  } else {
    const bool has_started = answer_ && answer_->has_started();
    end(has_started ? "error" : "refused", refusal_);
  }
}

// ---- to the client

void Exchange::begin_stream(std::string& out) {
  if (state_ != State::kQueued) return;
  state_ = State::kAnswering;
  record_.status = 200;
  ++service_.streams;
  HttpResponse head = stream_head();
  head.headers.insert(head.headers.end(), admission_.headers.begin(), admission_.headers.end());
  reply_->begin(std::move(head));
  answer_->begin(out);
}

void Exchange::send(std::string bytes) {
  if (bytes.empty() || is_answered_) return;
  last_sent_ = Clock::now();
  record_.bytes_sent += static_cast<int64_t>(bytes.size());
  keep(bytes);
  reply_->write(bytes);
}

void Exchange::keep(const std::string& bytes) {
  keeps_ = keeps_ && kept_.size() + bytes.size() <= admission_.claim.response_limit();
  if (keeps_) kept_ += bytes;
}

void Exchange::send_whole(int status, std::string body) {
  is_answered_ = true;
  record_.status = status;
  record_.bytes_sent += static_cast<int64_t>(body.size());
  keep(body);
  reply_->send({.status = status, .headers = admission_.headers, .body = std::move(body)});
}

void Exchange::send_error(const HttpError& error) {
  if (is_answered_) return;
  if (state_ == State::kAnswering) {
    std::string out;
    answer_->fail(error, out);
    send(std::move(out));
    reply_->end();
    is_answered_ = true;
    return;
  }
  is_answered_ = true;
  record_.status = error.status;
  HttpResponse response = error_response(admission_.protocol, error);
  response.headers.insert(response.headers.end(), admission_.headers.begin(),
                          admission_.headers.end());
  reply_->send(std::move(response));
}

void Exchange::tick(Clock::time_point now) {
  if (is_answered_) return;
  if (state_ == State::kReading && deadline_.expired(now)) {
    send_error(
        http_error({ErrorCode::kDeadline, "the deadline passed before the request was read"}));
    refusal_ = "deadline";
    cancel_engine();
    return;
  }
  if (deadline_.expired(now - kGrace)) {
    log_error("{}: the engine gave no end by the deadline of {} ms", record_.id,
              admission_.timeout_ms);
    abort(http_error({ErrorCode::kDeadline, "the deadline has passed"}, true), "deadline");
    return;
  }
  const bool is_open = state_ == State::kQueued || state_ == State::kAnswering;
  if (!stream_ || !is_open) return;
  if (seconds_between(last_sent_, now) < service_.options.keep_alive_s) return;
  std::string out;
  begin_stream(out);
  answer_->keep_alive(out);
  send(std::move(out));
}

// ---- ends before the end

void Exchange::closed(HttpClose reason) {
  if (is_answered_ && state_ == State::kEnded) return;
  if (reason != HttpClose::kClientGone) {
    log_warning("{}: closed: {} ({} bytes sent)", record_.id, to_string(reason),
                record_.bytes_sent);
  }
  is_answered_ = true;
  aborted_ = reason_of(reason);
  if (record_.status == 0) record_.status = 499;
  cancel_engine();
}

void Exchange::abort(const HttpError& error, std::string reason) {
  if (state_ == State::kEnded || is_answered_) return;
  send_error(error);
  aborted_ = std::move(reason);
  cancel_engine();
}

void Exchange::break_off(const HttpError& error) {
  if (state_ == State::kEnded) return;
  abort(error, "internal");
  end("error", "internal");
}

void Exchange::cancel_engine() {
  is_gone_->store(true);
  for (size_t i = 0; i < cancelled_.size(); ++i) cancel_request(static_cast<int64_t>(i));
}

void Exchange::cancel_request(int64_t request) {
  const auto at = static_cast<size_t>(request);
  if (cancelled_[at]) return;
  cancelled_[at] = true;
  service_.engine.cancel(EngineId::of(number_, request));
}

void Exchange::end(std::string outcome, std::string reason) {
  if (state_ == State::kAnswering) --service_.streams;
  state_ = State::kEnded;
  record_.outcome = std::move(outcome);
  record_.reason = std::move(reason);
  record_.ended_ms = now_ms();
  if (answer_) {
    const AnswerUsage usage = answer_->usage();
    const AnswerCost& cost = answer_->cost();
    record_.prompt_tokens = usage.prompt_tokens;
    record_.cached_tokens = usage.cached_tokens;
    record_.output_tokens = usage.output_tokens;
    record_.reasoning_tokens = usage.reasoning_tokens;
    record_.drafted = cost.drafted;
    record_.accepted = cost.accepted;
    record_.preemptions = cost.preemptions;
    record_.unkept_calls = cost.unkept_calls;
    if (cost.queued_ms >= 0) record_.started_ms = record_.prepared_ms + cost.queued_ms;
  }
  if (admission_.claim && record_.reason.empty()) {
    admission_.claim.finish({.status = record_.status,
                             .content_type = stream_ ? kStreamType : kJsonType,
                             .body = std::move(kept_),
                             .stream = stream_},
                            Clock::now(), keeps_);
  }
  admission_.claim.abandon();
  service_.record(record_);
  service_.quotas.debit(*admission_.client, record_.prompt_tokens + record_.output_tokens,
                        Clock::now());
  admission_.permit.release();  // the next one is admitted by what this one has cost
  --service_.answers;
}

}  // namespace tidemill
