/* The engine for programs in C and for bindings: the same nouns as tidemill/engine.h.
 *
 * Calls return TIDEMILL_OK or the number of an error; its text is tidemill_last_error(). No call
 * throws, ends the process or keeps a pointer that it was given. Strings are UTF-8 and end with
 * NUL; a NULL string is an empty one. Any number of engines may be open.
 *
 * Growth: structs get new fields at their end only and carry their size, functions and option names
 * are only added. A program built against an older header runs with a newer library. */
#ifndef TIDEMILL_TIDEMILL_H_
#define TIDEMILL_TIDEMILL_H_

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define TIDEMILL_API __attribute__((visibility("default")))
#else
#define TIDEMILL_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- errors */

/* Numbers as in tidemill/error.h; the thousands digit is the family. */
typedef int32_t tidemill_status;
enum {
  TIDEMILL_OK = 0,
  /* usage */
  TIDEMILL_INVALID_ARGUMENT = 1001,
  TIDEMILL_CONFLICTING_OPTIONS = 1002,
  /* files and the system */
  TIDEMILL_FILE_NOT_FOUND = 2001,
  TIDEMILL_FILE_READ = 2002,
  TIDEMILL_FILE_WRITE = 2003,
  TIDEMILL_OUT_OF_MEMORY = 2004,
  TIDEMILL_DEVICE = 2005,
  /* the model directory */
  TIDEMILL_CONFIG = 3001,
  TIDEMILL_SAFETENSORS = 3002,
  TIDEMILL_TENSOR_MISSING = 3003,
  TIDEMILL_TENSOR_MISMATCH = 3004,
  TIDEMILL_TENSOR_VALUE = 3005,
  TIDEMILL_TOKENIZER = 3006,
  TIDEMILL_ENGRAM_MAP = 3007,
  /* a request */
  TIDEMILL_REQUEST = 4001,
  TIDEMILL_TOKEN_OUT_OF_RANGE = 4002,
  TIDEMILL_CONTEXT_LENGTH = 4003,
  TIDEMILL_UTF8 = 4004,
  /* capacity */
  TIDEMILL_NO_CAPACITY = 5001,
  TIDEMILL_CANCELLED = 5002,
  TIDEMILL_DEADLINE = 5003,
  /* a fault of this library */
  TIDEMILL_INTERNAL = 9001
};

/* Of the calling thread's latest failed call: one line with the numbers and what to change, cut at
 * 1023 bytes. Valid until the thread's next failed call; "" before the first one. Never NULL. */
TIDEMILL_API const char* tidemill_last_error(void);

/* As "major.minor.patch". */
TIDEMILL_API const char* tidemill_version(void);

/* ---- options */

typedef struct tidemill_options tidemill_options;

/* Defaults. NULL: out of memory. One thread at a time; free(NULL) does nothing. */
TIDEMILL_API tidemill_options* tidemill_options_new(void);
TIDEMILL_API void tidemill_options_free(tidemill_options* options);
/* `key` is a field of tidemill::Options (tidemill/options.h), `value` its text: a number, "true" or
 * "false", a word, a path, or numbers with commas between them. On an error, which names key, value
 * and range, nothing changes. What depends on other options or on the model is checked by
 * tidemill_open(). */
TIDEMILL_API tidemill_status tidemill_options_set(tidemill_options* options, const char* key,
                                                  const char* value);
/* One line "key  range" for each option. */
TIDEMILL_API const char* tidemill_options_help(void);

/* ---- engine
 *
 * submit, cancel, stats, drain, flush, info, encode and decode may be called from any thread, poll
 * by one thread at a time, step by one thread at a time, close when no other call is running. */

typedef struct tidemill_engine tidemill_engine;

/* `progress` may be NULL; it is called with 0 to 1 on this thread while weights are read, and must
 * return. On an error *engine is NULL. The options are still the caller's. */
TIDEMILL_API tidemill_status tidemill_open(const tidemill_options* options,
                                           void (*progress)(double fraction, void* user),
                                           void* user, tidemill_engine** engine);
/* Drops what is in the engine. close(NULL) does nothing. */
TIDEMILL_API void tidemill_close(tidemill_engine* engine);

/* ---- requests */

