// The C interface over Engine: checks pointers and sizes, copies in and out, and lets no exception
// through.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "base/escape.h"
#include "base/result.h"
#include "engine/c_api_values.h"
#include "engine/named_options.h"
#include "tidemill/engine.h"
#include "tidemill/tidemill.h"

struct tidemill_options {
  tidemill::Options options;
};

struct tidemill_engine {
  std::unique_ptr<tidemill::Engine> engine;
};

namespace {

using namespace tidemill::c_api;
using tidemill::ErrorCode;
using tidemill::fail;
using tidemill::Status;

// An array: it takes no memory when there is none.
thread_local std::array<char, 1024> last_error{};

tidemill_status remember(ErrorCode code, std::string_view text) noexcept {
  size_t size = std::min(text.size(), last_error.size() - 1);
  // No half of a character at the end.
  while (size < text.size() && size > 0 && (text[size] & 0xc0) == 0x80) --size;
  std::copy_n(text.data(), size, last_error.data());
  last_error[size] = '\0';
  return static_cast<tidemill_status>(code);
}

// The call's Status as a number; its text, and that of what it throws, is the thread's last error.
template <typename Call>
tidemill_status guarded(Call&& call) noexcept {
  try {
    const Status status = call();
    if (status) return TIDEMILL_OK;
    return remember(status.error().code, tidemill::escape_control(status.error().message));
  } catch (const std::bad_alloc&) {
    return remember(ErrorCode::kOutOfMemory, "out of memory");
  } catch (const std::exception& error) {
    return remember(ErrorCode::kInternal, error.what());
  } catch (...) {
    return remember(ErrorCode::kInternal, "an exception of an unknown type");
  }
}

tidemill::Engine::Milliseconds wait_of(int64_t wait_ms) {
  constexpr int64_t kForever = int64_t{1} << 40;  // decades; the clock counts nanoseconds
  return tidemill::Engine::Milliseconds(std::clamp(wait_ms, int64_t{0}, kForever));
}

// `value` as far as the caller's struct goes; what it has beyond that is zero.
template <typename T>
Status give(T value, T* out, std::string_view name) {
  CHECK_OK(needs(out, name));
  const size_t size = out->struct_size;
  if (size < sizeof(size_t) || size > (size_t{1} << 16)) {
    return fail(ErrorCode::kInvalidArgument, "{}->struct_size is {}, not sizeof(*{}): set it first",
                name, size, name);
  }
  value.struct_size = size;
  const size_t known = std::min(size, sizeof(T));
  std::memcpy(static_cast<void*>(out), &value, known);
  std::memset(reinterpret_cast<char*>(out) + known, 0, size - known);
  return {};
}

template <typename Sequence, typename Element>
void give_elements(const Sequence& all, Element* out, size_t capacity, size_t* count) {
  std::copy_n(all.begin(), std::min(all.size(), capacity), out);
  *count = all.size();
}

}  // namespace

const char* tidemill_last_error(void) { return last_error.data(); }

const char* tidemill_version(void) { return TIDEMILL_VERSION; }

tidemill_options* tidemill_options_new(void) { return new (std::nothrow) tidemill_options; }

void tidemill_options_free(tidemill_options* options) { delete options; }

tidemill_status tidemill_options_set(tidemill_options* options, const char* key,
                                     const char* value) {
  return guarded([&]() -> Status {
    CHECK_OK(needs(options, "options"));
    return tidemill::set_option(options->options, text_of(key), text_of(value));
  });
}

const char* tidemill_options_help(void) {
  try {
    static const std::string help = tidemill::option_help();
    return help.c_str();
  } catch (const std::bad_alloc&) {
    return "";
  }
}

tidemill_status tidemill_open(const tidemill_options* options,
                              void (*progress)(double fraction, void* user), void* user,
                              tidemill_engine** engine) {
  return guarded([&]() -> Status {
    CHECK_OK(needs(engine, "engine"));
    *engine = nullptr;
    CHECK_OK(needs(options, "options"));
    std::function<void(double)> report;
    if (progress != nullptr) report = [=](double fraction) { progress(fraction, user); };
    auto handle = std::make_unique<tidemill_engine>();
    TRY(handle->engine, tidemill::Engine::open(options->options, std::move(report)));
    *engine = handle.release();
    return {};
  });
}

void tidemill_close(tidemill_engine* engine) { delete engine; }

tidemill_status tidemill_request_init(const tidemill_engine* engine, tidemill_request* request,
                                      size_t struct_size) {
  return guarded([&]() -> Status {
    CHECK_OK(needs(engine, "engine"));
    CHECK_OK(needs(request, "request"));
    CHECK_OK(check_request_size(struct_size));
    request->struct_size = struct_size;
    return give(default_request(engine->engine->info().defaults), request, "request");
  });
}

