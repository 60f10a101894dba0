// What the server itself costs for each token: the whole of it through sockets, with an engine that
// computes nothing and clients in a process of their own; and its parts alone.
//
// Rates are per second of CPU time of this process, over all its threads: tokens/s of one core.
// The engine's own time is among it. At 0 ms per token chunks pile up and many go out with one
// send: that is the cost of making them. At a pace each has a send of its own, and wakes threads.
#include <benchmark/benchmark.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "serve/scripted_engine.h"
#include "serve/server.h"
#include "serve/service/prepare.h"

namespace tidemill {
namespace {

const Tokenizer& tokenizer() {
  static const Tokenizer tokenizer =
      Tokenizer::load(TIDEMILL_SOURCE_DIR "/models/mini/tokenizer.json").value();
  return tokenizer;
}

std::string chat_body(int64_t max_tokens) {
  return Json({{"messages", {{{"role", "user"}, {"content", "count"}}}},
               {"stream", true},
               {"max_tokens", max_tokens}})
      .dump();
}

// ---- clients

[[noreturn]] void fail_client(const char* what) {
  perror(what);
  _exit(1);
}

// What of an answer has come.
struct Arrived {
  std::string end;  // the last bytes
  int64_t chunks = 0;
};

// Chunks whose "data: " ends in the last `fresh` bytes.
int64_t chunks_in(const std::string& text, size_t fresh) {
  constexpr std::string_view kBegin = "data: {";
  const size_t old = text.size() - fresh;
  size_t at = old < kBegin.size() - 1 ? 0 : old - (kBegin.size() - 1);
  int64_t count = 0;
  while ((at = text.find(kBegin, at)) != std::string::npos) {
    ++count;
    at += kBegin.size();
  }
  return count;
}

// Asks once on each connection and reads all answers to their [DONE]: a chunk with the role, one
// for each token, one with the reason of the end. In a forked process.
[[noreturn]] void run_clients(uint16_t port, int64_t streams, int64_t tokens) {
  const std::string body = chat_body(tokens);
  const std::string request =
      "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
      "Content-Length: " +
      std::to_string(body.size()) + "\r\n\r\n" + body;
  const int poll = epoll_create1(0);
  std::vector<Arrived> arrived(1024);  // by descriptor
  for (int64_t i = 0; i < streams; ++i) {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
      fail_client("connect");
    }
    if (static_cast<size_t>(fd) >= arrived.size()) arrived.resize(2 * static_cast<size_t>(fd));
    epoll_event event = {.events = EPOLLIN, .data = {.fd = fd}};
    epoll_ctl(poll, EPOLL_CTL_ADD, fd, &event);
    if (write(fd, request.data(), request.size()) < 0) fail_client("write");
  }
  std::string buffer(1 << 16, '\0');
  std::vector<epoll_event> ready(256);
  while (streams > 0) {
    const int count = epoll_wait(poll, ready.data(), static_cast<int>(ready.size()), 60'000);
    if (count <= 0) fail_client("no more comes");
    for (int i = 0; i < count; ++i) {
      const int fd = ready[static_cast<size_t>(i)].data.fd;
      const ssize_t got = read(fd, buffer.data(), buffer.size());
      if (got <= 0) fail_client("read");
      auto& [end, chunks] = arrived[static_cast<size_t>(fd)];
      end.append(buffer, 0, static_cast<size_t>(got));
      chunks += chunks_in(end, static_cast<size_t>(got));
      if (end.size() > 64) end.erase(0, end.size() - 64);
      if (end.find("[DONE]") == std::string::npos) continue;
      if (chunks != tokens + 2) fail_client("an answer is not whole");
      close(fd);
      --streams;
    }
  }
  _exit(0);
}

// ---- the whole server

// Streams, milliseconds between tokens (0: as fast as the server takes them), tokens of a stream.
void serve_chat_stream(benchmark::State& state) {
  const int64_t streams = state.range(0);
  const int64_t tokens = state.range(2);
  ScriptedOptions scripted;
  scripted.token_ms = static_cast<double>(state.range(1));
  ScriptedEngine engine(tokenizer(), scripted);
  ServerOptions options;
  options.http.port = 0;
  options.http.threads = 1;
  options.service.model_names = {"mini"};
  options.service.policy.thinking = false;
  auto server = Server::start(options, KeyRing::anonymous(), engine, tokenizer());
  if (!server) return state.SkipWithError(server.error().message.c_str());
  for (auto _ : state) {
    const pid_t clients = fork();
    if (clients == 0) run_clients((*server)->port(), streams, tokens);
    int status = 0;
    waitpid(clients, &status, 0);
    if (status != 0) return state.SkipWithError("a client failed");
  }
  state.SetItemsProcessed(state.iterations() * streams * tokens);
}
BENCHMARK(serve_chat_stream)
    ->ArgNames({"streams", "token_ms", "tokens"})
    ->Args({64, 0, 2000})
    ->Args({64, 10, 300})
    ->Args({200, 20, 150})
    ->MeasureProcessCPUTime()
    ->Iterations(1)
    ->Unit(benchmark::kMillisecond);

// ---- the floor

// Nothing but sends: a chunk's bytes to each of 64 sockets in turn. A server that is paced by its
// engine cannot join chunks, so it sends as often.
void bare_sends(benchmark::State& state) {
  constexpr int kStreams = 64;
  const std::string chunk(215, 'x');
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  if (bind(listener, any, size) != 0 || listen(listener, kStreams) != 0 ||
      getsockname(listener, any, &size) != 0) {
    return state.SkipWithError("listen");
  }
  const pid_t reader = fork();
  if (reader == 0) {
    const int poll = epoll_create1(0);
    for (int i = 0; i < kStreams; ++i) {
      const int fd = socket(AF_INET, SOCK_STREAM, 0);
      if (connect(fd, any, size) != 0) fail_client("connect");
      epoll_event event = {.events = EPOLLIN, .data = {.fd = fd}};
      epoll_ctl(poll, EPOLL_CTL_ADD, fd, &event);
    }
    std::string buffer(1 << 16, '\0');
    for (int open = kStreams; open > 0;) {
      epoll_event event = {};
      if (epoll_wait(poll, &event, 1, 60'000) <= 0) fail_client("no more comes");
      if (read(event.data.fd, buffer.data(), buffer.size()) > 0) continue;
      close(event.data.fd);
      --open;
    }
    _exit(0);
  }
  std::vector<int> sockets;
  for (int i = 0; i < kStreams; ++i) {
    sockets.push_back(accept(listener, nullptr, nullptr));
    const int on = 1;
    setsockopt(sockets.back(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
  for (auto _ : state) {
    for (const int fd : sockets) {
      if (send(fd, chunk.data(), chunk.size(), 0) < 0) return state.SkipWithError("send");
    }
  }
  for (const int fd : sockets) close(fd);
  close(listener);
  waitpid(reader, nullptr, 0);
  state.SetItemsProcessed(state.iterations() * kStreams);
}
BENCHMARK(bare_sends)->MeasureProcessCPUTime()->Iterations(1000);

// ---- its parts

// The engine in the server's place above: what of the time there is not the server's.
void scripted_engine(benchmark::State& state) {
  ScriptedEngine engine(tokenizer(), {});
  const std::vector<int32_t> prompt = tokenizer().encode("count");
  int64_t tokens = 0;
  for (auto _ : state) {
    for (int i = 0; i < 64; ++i) {
      Request request;
      request.prompt = prompt;
      request.max_tokens = 1000;
      request.timeout_ms = 1e9;
      if (!engine.submit(std::move(request))) return state.SkipWithError("refused");
    }
    while (engine.stats().running > 0) {
      for (const Event& event : engine.poll(Engine::Milliseconds(0))) {
        tokens += static_cast<int64_t>(event.tokens.size());
      }
    }
  }
  state.SetItemsProcessed(tokens);
}
BENCHMARK(scripted_engine)->Unit(benchmark::kMillisecond);

// An event of one token to the bytes of its stream.
void answer_push(benchmark::State& state, Protocol protocol, const char* field) {
  ServedModel model;
  model.tokenizer = &tokenizer();
  model.context = 131072;
  model.policy.thinking = false;
  model.names = {"mini"};
  Json body = {{"stream", true}};
  if (protocol == Protocol::kCompletions) {
    body[field] = "count";
  } else if (protocol == Protocol::kResponses) {
    body[field] = "count";
  } else {
    body[field] = {{{"role", "user"}, {"content", "count"}}};
  }
  if (protocol == Protocol::kMessages) body["max_tokens"] = 1000;
  auto prepared = prepare_answer(protocol, body.dump(), model, "nonce", 1);
  if (!prepared) return state.SkipWithError(prepared.error().message.c_str());
  AnswerAssembly& answer = *prepared->answer;
  std::string out;
  answer.begin(out);
  Event event;
  event.tokens = {100};
  event.text = " tide";
  int64_t bytes = 0;
  for (auto _ : state) {
    out.clear();
    answer.push(0, event, out);
    bytes += static_cast<int64_t>(out.size());
  }
  state.SetItemsProcessed(state.iterations());
  state.counters["bytes"] =
      benchmark::Counter(static_cast<double>(bytes), benchmark::Counter::kAvgIterations);
}
BENCHMARK_CAPTURE(answer_push, chat, Protocol::kChat, "messages");
BENCHMARK_CAPTURE(answer_push, completions, Protocol::kCompletions, "prompt");
BENCHMARK_CAPTURE(answer_push, messages, Protocol::kMessages, "messages");
BENCHMARK_CAPTURE(answer_push, responses, Protocol::kResponses, "input");

// A short chat from the bytes of its body to what the engine gets.
void prepare_chat(benchmark::State& state) {
  ServedModel model;
  model.tokenizer = &tokenizer();
  model.context = 131072;
  model.policy.thinking = false;
  model.names = {"mini"};
  const std::string body = chat_body(100);
  for (auto _ : state) {
    benchmark::DoNotOptimize(prepare_answer(Protocol::kChat, body, model, "nonce", 1));
  }
}
BENCHMARK(prepare_chat);

}  // namespace
}  // namespace tidemill