enum { /* tidemill_request.start: where the prompt leaves the answer */
       TIDEMILL_START_CONTENT = 0,
       TIDEMILL_START_REASONING = 1,
       TIDEMILL_START_TOOL_CALLS = 2
};

enum { /* tidemill_request.constraint: what the answer has to look like */
       TIDEMILL_CONSTRAINT_NONE = 0,
       TIDEMILL_CONSTRAINT_JSON_OBJECT = 1,
       TIDEMILL_CONSTRAINT_JSON_SCHEMA = 2,
       TIDEMILL_CONSTRAINT_REGEX = 3,
       TIDEMILL_CONSTRAINT_EBNF = 4,
       TIDEMILL_CONSTRAINT_TOOL_CALLS = 5
};

enum { /* tidemill_request.tool_choice */
       TIDEMILL_TOOLS_AUTO = 0,
       TIDEMILL_TOOLS_REQUIRED = 1,
       TIDEMILL_TOOLS_NAMED = 2
};

typedef struct tidemill_token_value {
  int32_t token;
  float value;
} tidemill_token_value;

/* Fields mean what they mean in tidemill/request.h and tidemill/sampling.h. */
typedef struct tidemill_request {
  size_t struct_size; /* set by tidemill_request_init() */
  uint64_t id;        /* 0: the engine chooses one */

  const int32_t* prompt;
  size_t prompt_count;
  int64_t max_tokens;
  int64_t n;

  const int32_t* stop_tokens;
  size_t stop_token_count;
  const char* const* stop;
  size_t stop_count;
  int32_t ignore_end; /* 0 or 1, like all that is a yes or no */
  int32_t start;

  int32_t constraint;
  int32_t tool_choice;
  int32_t tools_strict;
  int32_t tools_parallel;
  const char* constraint_text;

  float temperature;
  float min_p;
  float top_p;
  int32_t top_k;
  float repetition_penalty;
  float frequency_penalty;
  float presence_penalty;
  int32_t logprobs; /* -1: none */
  uint64_t seed;
  const tidemill_token_value* logit_bias;
  size_t logit_bias_count;

  int64_t drafts;
  uint64_t tenant;
  double timeout_ms; /* INFINITY: none */
  const char* cache_salt;
  const char* tag;
  int32_t priority;
} tidemill_request;

/* Fills in the defaults, sampling as the checkpoint wants it. `struct_size`: sizeof
 * (tidemill_request). */
TIDEMILL_API tidemill_status tidemill_request_init(const tidemill_engine* engine,
                                                   tidemill_request* request, size_t struct_size);
/* Copies all of the request. *id (may be NULL) is its id. */
TIDEMILL_API tidemill_status tidemill_submit(tidemill_engine* engine,
                                             const tidemill_request* request, uint64_t* id);
/* *found (may be NULL): 0 when the id is not known or has ended, which is no error. */
TIDEMILL_API tidemill_status tidemill_cancel(tidemill_engine* engine, uint64_t id, int32_t* found);

/* ---- events */

enum { /* tidemill_event.finish */
       TIDEMILL_FINISH_NONE = 0,
       TIDEMILL_FINISH_STOP = 1,
       TIDEMILL_FINISH_LENGTH = 2,
       TIDEMILL_FINISH_CANCELLED = 3,
       TIDEMILL_FINISH_REFUSED = 4,
       TIDEMILL_FINISH_ERROR = 5
};

/* Of one token. This struct never grows. */
typedef struct tidemill_logprobs {
  tidemill_token_value chosen;
  const tidemill_token_value* top; /* most likely first */
  size_t top_count;
} tidemill_logprobs;

typedef struct tidemill_usage {
  size_t struct_size;
  int64_t prompt_tokens;
  int64_t cached_tokens;
  int64_t output_tokens;
  int64_t steps;
  int64_t preemptions;
  double queued_ms;
  double first_token_ms;
  double total_ms;
  const int64_t* drafted; /* by position in the step */
  const int64_t* accepted;
  size_t draft_positions;
  const char* cache_text;
} tidemill_usage;

typedef struct tidemill_event {
  size_t struct_size;
  uint64_t id;
  int64_t choice;
  const int32_t* tokens;
  size_t token_count;
  const char* text; /* NUL after text_bytes; may hold others */
  size_t text_bytes;
  const tidemill_logprobs* logprobs; /* logprob_count is token_count, or 0: not asked for */
  size_t logprob_count;
  int32_t finish;        /* not NONE in the last event of a choice */
  int32_t last;          /* 1: of the whole request */
  tidemill_status error; /* with REFUSED and ERROR */
  const char* error_text;
  const tidemill_usage* usage; /* NULL but in the last event of a choice */
} tidemill_event;

