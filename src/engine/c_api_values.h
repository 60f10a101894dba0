// The structs of the C interface from and to the engine's own. Private to src/engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "tidemill/engine.h"
#include "tidemill/tidemill.h"

// A list of events, and the views of them that the caller gets.
struct tidemill_events {
  struct View {
    tidemill_event event{};
    tidemill_usage usage{};
    std::vector<tidemill_logprobs> logprobs;
    std::vector<tidemill_token_value> top;  // of all tokens
  };
  std::vector<tidemill::Event> events;
  std::vector<View> views;
};

namespace tidemill::c_api {

// kInvalidArgument with the name: NULL; an array with more than `most` elements or without any.
Status needs(const void* pointer, std::string_view name);
Status needs(const void* array, size_t count, size_t most, std::string_view name);
std::string_view text_of(const char* text);  // NULL is empty

// Of tidemill_request: the first version's, up to what any version can have.
Status check_request_size(size_t size);
tidemill_request default_request(const SamplingParams& sampling);
// The caller's request may be that of an older or a newer header: what it lacks is at its default,
// what it has beyond ours must be 0. Its values are Engine::submit's to check.
Result<Request> request_of(const tidemill_request* request, const ModelInfo& info);

// Makes the views. The list must not move afterwards.
void make_views(tidemill_events& list);
tidemill_info info_of(const ModelInfo& info);  // points into it
tidemill_stats stats_of(const Stats& stats);

}  // namespace tidemill::c_api
