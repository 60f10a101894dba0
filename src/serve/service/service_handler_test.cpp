#include "serve/service/service_handler.h"

#include <gtest/gtest.h>

#include "serve/service/service_for_tests.h"
#include "serve/sse_reader_for_tests.h"

namespace tidemill {
namespace {

Json say(const std::string& text) {
  return {{"messages", {{{"role", "user"}, {"content", text}}}}, {"max_tokens", 200}};
}

Json streamed(Json body) {
  body["stream"] = true;
  return body;
}

std::string content_of(const std::vector<StreamEvent>& events) {
  std::string content;
  for (const StreamEvent& event : events) {
    if (event.data == kStreamDone) continue;
    const Json chunk = Json::parse(event.data);
    for (const Json& choice : chunk["choices"]) {
      const Json& delta = choice["delta"];
      if (delta.contains("content") && delta["content"].is_string()) {
        content += delta["content"].get<std::string>();
      }
    }
  }
  return content;
}

void expect_idle(ServicePlant& plant) {
  EXPECT_EQ(plant.service().answers, 0);
  EXPECT_EQ(plant.service().streams, 0);
  EXPECT_EQ(plant.engine().stats().running, 0);
  const ServeMetrics::Totals totals = plant.service().metrics.totals();
  EXPECT_EQ(totals.in_flight, 0);
}

// ---- answers

TEST(ServiceHandler, WholeAnswer) {
  ServicePlant plant;
  const auto answer = plant.ask("/v1/chat/completions", say("say: Hello, world"));
  EXPECT_EQ(answer->status, 200);
  const Json json = answer->json();
  EXPECT_EQ(json["choices"][0]["message"]["content"], "Hello, world");
  EXPECT_EQ(json["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(json["model"], "mini");
  EXPECT_EQ(json["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
  EXPECT_FALSE(answer->header("X-Request-Id").empty());
  expect_idle(plant);
}

TEST(ServiceHandler, StreamJoinsToTheWholeAnswer) {
  ServicePlant plant;
  const auto answer = plant.ask("/v1/chat/completions", streamed(say("say: Hé, wörld \U0001F30A")));
  EXPECT_EQ(answer->content_type, kStreamType);
  const std::vector<StreamEvent> events = read_sse(answer->body);
  EXPECT_EQ(events.back().data, kStreamDone);
  EXPECT_EQ(content_of(events), "Hé, wörld \U0001F30A");
}

TEST(ServiceHandler, EveryProtocolAnswersAtEveryPathOfItsClients) {
  ServicePlant plant;
  const Json messages = say("say: ok");
  Json responses = {{"input", "say: ok"}};
  Json completions = {{"prompt", "say: ok"}, {"max_tokens", 20}};
  for (const char* path : {"/v1/chat/completions", "/chat/completions", "/beta/chat/completions"}) {
    EXPECT_EQ(plant.ask(path, messages)->json()["object"], "chat.completion") << path;
  }
  for (const char* path : {"/v1/messages", "/anthropic/v1/messages"}) {
    EXPECT_EQ(plant.ask(path, messages)->json()["content"][0]["text"], "ok") << path;
  }
  EXPECT_EQ(plant.ask("/v1/responses", responses)->json()["output"][0]["content"][0]["text"], "ok");
  for (const char* path : {"/v1/completions", "/beta/completions"}) {
    EXPECT_EQ(plant.ask(path, completions)->json()["choices"][0]["text"], "ok") << path;
  }
  EXPECT_EQ(plant.ask("/v1/messages/count_tokens", messages)->json().size(), 1u);
  const Json ids = plant.ask("/tokenize", {{"prompt", "hello"}})->json();
  EXPECT_EQ(ids["count"], ids["tokens"].size());
  EXPECT_EQ(plant.ask("/detokenize", {{"tokens", ids["tokens"]}})->json()["prompt"],
            "<｜begin▁of▁sentence｜>hello");
}

// User case 54, 53: a call while thinking; reasoning apart from content.
TEST(ServiceHandler, ReasoningAndToolCalls) {
  ServicePlant plant;
  Json body =
      say("say: \n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"x\" "
          "string=\"false\">3</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>");
  body["thinking"] = {{"type", "enabled"}};
  body["tools"] = {{{"type", "function"}, {"function", {{"name", "f"}}}}};
  const Json json = plant.ask("/v1/chat/completions", body)->json();
  const Json& message = json["choices"][0]["message"];
  EXPECT_EQ(message["reasoning_content"], "Let me see.");
  EXPECT_EQ(message["tool_calls"][0]["function"]["arguments"], "{\"x\": 3}");
  EXPECT_EQ(json["choices"][0]["finish_reason"], "tool_calls");
  EXPECT_GT(json["usage"]["completion_tokens_details"]["reasoning_tokens"], 0);
  expect_idle(plant);
}

// A stop string of newlines is one of the content, whose leading newlines do not count.
TEST(ServiceHandler, StopStringsCountInTheContent) {
  ServicePlant plant;
  Json body = say("say: \n\na\nb\n\nc");
  body["stop"] = {"\n\n"};
  const Json json = plant.ask("/v1/chat/completions", body)->json();
  EXPECT_EQ(json["choices"][0]["message"]["content"], "a\nb");
  EXPECT_EQ(json["choices"][0]["finish_reason"], "stop");
}

TEST(ServiceHandler, ErrorsNameTheFieldsOfTheirProtocol) {
  ServicePlant plant;
  const auto error_of = [&](const char* path, const Json& body) {
    return plant.ask(path, body)->json()["error"]["message"].get<std::string>();
  };
  const Json call = {{"type", "tool_use"}, {"id", "c"}, {"name", "f"}, {"input", Json::object()}};
  EXPECT_TRUE(error_of("/v1/messages", {{"max_tokens", 5},
                                        {"system", "s"},
                                        {"messages",
                                         {{{"role", "user"}, {"content", "x"}},
                                          {{"role", "assistant"}, {"content", {call}}},
                                          {{"role", "user"}, {"content", "y"}}}}})
                  .starts_with("messages[1]: "));
  EXPECT_TRUE(
      error_of("/v1/responses",
               {{"instructions", "s"},
                {"input", {{{"type", "function_call_output"}, {"call_id", "c"}, {"output", "x"}}}}})
          .starts_with("input[0]"));
  EXPECT_TRUE(error_of("/v1/responses",
                       {{"input", "x"}, {"tools", {{{"type", "function"}, {"name", "a b"}}}}})
                  .starts_with("tools[0].name: "));
  EXPECT_TRUE(error_of("/v1/responses", {{"input", "x"}, {"reasoning", {{"effort", "heroic"}}}})
                  .starts_with("reasoning.effort: "));
}

TEST(ServiceHandler, ModelsInTheShapeOfTheClient) {
  ServicePlant plant;
  HttpRequest request = ServicePlant::request("GET", "/v1/models");
  request.headers = {{"Anthropic-Version", "2023-06-01"}};
  const Json list = plant.send(request)->json();
  EXPECT_EQ(list["data"][0]["type"], "model");
  EXPECT_EQ(list["has_more"], false);
  EXPECT_EQ(plant.get("/anthropic/v1/models/mini")->json()["display_name"], "mini");
}

TEST(ServiceHandler, WhatComesWhileDrainingIsRefusedAlsoBehindItsBody) {
  ServicePlant plant;
  const HttpRequest request = ServicePlant::request("POST", "/v1/chat/completions", say("say: x"));
  EXPECT_FALSE(plant.handler().refuse(request));
  plant.service().draining = true;
  auto received = std::make_shared<Received>();
  plant.handler().handle(request, std::make_shared<ManualReply>(received));
  EXPECT_EQ(received->status, 503);
  EXPECT_EQ(plant.last_record().reason, "draining");
}

// User case 58.
TEST(ServiceHandler, CallsThatWereAnnouncedAndNeverCameAreCounted) {
  const auto unkept_calls = [](const std::string& text) {
    ServicePlant plant;
    Json body = say("say: " + text);
    body["tools"] = {{{"type", "function"}, {"function", {{"name", "Let"}}}},
                     {{"type", "function"}, {"function", {{"name", "g"}}}}};
    body["thinking"] = {{"type", "enabled"}};  // "Let me see." is what is thought
    plant.ask("/v1/chat/completions", body);
    return plant.last_record().unkept_calls;
  };
  EXPECT_EQ(unkept_calls("Done."), 1);
  EXPECT_EQ(unkept_calls("\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"g\">\n\n</｜DSML｜ "
                         "invoke>\n</｜DSML｜ calls>"),
            0);
}

TEST(ServiceHandler, ManyPromptsAndChoices) {
  ServicePlant plant;
  const Json body = {{"prompt", {"say: a", "say: b"}}, {"n", 2}, {"max_tokens", 10}};
  const Json json = plant.ask("/v1/completions", body)->json();
  std::vector<std::string> texts;
  for (const Json& choice : json["choices"]) texts.push_back(choice["text"]);
  EXPECT_EQ(texts, (std::vector<std::string>{"a", "a", "b", "b"}));
  EXPECT_EQ(plant.last_record().choices, 4);
  expect_idle(plant);
}

// The parser sees the stop string; the engine is told to stop, and pays for no more.
TEST(ServiceHandler, StopStringEndsTheEngineRequest) {
  ServicePlant plant;
  Json body = say("count");
  body["stop_sequences"] = {"5"};
  body["max_tokens"] = 100000;
  const Json json = plant.ask("/v1/messages", body)->json();
  EXPECT_EQ(json["stop_reason"], "stop_sequence");
  EXPECT_EQ(json["stop_sequence"], "5");
  EXPECT_LT(json["usage"]["output_tokens"], 20);
  expect_idle(plant);
}

TEST(ServiceHandler, SeedAndIgnoredFieldsAreReported) {
  ServicePlant plant;
  Json body = say("say: x");
  body["seed"] = 4711;
  body["no_such_field"] = 1;
  const auto answer = plant.ask("/v1/chat/completions", body);
  EXPECT_EQ(answer->header("X-Seed"), "4711");
  EXPECT_EQ(answer->header("X-Ignored-Fields"), "no_such_field");
  EXPECT_FALSE(plant.ask("/v1/chat/completions", say("say: x"))->header("X-Seed").empty());
}

// ---- errors

TEST(ServiceHandler, ErrorsHaveTheirStatusAlsoOnStreams) {
  ServicePlant plant;
  EXPECT_EQ(plant.ask("/v1/chat/completions", {{"messages", 3}})->status, 400);
  const auto refused = plant.ask("/v1/chat/completions", streamed(say("refuse: no such grammar")));
  EXPECT_EQ(refused->status, 400);
  EXPECT_EQ(refused->json()["error"]["message"], "no such grammar");
  EXPECT_EQ(plant.last_record().outcome, "refused");
  EXPECT_EQ(plant.last_record().prompt_tokens, 0);

  Json unknown_model = say("say: x");
  unknown_model["model"] = "gpt-9";
  const auto missing = plant.ask("/v1/chat/completions", unknown_model);
  EXPECT_EQ(missing->status, 404);
  EXPECT_EQ(missing->json()["error"]["code"], "model_not_found");

  Json long_one = say("say: x");
  long_one["max_tokens"] = 10'000'000;
  const auto too_long = plant.ask("/v1/chat/completions", long_one);
  EXPECT_EQ(too_long->status, 400);
  EXPECT_EQ(too_long->json()["error"]["code"], "context_length_exceeded");
  EXPECT_EQ(plant.last_record().reason, "context_length");

  const auto envelope = plant.ask("/v1/messages", {{"messages", 3}});
  EXPECT_EQ(envelope->json()["type"], "error");
  expect_idle(plant);
}

// User case 46 and 61: an error after the first event is an event, and [DONE] still comes.
TEST(ServiceHandler, ErrorInTheMiddleOfAStream) {
  ServicePlant plant;
  const auto answer = plant.ask("/v1/chat/completions", streamed(say("fail: partly")));
  EXPECT_EQ(answer->status, 200);
  const std::vector<StreamEvent> events = read_sse(answer->body);
  ASSERT_GE(events.size(), 3u);
  EXPECT_EQ(events.back().data, kStreamDone);
  EXPECT_TRUE(Json::parse(events[events.size() - 2].data).contains("error"));
  EXPECT_EQ(plant.last_record().outcome, "error");
  EXPECT_GT(plant.last_record().output_tokens, 0);
  const auto whole = plant.ask("/v1/chat/completions", say("fail: partly"));
  EXPECT_EQ(whole->status, 500);
  expect_idle(plant);
}

TEST(ServiceHandler, ErrorsOfTheSocketsHaveTheClientsEnvelope) {
  ServicePlant plant;
  const Json none = Json::parse(plant.handler().error_body(431, "too large", nullptr));
  EXPECT_EQ(none["error"]["message"], "too large");
  const HttpRequest messages = ServicePlant::request("POST", "/v1/messages");
  const Json large = Json::parse(plant.handler().error_body(413, "too large", &messages));
  EXPECT_EQ(large["error"]["type"], "request_too_large");
  const Json busy = Json::parse(plant.handler().error_body(503, "busy", nullptr));
  EXPECT_EQ(busy["error"]["code"], "overloaded");
  EXPECT_EQ(busy["error"]["message"], "busy");
}

TEST(ServiceHandler, PathsAndMethods) {
  ServicePlant plant;
  EXPECT_EQ(plant.get("/v1/chat/completions")->status, 405);
  EXPECT_EQ(plant.get("/nothing")->status, 404);
  const auto embeddings = plant.post("/v1/embeddings", {{"input", "x"}});
  EXPECT_EQ(embeddings->status, 404);
  EXPECT_NE(embeddings->body.find("embeddings"), std::string::npos);
  EXPECT_EQ(plant.get("/v1/models")->json()["data"][0]["id"], "mini");
  EXPECT_EQ(plant.get("/v1/models/mini")->json()["id"], "mini");
  EXPECT_EQ(plant.get("/v1/models/none")->status, 404);
  EXPECT_EQ(plant.get("/version")->status, 200);
  EXPECT_EQ(plant.get("/health/live")->status, 200);
  EXPECT_EQ(plant.get("/health/ready")->status, 200);
  EXPECT_EQ(plant.get("/")->content_type, "text/html; charset=utf-8");
  EXPECT_EQ(plant.get("/v1/status")->json()["model"], "mini");
  EXPECT_NE(plant.get("/metrics")->body.find("vllm:num_requests_running"), std::string::npos);
}

// ---- who may

constexpr const char* kKeys =
    "[[key]]\nname = \"ada\"\nmax_concurrent = 1\n"
    "sha256 = \"2bd806c97f0e00af1a1fc3328fa763a9269723c8db8fac4f93af71db186d6e90\"\n"  // alice
    "[[key]]\nname = \"bob\"\nadmin = true\n"
    "sha256 = \"81b637d8fcd2c6da6359e6963113a1170de795e4b725b84d1e0b4cfd9ec58ce9\"\n";  // bob

KeyRing keys() {
  auto ring = KeyRing::parse(kKeys, "keys");
  EXPECT_TRUE(ring) << (ring ? "" : ring.error().message);
  return *std::move(ring);
}

HttpRequest with_key(HttpRequest request, const std::string& key) {
  request.headers.push_back({"Authorization", "Bearer " + key});
  return request;
}

TEST(ServiceHandler, KeysAreCheckedBeforeTheBody) {
  ServicePlant plant({}, {}, keys());
  const HttpRequest chat = ServicePlant::request("POST", "/v1/chat/completions", say("say: x"));
  EXPECT_EQ(plant.handler().refuse(chat)->status, 401);
  EXPECT_EQ(plant.handler().refuse(with_key(chat, "mallory"))->status, 401);
  EXPECT_FALSE(plant.handler().refuse(with_key(chat, "alice")));
  EXPECT_EQ(plant.get("/health/live")->status, 200);
  EXPECT_EQ(plant.get("/v1/models")->status, 401);
  const HttpRequest drain = ServicePlant::request("POST", "/drain");
  EXPECT_EQ(plant.handler().refuse(with_key(drain, "alice"))->status, 403);
  EXPECT_FALSE(plant.handler().refuse(with_key(drain, "bob")));
  EXPECT_EQ(plant.last_record().client, "unknown");
}

TEST(ServiceHandler, UsageIsTheClientsOwn) {
  ServicePlant plant({}, {}, keys());
  const HttpRequest chat = ServicePlant::request("POST", "/v1/chat/completions", say("say: x"));
  plant.finish(plant.send(with_key(chat, "alice")));
  plant.finish(plant.send(with_key(chat, "bob")));
  const HttpRequest usage = ServicePlant::request("GET", "/v1/usage");
  const Json own = plant.send(with_key(usage, "alice"))->json();
  ASSERT_EQ(own["data"].size(), 1u);
  EXPECT_EQ(own["data"][0]["client"], "ada");
  EXPECT_EQ(plant.send(with_key(usage, "bob"))->json()["data"].size(), 2u);
}

TEST(ServiceHandler, ConcurrencyIsLimitedAndGivenBack) {
  ServicePlant plant({}, {}, keys());
  const auto chat = [&](const char* text) {
    return plant.send(
        with_key(ServicePlant::request("POST", "/v1/chat/completions", say(text)), "alice"));
  };
  const auto first = chat("hang");
  const auto second = chat("say: x");
  EXPECT_EQ(second->status, 429);
  EXPECT_EQ(second->header("Retry-After"), "1");
  EXPECT_EQ(plant.last_record().reason, "concurrency");
  plant.turn_until([&] { return plant.engine().stats().running == 1; });
  plant.close(first, HttpClose::kClientGone);
  plant.finish(first);
  const auto third = chat("say: x");
  plant.finish(third);
  EXPECT_EQ(third->status, 200);
  expect_idle(plant);
}

TEST(ServiceHandler, PagesOfOtherSitesAreNotLetIn) {
  ServiceOptions options;
  options.hosts = {"localhost", "127.0.0.1"};
  ServicePlant plant({}, options);
  HttpRequest request = ServicePlant::request("GET", "/v1/models");
  request.headers = {{"Host", "localhost:8000"}};
  EXPECT_EQ(plant.send(request)->status, 200);
  request.headers.push_back({"Origin", "http://localhost:8000"});
  EXPECT_EQ(plant.send(request)->status, 200);
  request.headers.back().value = "https://evil.example";
  EXPECT_EQ(plant.send(request)->status, 403);
  request.headers = {{"Host", "evil.example:8000"}};
  EXPECT_EQ(plant.send(request)->status, 403);
}

TEST(ServiceHandler, AllowedOriginsGetTheirHeaders) {
  ServiceOptions options;
  options.origins = {"https://app.example"};
  ServicePlant plant({}, options);
  HttpRequest request = ServicePlant::request("OPTIONS", "/v1/chat/completions");
  request.headers = {{"Origin", "https://app.example"}};
  const auto preflight = plant.send(request);
  EXPECT_EQ(preflight->status, 204);
  EXPECT_EQ(preflight->header("Access-Control-Allow-Origin"), "https://app.example");
}

// ---- life and death

// User cases 32 and 33: whenever the client leaves, the engine request ends, once.
TEST(ServiceHandler, ClientsThatLeave) {
  for (const bool stream : {false, true}) {
    for (int turns = 0; turns < 6; ++turns) {
      ServicePlant plant;
      Json body = say("count");
      body["max_tokens"] = 100000;
      body["n"] = turns % 2 + 1;
      const auto answer = plant.post("/v1/chat/completions", stream ? streamed(body) : body);
      if (turns > 0) {
        plant.turn_until([&] { return plant.engine().stats().output_tokens >= turns - 1; });
      }
      plant.close(answer, HttpClose::kClientGone);
      EXPECT_TRUE(plant.turn_until([&] { return plant.service().answers == 0; }));
      EXPECT_EQ(plant.last_record().outcome, "abort");
      EXPECT_EQ(plant.last_record().reason, "client_gone");
      EXPECT_LT(plant.engine().stats().output_tokens, 100);
      expect_idle(plant);
    }
  }
}

TEST(ServiceHandler, WhatNeverStartedCostsNothing) {
  ServicePlant plant;
  const auto answer = plant.post("/v1/chat/completions", say("hang"));
  plant.turn_until([&] { return plant.engine().stats().running == 1; });
  plant.close(answer, HttpClose::kClientGone);
  plant.finish(answer);
  EXPECT_EQ(plant.last_record().prompt_tokens, 0);
}

// User case 46.
TEST(ServiceHandler, SilentStreamsAreKeptAlive) {
  ServiceOptions options;
  options.keep_alive_s = 0;
  ServicePlant plant({}, options);
  const auto answer = plant.post("/v1/chat/completions", streamed(say("hang")));
  EXPECT_TRUE(plant.turn_until([&] { return answer->body.find(kKeepAlive) != std::string::npos; }));
  plant.close(answer, HttpClose::kClientGone);
  plant.finish(answer);
}

TEST(ServiceHandler, Deadlines) {
  ServicePlant plant;
  HttpRequest request = ServicePlant::request("POST", "/v1/chat/completions", say("hang"));
  request.headers.push_back({"X-Request-Timeout", "0.05"});
  const auto answer = plant.send(request);
  plant.finish(answer);
  EXPECT_EQ(answer->status, 503);
  EXPECT_EQ(plant.last_record().reason, "deadline");
  request.headers.back().value = "never";
  EXPECT_EQ(plant.send(request)->status, 400);
  expect_idle(plant);
}

// User case 47.
TEST(ServiceHandler, Drain) {
  ServicePlant plant;
  const auto running = plant.post("/v1/chat/completions", streamed(say("say: to the end")));
  const auto endless = plant.post("/v1/chat/completions", streamed(say("hang")));
  EXPECT_EQ(plant.post("/drain", {})->status, 200);
  EXPECT_EQ(plant.get("/health/ready")->status, 503);
  EXPECT_EQ(plant.get("/health/live")->status, 200);
  const auto late = plant.post("/v1/chat/completions", say("say: x"));
  EXPECT_EQ(late->status, 503);
  EXPECT_FALSE(late->header("Retry-After").empty());
  plant.turn_until([&] { return running->ended; });
  EXPECT_EQ(content_of(read_sse(running->body)), "to the end");
  plant.handler().abort_all(draining_error(), "shutdown");
  plant.finish(endless);
  EXPECT_EQ(endless->status, 503);
  expect_idle(plant);
}

TEST(ServiceHandler, CapacityIsRefusedWithRetryAfter) {
  ServicePlant plant({.most_requests = 1});
  const auto first = plant.post("/v1/chat/completions", say("hang"));
  plant.turn_until([&] { return plant.engine().stats().running == 1; });
  const auto second = plant.post("/v1/chat/completions", say("say: x"));
  plant.turn_until([&] { return second->ended; });
  EXPECT_EQ(second->status, 503);
  EXPECT_EQ(second->header("Retry-After"), "1");
  EXPECT_EQ(plant.last_record().reason, "overloaded");
  plant.close(first, HttpClose::kClientGone);
  plant.finish(first);
}

TEST(ServiceHandler, RetriesAreReplayed) {
  ServicePlant plant;
  HttpRequest request =
      ServicePlant::request("POST", "/v1/chat/completions", streamed(say("say: once")));
  request.headers = {{"Idempotency-Key", "k1"}};
  const auto first = plant.send(request);
  EXPECT_EQ(plant.send(request)->status, 409);
  plant.finish(first);
  const auto again = plant.send(request);
  EXPECT_EQ(again->body, first->body);
  EXPECT_EQ(again->header("Idempotent-Replayed"), "true");
  EXPECT_EQ(plant.engine().stats().submitted, 1);
  EXPECT_EQ(plant.last_record().outcome, "replayed");
  request.body = say("say: other").dump();
  EXPECT_EQ(plant.send(request)->status, 422);
}

// ---- numbers (user cases 64 and 77)

TEST(ServiceHandler, UsageMetricsAndLedgerAgree) {
  ServicePlant plant;
  int64_t prompt = 0;
  int64_t cached = 0;
  int64_t output = 0;
  const std::string padding(2000, 'x');
  const auto add = [&](const Json& usage) {
    prompt += usage["prompt_tokens"].get<int64_t>();
    cached += usage["prompt_cache_hit_tokens"].get<int64_t>();
    output += usage["completion_tokens"].get<int64_t>();
  };
  for (int round = 0; round < 3; ++round) {
    Json body = say("say: " + padding);
    body["n"] = 2;
    add(plant.ask("/v1/chat/completions", body)->json()["usage"]);
    body = streamed(say("say: " + padding));
    body["stream_options"] = {{"include_usage", true}};
    const std::vector<StreamEvent> events = read_sse(plant.ask("/v1/chat/completions", body)->body);
    const Json last = Json::parse(events[events.size() - 2].data);
    EXPECT_TRUE(last["choices"].empty());
    add(last["usage"]);
  }
  EXPECT_GT(cached, 0);
  plant.ask("/v1/chat/completions", {{"messages", 3}});  // refused
  Json endless = streamed(say("count"));
  endless["max_tokens"] = 100000;
  const auto aborted = plant.post("/v1/chat/completions", endless);
  EXPECT_TRUE(
      plant.turn_until([&] { return plant.engine().stats().running == 1 && aborted->begun; }));
  plant.close(aborted, HttpClose::kClientGone);
  plant.finish(aborted);
  const RequestRecord record = plant.last_record();
  EXPECT_GT(record.output_tokens, 0);
  prompt += record.prompt_tokens;
  cached += record.cached_tokens;
  output += record.output_tokens;

  const ServeMetrics::Totals totals = plant.service().metrics.totals();
  EXPECT_EQ(totals.prompt_tokens, prompt);
  EXPECT_EQ(totals.cached_tokens, cached);
  EXPECT_EQ(totals.output_tokens, output);
  const Json usage = plant.get("/v1/usage")->json()["data"][0];
  EXPECT_EQ(usage["prompt_tokens"], prompt);
  EXPECT_EQ(usage["cached_tokens"], cached);
  EXPECT_EQ(usage["completion_tokens"], output);
  EXPECT_EQ(plant.engine().stats().output_tokens, output);
  EXPECT_EQ(totals.received, 8);
  EXPECT_EQ(plant.service().metrics.time_to_first_token().count, 7);
  expect_idle(plant);
}

}  // namespace
}  // namespace tidemill
