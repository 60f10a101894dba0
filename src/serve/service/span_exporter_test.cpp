#include "serve/service/span_exporter.h"

#include <gtest/gtest.h>

#include "serve/http/http_for_tests.h"

namespace tidemill {
namespace {

ServerUrl url_of(uint16_t port) { return {.host = "127.0.0.1", .port = std::to_string(port)}; }

TEST(SpanExporter, TheCollectorGetsWhatWasAdded) {
  TestServer server;
  std::promise<std::string> body;
  server.routes["/v1/traces"] = [&](TestHandler&, HttpRequest request,
                                    std::shared_ptr<HttpReply> reply) {
    body.set_value(request.body);
    reply->send({.body = "{}"});
  };
  server.start();
  {
    SpanExporter exporter(url_of(server.port()), "here");
    exporter.add({.id = "one", .outcome = "stop", .ended_ms = 5});
  }  // sends the rest
  auto sent = body.get_future();
  ASSERT_EQ(sent.wait_for(kPatience), std::future_status::ready);
  const std::string text = sent.get();
  EXPECT_NE(text.find("\"here\""), std::string::npos);
  EXPECT_NE(text.find("one"), std::string::npos);
}

TEST(SpanExporter, WhatNobodyTakesIsLost) {
  uint16_t port = 0;
  {
    TestServer server;
    server.start();
    port = server.port();
  }
  SpanExporter exporter(url_of(port), "here");
  exporter.add({.id = "one"});
  EXPECT_TRUE(eventually([&] { return exporter.lost() == 1; }));
}

}  // namespace
}  // namespace tidemill
