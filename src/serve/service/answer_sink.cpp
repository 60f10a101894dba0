#include "serve/service/answer_sink.h"

#include <utility>

#include "serve/chat_answer.h"
#include "serve/completion_answer.h"
#include "serve/messages_answer.h"
#include "serve/responses_answer.h"
#include "serve/sse.h"

namespace tidemill {
namespace {

void append(std::string& out, const std::vector<StreamEvent>& events) {
  for (const StreamEvent& event : events) append_sse(out, event);
}

std::string content_of(const std::vector<OutputDelta>& deltas) {
  std::string text;
  for (const OutputDelta& delta : deltas) text += delta.text;
  return text;
}

// A whole answer says nothing before its end.
class WholeSink : public AnswerSink {
 public:
  explicit WholeSink(Protocol protocol) : protocol_(protocol) {}
  void begin(std::string&) override {}
  void keep_alive(std::string&) override {}
  void fail(const HttpError& error, std::string& out) override {
    out += to_text(error_json(protocol_, error));
  }

 private:
  Protocol protocol_;
};

class StreamSink : public AnswerSink {
 public:
  void keep_alive(std::string& out) override { out += kKeepAlive; }
};

// ---- chat

ChatAnswerOptions chat_options(const SinkOptions& options) {
  return {options.head, options.choices, options.logprobs, options.include_usage};
}

class ChatStreamSink : public StreamSink {
 public:
  explicit ChatStreamSink(const SinkOptions& options)
      : stream_(chat_options(options)), choices_(options.choices) {}
  void begin(std::string& out) override {
    for (int64_t choice = 0; choice < choices_; ++choice) append(out, stream_.begin(choice));
  }
  void push(int64_t choice, const std::vector<OutputDelta>& deltas, std::vector<TokenText> logprobs,
            std::string& out) override {
    append(out, stream_.push(choice, deltas, std::move(logprobs)));
  }
  void end(int64_t choice, AnswerEnd end, const std::string&, std::string& out) override {
    append(out, stream_.end(choice, end));
  }
  void finish(const AnswerUsage& usage, std::string& out) override {
    append(out, stream_.finish(usage));
  }
  void fail(const HttpError& error, std::string& out) override {
    append(out, ChatStream::fail(error));
  }

 private:
  ChatStream stream_;
  int64_t choices_;
};

class ChatWholeSink : public WholeSink {
 public:
  explicit ChatWholeSink(const SinkOptions& options)
      : WholeSink(options.protocol), answer_(chat_options(options)) {}
  void push(int64_t choice, const std::vector<OutputDelta>& deltas, std::vector<TokenText> logprobs,
            std::string&) override {
    answer_.push(choice, deltas, std::move(logprobs));
  }
  void end(int64_t choice, AnswerEnd end, const std::string&, std::string&) override {
    answer_.end(choice, end);
  }
  void finish(const AnswerUsage& usage, std::string& out) override {
    out += to_text(answer_.finish(usage));
  }

 private:
  ChatCompletion answer_;
};

// ---- completions

CompletionAnswerOptions completion_options(const SinkOptions& options) {
  return {options.head, options.choices, options.logprobs, options.include_usage};
}

class CompletionStreamSink : public StreamSink {
 public:
  explicit CompletionStreamSink(const SinkOptions& options)
      : stream_(completion_options(options)) {}
  void begin(std::string&) override {}
  void push(int64_t choice, const std::vector<OutputDelta>& deltas, std::vector<TokenText> logprobs,
            std::string& out) override {
    append(out, stream_.push(choice, content_of(deltas), logprobs));
  }
  void end(int64_t choice, AnswerEnd end, const std::string&, std::string& out) override {
    append(out, stream_.end(choice, end));
  }
  void finish(const AnswerUsage& usage, std::string& out) override {
    append(out, stream_.finish(usage));
  }
  void fail(const HttpError& error, std::string& out) override {
    append(out, CompletionStream::fail(error));
  }

 private:
  CompletionStream stream_;
};

class CompletionWholeSink : public WholeSink {
 public:
  explicit CompletionWholeSink(const SinkOptions& options)
      : WholeSink(options.protocol), answer_(completion_options(options)) {}
  void push(int64_t choice, const std::vector<OutputDelta>& deltas, std::vector<TokenText> logprobs,
            std::string&) override {
    answer_.push(choice, content_of(deltas), std::move(logprobs));
  }
  void end(int64_t choice, AnswerEnd end, const std::string&, std::string&) override {
    answer_.end(choice, end);
  }
  void finish(const AnswerUsage& usage, std::string& out) override {
    out += to_text(answer_.finish(usage));
  }