tidemill_status tidemill_submit(tidemill_engine* engine, const tidemill_request* request,
                                uint64_t* id) {
  return guarded([&]() -> Status {
    CHECK_OK(needs(engine, "engine"));
    const tidemill::ModelInfo& info = engine->engine->info();
    TRY(tidemill::Request made, request_of(request, info));
    TRY(const tidemill::RequestId given, engine->engine->submit(std::move(made)));
    if (id != nullptr) *id = given;
    return {};
  });
}

tidemill_status tidemill_cancel(tidemill_engine* engine, uint64_t id, int32_t* found) {
  return guarded([&]() -> Status {
    CHECK_OK(needs(engine, "engine"));
    const bool known = engine->engine->cancel(id);
    if (found != nullptr) *found = known ? 1 : 0;
    return {};
  });
}

tidemill_status tidemill_poll(tidemill_engine* engine, int64_t wait_ms, tidemill_events** events) {
  return guarded([&]() -> Status {
    CHECK_OK(needs(events, "events"));
    *events = nullptr;
    CHECK_OK(needs(engine, "engine"));
    auto list = std::make_unique<tidemill_events>();
    list->events = engine->engine->poll(wait_of(wait_ms));
    make_views(*list);
    *events = list.release();
    return {};
  });
}

size_t tidemill_events_count(const tidemill_events* events) {
  return events == nullptr ? 0 : events->views.size();
}

const tidemill_event* tidemill_events_at(const tidemill_events* events, size_t index) {
  return index < tidemill_events_count(events) ? &events->views[index].event : nullptr;
}

void tidemill_events_free(tidemill_events* events) { delete events; }

tidemill_status tidemill_step(tidemill_engine* engine, int64_t wait_ms, int32_t* worked) {
  return guarded([&]() -> Status {
    CHECK_OK(needs(engine, "engine"));
    TRY(const bool did, engine->engine->step(wait_of(wait_ms)));
    if (worked != nullptr) *worked = did ? 1 : 0;
    return {};
  });
}

tidemill_status tidemill_flush(tidemill_engine* engine, int64_t wait_ms) {
  return guarded([&]() -> Status {
    CHECK_OK(needs(engine, "engine"));
    return engine->engine->flush(wait_of(wait_ms));
  });
}

tidemill_status tidemill_drain(tidemill_engine* engine, int64_t wait_ms) {
  return guarded([&]() -> Status {
    CHECK_OK(needs(engine, "engine"));
    return engine->engine->drain(wait_of(wait_ms));
  });
}

tidemill_status tidemill_clear_cache(tidemill_engine* engine) {
  return guarded([&]() -> Status {
    CHECK_OK(needs(engine, "engine"));
    engine->engine->clear_cache();
    return {};
  });
}

tidemill_status tidemill_get_info(const tidemill_engine* engine, tidemill_info* info) {
  return guarded([&]() -> Status {
    CHECK_OK(needs(engine, "engine"));
    return give(info_of(engine->engine->info()), info, "info");
  });
}

tidemill_status tidemill_get_stats(const tidemill_engine* engine, tidemill_stats* stats) {
  return guarded([&]() -> Status {
    CHECK_OK(needs(engine, "engine"));
    return give(stats_of(engine->engine->stats()), stats, "stats");
  });
}

tidemill_status tidemill_encode(const tidemill_engine* engine, const char* text, size_t bytes,
                                int32_t* tokens, size_t capacity, size_t* count) {
  return guarded([&]() -> Status {
    CHECK_OK(needs(engine, "engine"));
    CHECK_OK(needs(text, bytes, SIZE_MAX, "text"));
    CHECK_OK(needs(tokens, capacity, SIZE_MAX, "tokens"));
    CHECK_OK(needs(count, "count"));
    give_elements(engine->engine->encode({text, bytes}), tokens, capacity, count);
    return {};
  });
}

tidemill_status tidemill_decode(const tidemill_engine* engine, const int32_t* tokens,
                                size_t token_count, char* text, size_t capacity, size_t* count) {
  return guarded([&]() -> Status {
    CHECK_OK(needs(engine, "engine"));
    CHECK_OK(needs(tokens, token_count, SIZE_MAX, "tokens"));
    CHECK_OK(needs(text, capacity, SIZE_MAX, "text"));
    CHECK_OK(needs(count, "count"));
    const int64_t vocabulary = engine->engine->info().vocabulary;
    for (size_t i = 0; i < token_count; ++i) {
      if (tokens[i] >= 0 && tokens[i] < vocabulary) continue;
      return fail(ErrorCode::kTokenOutOfRange, "tokens[{}] is {}, not one of 0 to {}", i, tokens[i],
                  vocabulary - 1);
    }
    give_elements(engine->engine->decode({tokens, token_count}), text, capacity, count);
    return {};
  });
}
