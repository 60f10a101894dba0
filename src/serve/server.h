// The server: HTTP in front of an engine. Everything between accept and the last byte of an answer
// happens on the thread of its connection; work threads read bodies, the pump carries events.
//
//   sockets (http/) -> ServiceHandler -> Exchange -> work thread: prepare_answer, Engine::submit
//   Engine::poll -> EventPump -> ServiceHandler::take -> Exchange -> AnswerAssembly -> sockets
#pragma once

#include <cstdint>
#include <memory>

#include "base/clock.h"
#include "base/result.h"
#include "serve/http/http_server.h"
#include "serve/service/service.h"

namespace tidemill {

struct ServerOptions {
  HttpServerOptions http;
  ServiceOptions service;
};

// One caller's thread.
class Server {
 public:
  // Engine and tokenizer must outlive it. Errors: those of Service::create and HttpServer::start.
  static Result<std::unique_ptr<Server>> start(ServerOptions options, KeyRing keys,
                                               ServedEngine& engine, const Tokenizer& tokenizer);
  // As stop() at once.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  uint16_t port() const;
  Service& service();

  // Not ready any more, no new work (503), what is there goes on. Returns at once.
  void drain();
  // drain(), then waits until all answers have ended. Those that have not by the deadline get a
  // final error. Returns how many. The sockets are closed after that.
  int64_t stop(Deadline deadline);

 private:
  class Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tidemill