/* A list of events and all that they point to; independent of the engine. */
typedef struct tidemill_events tidemill_events;

/* All events since the last call; waits for the first one up to wait_ms. No events are no error:
 * *events is then an empty list. */
TIDEMILL_API tidemill_status tidemill_poll(tidemill_engine* engine, int64_t wait_ms,
                                           tidemill_events** events);
TIDEMILL_API size_t tidemill_events_count(const tidemill_events* events);
/* NULL when there is no such event. */
TIDEMILL_API const tidemill_event* tidemill_events_at(const tidemill_events* events, size_t index);
TIDEMILL_API void tidemill_events_free(tidemill_events* events);

/* ---- the loop */

/* With the option own_thread off. *worked (may be NULL): 0 when there was nothing to do. */
TIDEMILL_API tidemill_status tidemill_step(tidemill_engine* engine, int64_t wait_ms,
                                           int32_t* worked);
TIDEMILL_API tidemill_status tidemill_flush(tidemill_engine* engine, int64_t wait_ms);
/* TIDEMILL_DEADLINE: what had not ended by then was cancelled. */
TIDEMILL_API tidemill_status tidemill_drain(tidemill_engine* engine, int64_t wait_ms);
TIDEMILL_API tidemill_status tidemill_clear_cache(tidemill_engine* engine);

/* ---- facts */

typedef struct tidemill_info {
  size_t struct_size; /* set by the caller: sizeof(tidemill_info) */
  int64_t vocabulary;
  int64_t context;
  int64_t max_drafts;
  int64_t prefill_chunk;
  int64_t threads;
  int64_t weight_bytes;
  const int32_t* end_tokens; /* these live as long as the engine */
  size_t end_token_count;
  const char* memory_table;
  const char* cache_rule;
  const char* weights_held;
} tidemill_info;

TIDEMILL_API tidemill_status tidemill_get_info(const tidemill_engine* engine, tidemill_info* info);

/* Counters since tidemill_open(); tidemill/engine.h explains them. */
typedef struct tidemill_stats {
  size_t struct_size; /* set by the caller: sizeof(tidemill_stats) */
  int64_t submitted;
  int64_t finished;
  int64_t waiting;
  int64_t running;
  int64_t preemptions;
  int64_t suspends;
  int64_t steps;
  int64_t prefill_tokens;
  int64_t decode_rows;
  int64_t output_tokens;
  int64_t drafted; /* over all positions */
  int64_t accepted;
  double device_busy_ms;
  double device_idle_ms;
  double plan_ms;
  double commit_ms;
  double exposed_ms;
  int64_t pool_blocks;
  int64_t free_blocks;
  int64_t slots;
  int64_t free_slots;
  int64_t suspended_bytes;
  int64_t cache_lookups;
  int64_t cache_hits;
  int64_t cache_asked_tokens;
  int64_t cache_hit_tokens;
  int64_t cache_blocks;
  int64_t cache_evicted_blocks;
  int64_t window_bytes;
  int64_t grammar_entries;
  int64_t grammar_bytes;
  int64_t grammars_compiling;
} tidemill_stats;

TIDEMILL_API tidemill_status tidemill_get_stats(const tidemill_engine* engine,
                                                tidemill_stats* stats);

/* ---- text
 *
 * Both write what fits into `capacity` elements and set *count to what there is: call with 0 (and
 * NULL) to learn the size. */

/* `bytes` bytes of text; no special token is recognised in it. */
TIDEMILL_API tidemill_status tidemill_encode(const tidemill_engine* engine, const char* text,
                                             size_t bytes, int32_t* tokens, size_t capacity,
                                             size_t* count);
/* No NUL is added. */
TIDEMILL_API tidemill_status tidemill_decode(const tidemill_engine* engine, const int32_t* tokens,
                                             size_t token_count, char* text, size_t capacity,
                                             size_t* count);

#ifdef __cplusplus
}
#endif

#endif /* TIDEMILL_TIDEMILL_H_ */
