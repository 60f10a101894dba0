#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

#include "observe/trace.h"
#include "observe/utf8_lossy.h"

namespace tidemill {
namespace {

using Json = nlohmann::ordered_json;

// Of the protobuf's enumerations.
constexpr int kInternalSpan = 1;
constexpr int kServerSpan = 2;
constexpr int kStatusError = 2;

// FNV-1a, then a mixing of all bits. Ids have to differ, not to be secret; 0 is no id.
uint64_t hash(std::string_view text, uint64_t seed) {
  uint64_t h = 0xcbf29ce484222325 ^ seed;
  for (const char c : text) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9;
  h = (h ^ (h >> 27)) * 0x94d049bb133111eb;
  h ^= h >> 31;
  return h == 0 ? 1 : h;
}

// 64-bit integers are strings in protobuf's JSON.
Json integer(int64_t value) { return {{"intValue", fmt::format("{}", value)}}; }
Json text(std::string_view value) { return {{"stringValue", utf8_lossy(value)}}; }
Json attribute(std::string_view key, Json value) {
  return {{"key", key}, {"value", std::move(value)}};
}

std::string nanoseconds(const RequestRecord& record, double ms) {
  // Whole microseconds: a double holds no more of today's date.
  constexpr double kMax = 9e15;
  const double us = std::clamp(record.arrived_unix_s * 1e6 + ms * 1e3, 0.0, kMax);
  return fmt::format("{}000", static_cast<int64_t>(std::llround(us)));
}

Json attributes(const RequestRecord& record) {
  Json list = Json::array();
  list.push_back(attribute("http.route", text(record.endpoint)));
  list.push_back(attribute("http.response.status_code", integer(record.status)));
  list.push_back(attribute("gen_ai.request.model", text(record.model)));
  list.push_back(attribute("gen_ai.response.id", text(record.id)));
  list.push_back(attribute("gen_ai.usage.input_tokens", integer(record.prompt_tokens)));
  list.push_back(attribute("gen_ai.usage.output_tokens", integer(record.output_tokens)));
  if (record.max_tokens > 0) {
    list.push_back(attribute("gen_ai.request.max_tokens", integer(record.max_tokens)));
  }
  if (record.choices > 0) {
    list.push_back(attribute("gen_ai.request.choice.count", integer(record.choices)));
  }
  list.push_back(attribute("gen_ai.response.finish_reasons",
                           {{"arrayValue", {{"values", Json::array({text(record.outcome)})}}}}));
  list.push_back(attribute("tidemill.client", text(record.client)));
  list.push_back(attribute("tidemill.cached_tokens", integer(record.cached_tokens)));
  list.push_back(attribute("tidemill.reasoning_tokens", integer(record.reasoning_tokens)));
  list.push_back(attribute("tidemill.preemptions", integer(record.preemptions)));
  if (!record.reason.empty()) list.push_back(attribute("error.type", text(record.reason)));
  return list;
}

struct SpanIds {
  std::string trace;
  std::string span;
  std::string parent;  // "": none
};

Json span_of(const SpanIds& ids, std::string_view name, int kind, std::string begin,
             std::string end) {
  Json span = {{"traceId", ids.trace}, {"spanId", ids.span}};
  if (!ids.parent.empty()) span["parentSpanId"] = ids.parent;
  span["name"] = utf8_lossy(name);
  span["kind"] = kind;
  span["startTimeUnixNano"] = std::move(begin);
  span["endTimeUnixNano"] = std::move(end);
  return span;
}

void add_spans(Json& spans, const RequestRecord& record) {
  const std::string seed = fmt::format("{}/{}", record.id, record.arrived_unix_s);
  const std::string trace = fmt::format("{:016x}{:016x}", hash(seed, 1), hash(seed, 2));
  const std::string root = fmt::format("{:016x}", hash(seed, 3));
  const std::vector<RequestPhase> phases = request_phases(record);

  Json request = span_of({trace, root, ""}, record.endpoint, kServerSpan, nanoseconds(record, 0),
                         nanoseconds(record, phases.back().end_ms));
  request["attributes"] = attributes(record);
  // Of a server's span only its own faults are errors, not those of the client.
  if (record.outcome == "error" || record.status >= 500) {
    request["status"] = {{"code", kStatusError}, {"message", utf8_lossy(record.reason)}};
  }
  spans.push_back(std::move(request));
  uint64_t number = 4;
  for (const RequestPhase& phase : phases) {
    const SpanIds ids = {trace, fmt::format("{:016x}", hash(seed, number++)), root};
    spans.push_back(span_of(ids, phase.name, kInternalSpan, nanoseconds(record, phase.begin_ms),
                            nanoseconds(record, phase.end_ms)));
  }
}

}  // namespace

std::string otlp_spans(std::span<const RequestRecord> records, std::string_view service_name) {
  Json spans = Json::array();
  for (const RequestRecord& record : records) add_spans(spans, record);
  const Json resource = {
      {"attributes", Json::array({attribute("service.name", text(service_name))})}};
  const Json scope = {{"scope", {{"name", "tidemill"}}}, {"spans", std::move(spans)}};
  const Json body = {{"resourceSpans", Json::array({{{"resource", resource},
                                                     {"scopeSpans", Json::array({scope})}}})}};
  return body.dump();
}

}  // namespace tidemill