 private:
  Completion answer_;
};

// ---- messages

class MessagesStreamSink : public StreamSink {
 public:
  explicit MessagesStreamSink(const SinkOptions& options)
      : stream_(options.head), prompt_tokens_(options.prompt_tokens) {}
  void begin(std::string& out) override { append(out, stream_.begin(prompt_tokens_)); }
  void push(int64_t, const std::vector<OutputDelta>& deltas, std::vector<TokenText>,
            std::string& out) override {
    append(out, stream_.push(deltas));
  }
  void end(int64_t, AnswerEnd end, const std::string& stop, std::string&) override {
    end_ = end;
    stop_ = stop;
  }
  void finish(const AnswerUsage& usage, std::string& out) override {
    append(out, stream_.finish(end_, stop_, usage));
  }
  void fail(const HttpError& error, std::string& out) override {
    append(out, MessagesStream::fail(error));
  }
  void keep_alive(std::string& out) override { append_sse(out, MessagesStream::ping()); }

 private:
  MessagesStream stream_;
  int64_t prompt_tokens_;
  AnswerEnd end_ = AnswerEnd::kFailed;
  std::string stop_;
};

class MessagesWholeSink : public WholeSink {
 public:
  explicit MessagesWholeSink(const SinkOptions& options)
      : WholeSink(options.protocol), answer_(options.head) {}
  void push(int64_t, const std::vector<OutputDelta>& deltas, std::vector<TokenText>,
            std::string&) override {
    answer_.push(deltas);
  }
  void end(int64_t, AnswerEnd end, const std::string& stop, std::string&) override {
    end_ = end;
    stop_ = stop;
  }
  void finish(const AnswerUsage& usage, std::string& out) override {
    out += to_text(answer_.finish(end_, stop_, usage));
  }

 private:
  MessagesAnswer answer_;
  AnswerEnd end_ = AnswerEnd::kFailed;
  std::string stop_;
};

// ---- responses: the object of the last event is the whole answer

class ResponsesSink : public AnswerSink {
 public:
  explicit ResponsesSink(const SinkOptions& options)
      : answer_(options.head, options.echo), stream_(options.stream) {}
  void begin(std::string& out) override { write(answer_.begin(), out); }
  void push(int64_t, const std::vector<OutputDelta>& deltas, std::vector<TokenText>,
            std::string& out) override {
    write(answer_.push(deltas), out);
  }
  void end(int64_t, AnswerEnd end, const std::string&, std::string&) override { end_ = end; }
  void finish(const AnswerUsage& usage, std::string& out) override {
    write(answer_.finish(end_, usage), out);
    if (!stream_) out += to_text(answer_.response());
  }
  void fail(const HttpError& error, std::string& out) override {
    if (stream_) {
      write(answer_.fail(error), out);
    } else {
      out += to_text(error_json(Protocol::kResponses, error));
    }
  }
  void keep_alive(std::string& out) override {
    if (stream_) out += kKeepAlive;
  }

 private:
  void write(const std::vector<StreamEvent>& events, std::string& out) const {
    if (stream_) append(out, events);
  }

  ResponsesAnswer answer_;
  bool stream_;
  AnswerEnd end_ = AnswerEnd::kFailed;
};

}  // namespace

Json error_json(Protocol protocol, const HttpError& error) {
  return protocol == Protocol::kMessages ? anthropic_error(error) : openai_error(error);
}

HttpResponse error_response(Protocol protocol, const HttpError& error) {
  HttpResponse response{
      .status = error.status, .headers = {}, .body = to_text(error_json(protocol, error))};
  if (error.retry_after_s) {
    response.headers.push_back({"Retry-After", std::to_string(*error.retry_after_s)});
  }
  return response;
}

HttpResponse stream_head() {
  // Proxies such as nginx hold back what may be buffered.
  return {.content_type = kStreamType,
          .headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}},
          .body = {}};
}

std::unique_ptr<AnswerSink> make_sink(SinkOptions options) {
  switch (options.protocol) {
    case Protocol::kChat:
      if (options.stream) return std::make_unique<ChatStreamSink>(options);
      return std::make_unique<ChatWholeSink>(options);
    case Protocol::kCompletions:
      if (options.stream) return std::make_unique<CompletionStreamSink>(options);
      return std::make_unique<CompletionWholeSink>(options);
    case Protocol::kMessages:
      if (options.stream) return std::make_unique<MessagesStreamSink>(options);
      return std::make_unique<MessagesWholeSink>(options);
    case Protocol::kResponses:
      break;
  }
  return std::make_unique<ResponsesSink>(options);
}

}  // namespace tidemill
