/* The C interface as a program in C99 meets it: answers of the bundled model, and bad input. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tidemill/tidemill.h"

static int failures = 0;

#define EXPECT(condition)                                                             \
  do {                                                                                \
    if (!(condition)) {                                                               \
      fprintf(stderr, "line %d: not so: %s (last error: %s)\n", __LINE__, #condition, \
              tidemill_last_error());                                                 \
      ++failures;                                                                     \
    }                                                                                 \
  } while (0)

/* The call fails with this number, and its text names `word`. */
#define EXPECT_ERROR(call, number, word)                                                         \
  do {                                                                                           \
    const tidemill_status got = (call);                                                          \
    if (got != (number) || strstr(tidemill_last_error(), word) == NULL) {                        \
      fprintf(stderr, "line %d: %s is %d (%s), not %d with \"%s\"\n", __LINE__, #call, (int)got, \
              tidemill_last_error(), (int)(number), word);                                       \
      ++failures;                                                                                \
    }                                                                                            \
  } while (0)

#define EXPECT_OK(call) EXPECT((call) == TIDEMILL_OK)

enum { kMaxTokens = 64, kMaxText = 4096, kChoices = 4 };

typedef struct answer {
  int32_t tokens[kMaxTokens];
  size_t token_count;
  size_t logprob_count;
  char text[kMaxText];
  int32_t finish;
  int32_t finishes; /* how many events ended it: must be 1 */
  tidemill_status error;
  char error_text[1024];
  int64_t prompt_tokens, output_tokens;
} answer;

static const char* model_directory(void) {
  static char path[4096];
  const char* source = getenv("TIDEMILL_SOURCE_DIR");
  snprintf(path, sizeof(path), "%s/models/mini", source == NULL ? "." : source);
  return path;
}

static tidemill_engine* open_engine(const char* own_thread) {
  tidemill_options* options = tidemill_options_new();
  tidemill_engine* engine = NULL;
  EXPECT_OK(tidemill_options_set(options, "model", model_directory()));
  EXPECT_OK(tidemill_options_set(options, "context", "2048"));
  EXPECT_OK(tidemill_options_set(options, "sequences", "4"));
  EXPECT_OK(tidemill_options_set(options, "drafts", "fixed:2"));
  EXPECT_OK(tidemill_options_set(options, "own_thread", own_thread));
  EXPECT_OK(tidemill_open(options, NULL, NULL, &engine));
  tidemill_options_free(options);
  if (engine == NULL) exit(1);
  return engine;
}

static void add_event(const tidemill_event* event, answer* answers) {
  answer* out = &answers[event->choice];
  size_t i;
  EXPECT(event->struct_size >= sizeof(tidemill_event));
  EXPECT(event->text[event->text_bytes] == '\0');
  EXPECT(event->logprob_count == 0 || event->logprob_count == event->token_count);
  for (i = 0; i < event->token_count && out->token_count < kMaxTokens; ++i) {
    out->tokens[out->token_count++] = event->tokens[i];
  }
  strncat(out->text, event->text, sizeof(out->text) - strlen(out->text) - 1);
  out->logprob_count += event->logprob_count;
  for (i = 0; i < event->logprob_count; ++i) {
    EXPECT(event->logprobs[i].chosen.token == event->tokens[i]);
    EXPECT(event->logprobs[i].chosen.value <= 0);
    EXPECT(event->logprobs[i].top_count == 2);
    EXPECT(event->logprobs[i].top[0].token == event->tokens[i]); /* greedy */
    EXPECT(event->logprobs[i].top[0].value >= event->logprobs[i].top[1].value);
  }
  EXPECT((event->usage != NULL) == (event->finish != TIDEMILL_FINISH_NONE));
  if (event->finish == TIDEMILL_FINISH_NONE) return;
  out->finish = event->finish;
  ++out->finishes;
  out->error = event->error;
  snprintf(out->error_text, sizeof(out->error_text), "%s", event->error_text);
  out->prompt_tokens = event->usage->prompt_tokens;
  out->output_tokens = event->usage->output_tokens;
}

/* Submits and polls to the end; steps by itself when the engine has no thread. */
static void ask(tidemill_engine* engine, const tidemill_request* request, int steps,
                answer* answers) {
  uint64_t id = 0;
  int done = 0, rounds = 0;
  memset(answers, 0, kChoices * sizeof(*answers));
  if (tidemill_submit(engine, request, &id) != TIDEMILL_OK) {
    fprintf(stderr, "submit: %s\n", tidemill_last_error());
    ++failures;
    return;
  }
  EXPECT(id != 0);
  while (!done && rounds++ < 10000) {
    tidemill_events* events = NULL;
    size_t i;
    if (steps) EXPECT_OK(tidemill_step(engine, 1000, NULL));
    EXPECT_OK(tidemill_poll(engine, steps ? 0 : 1000, &events));
    for (i = 0; i < tidemill_events_count(events); ++i) {
      const tidemill_event* event = tidemill_events_at(events, i);
      EXPECT(event->id == id);
      add_event(event, answers);
      if (event->last) done = 1;
    }
    EXPECT(tidemill_events_at(events, tidemill_events_count(events)) == NULL);
    tidemill_events_free(events);
  }
  EXPECT(done);
}

static tidemill_request greedy(const tidemill_engine* engine, const int32_t* prompt,
                               size_t prompt_count) {
  tidemill_request request;
  EXPECT_OK(tidemill_request_init(engine, &request, sizeof(request)));
  request.prompt = prompt;
  request.prompt_count = prompt_count;
  request.temperature = 0;
  request.max_tokens = 12;
  return request;
}

static void test_options(void) {
  tidemill_options* options = tidemill_options_new();
  tidemill_engine* engine = (tidemill_engine*)options;
  EXPECT_ERROR(tidemill_options_set(options, "contxt", "1"), TIDEMILL_INVALID_ARGUMENT, "contxt");
  EXPECT_ERROR(tidemill_options_set(options, "contxt", "1"), TIDEMILL_INVALID_ARGUMENT,
               "sequences");
  EXPECT_ERROR(tidemill_options_set(options, "context", "many"), TIDEMILL_INVALID_ARGUMENT, "many");
  EXPECT_ERROR(tidemill_options_set(options, "context", "-1"), TIDEMILL_INVALID_ARGUMENT,
               "from 0 to");
  EXPECT_ERROR(tidemill_options_set(options, "sequences", NULL), TIDEMILL_INVALID_ARGUMENT,
               "sequences");
  EXPECT_ERROR(tidemill_options_set(options, "prefix_cache", "yes"), TIDEMILL_INVALID_ARGUMENT,
               "true or false");
  EXPECT_ERROR(tidemill_options_set(NULL, "context", "1"), TIDEMILL_INVALID_ARGUMENT, "NULL");
  EXPECT(strstr(tidemill_options_help(), "grammar_cache_bytes") != NULL);

  EXPECT_OK(tidemill_options_set(options, "model", "/nonexistent/model"));
  EXPECT_ERROR(tidemill_open(options, NULL, NULL, &engine), TIDEMILL_FILE_NOT_FOUND,
               "/nonexistent/model");
  EXPECT(engine == NULL);
  EXPECT_ERROR(tidemill_open(options, NULL, NULL, NULL), TIDEMILL_INVALID_ARGUMENT, "engine");
  EXPECT_ERROR(tidemill_open(NULL, NULL, NULL, &engine), TIDEMILL_INVALID_ARGUMENT, "options");

  EXPECT_OK(tidemill_options_set(options, "model", model_directory()));
  EXPECT_OK(tidemill_options_set(options, "drafts", "fixed:many"));
  EXPECT_ERROR(tidemill_open(options, NULL, NULL, &engine), TIDEMILL_INVALID_ARGUMENT,
               "fixed:many");
  tidemill_options_free(options);
  tidemill_options_free(NULL);
  tidemill_close(NULL);
  tidemill_events_free(NULL);
}

static void test_facts(tidemill_engine* engine) {
  struct {
    tidemill_info known;
    char newer[8];
  } info;
  tidemill_stats stats;
  memset(&info, 1, sizeof(info));
  info.known.struct_size = sizeof(info);
  EXPECT_OK(tidemill_get_info(engine, &info.known));
  EXPECT(info.known.vocabulary == 8192 && info.known.context == 2048);
  EXPECT(info.known.max_drafts == 5 && info.known.end_token_count >= 1);
  EXPECT(strlen(info.known.memory_table) > 0);
  EXPECT(strstr(info.known.weights_held, "MiB mapped") != NULL); /* small */
  EXPECT(info.newer[0] == 0 && info.known.struct_size == sizeof(info));

  stats.struct_size = 2 * sizeof(size_t); /* of a very old header */
  stats.running = 77;
  EXPECT_OK(tidemill_get_stats(engine, &stats));
  EXPECT(stats.running == 77);
  stats.struct_size = 0;
  EXPECT_ERROR(tidemill_get_stats(engine, &stats), TIDEMILL_INVALID_ARGUMENT, "struct_size");
  EXPECT_ERROR(tidemill_get_stats(engine, NULL), TIDEMILL_INVALID_ARGUMENT, "NULL");
  EXPECT(strlen(tidemill_version()) >= 5);
}

static void test_text(const tidemill_engine* engine) {
  const char* text = "The sea \xe6\xb0\xb4 <\xef\xbd\x9cUser\xef\xbd\x9c>";
  int32_t tokens[kMaxTokens];
  char back[kMaxText];
  size_t count = 0, bytes = 0;
  EXPECT_OK(tidemill_encode(engine, text, strlen(text), NULL, 0, &count));
  EXPECT(count > 4 && count < kMaxTokens);
  EXPECT_OK(tidemill_encode(engine, text, strlen(text), tokens, kMaxTokens, &count));
  EXPECT_OK(tidemill_decode(engine, tokens, count, back, sizeof(back), &bytes));
  EXPECT(bytes == strlen(text) && memcmp(back, text, bytes) == 0);
  EXPECT_OK(tidemill_encode(engine, NULL, 0, NULL, 0, &count));
  EXPECT(count == 0);
  tokens[0] = 8192;
  EXPECT_ERROR(tidemill_decode(engine, tokens, 1, back, sizeof(back), &bytes),
               TIDEMILL_TOKEN_OUT_OF_RANGE, "8192");
  EXPECT_ERROR(tidemill_encode(engine, NULL, 3, NULL, 0, &count), TIDEMILL_INVALID_ARGUMENT,
               "text");
}

static void test_answers(tidemill_engine* engine, const tidemill_request* base,
                         const answer* expected) {
  answer answers[kChoices];
  char decoded[kMaxText];
  size_t bytes = 0;
  int k;
  tidemill_request request = *base;
  request.n = 3;
  request.logprobs = 2;
  ask(engine, &request, 0, answers);
  for (k = 0; k < 3; ++k) { /* greedy: all the same */
    EXPECT(answers[k].finishes == 1 && answers[k].token_count == expected->token_count);
    EXPECT(memcmp(answers[k].tokens, expected->tokens, sizeof(expected->tokens)) == 0);
    EXPECT(answers[k].logprob_count == expected->token_count && expected->logprob_count == 0);
    EXPECT(answers[k].prompt_tokens == (int64_t)base->prompt_count);
    EXPECT(answers[k].output_tokens == (int64_t)expected->token_count);
  }
  EXPECT_OK(tidemill_decode(engine, answers[0].tokens, answers[0].token_count, decoded,
                            sizeof(decoded), &bytes));
  EXPECT(bytes == strlen(answers[0].text) && memcmp(decoded, answers[0].text, bytes) == 0);

  request = *base;
  request.constraint = TIDEMILL_CONSTRAINT_REGEX;
  request.constraint_text = "[ab]{3}";
  ask(engine, &request, 0, answers);
  EXPECT(answers[0].finish == TIDEMILL_FINISH_STOP && strlen(answers[0].text) == 3);
  EXPECT(strspn(answers[0].text, "ab") == 3);

  request.constraint = TIDEMILL_CONSTRAINT_JSON_SCHEMA;
  request.constraint_text = "{\"type\": \"integer\", \"minimum\": 2, \"maximum\": 1}";
  ask(engine, &request, 0, answers);
  EXPECT(answers[0].finish == TIDEMILL_FINISH_REFUSED && answers[0].finishes == 1);
  EXPECT(answers[0].error == TIDEMILL_REQUEST && strlen(answers[0].error_text) > 0);
  EXPECT(answers[0].token_count == 0);
}

static void test_bad_requests(tidemill_engine* engine, const tidemill_request* base) {
  static const int64_t max_tokens[] = {0, -1, INT64_MIN};
  static const int64_t choices[] = {0, -1, 1000000};
  static const char* const empty_stop[] = {""};
  int32_t tokens[1] = {8192};
  struct {
    tidemill_request known;
    char newer[8];
  } grown;
  tidemill_request request;
  uint64_t id = 0;
  int32_t found = 77;
  size_t i;
  for (i = 0; i < 3; ++i) {
    request = *base;
    request.max_tokens = max_tokens[i];
    EXPECT_ERROR(tidemill_submit(engine, &request, &id), TIDEMILL_REQUEST, "max_tokens");
    request = *base;
    request.n = choices[i];
    EXPECT_ERROR(tidemill_submit(engine, &request, &id), TIDEMILL_REQUEST, "n is");
  }
  request = *base;
  request.max_tokens = INT64_MAX;
  EXPECT_ERROR(tidemill_submit(engine, &request, &id), TIDEMILL_CONTEXT_LENGTH, "2048");
  request = *base;
  request.stop = empty_stop;
  request.stop_count = 1;
  EXPECT_ERROR(tidemill_submit(engine, &request, &id), TIDEMILL_REQUEST, "stop");
  request.stop = NULL;
  EXPECT_ERROR(tidemill_submit(engine, &request, &id), TIDEMILL_INVALID_ARGUMENT, "stop is NULL");
  request.stop_count = SIZE_MAX;
  EXPECT_ERROR(tidemill_submit(engine, &request, &id), TIDEMILL_INVALID_ARGUMENT, "stop");
  request = *base;
  request.prompt = tokens;
  request.prompt_count = 1;
  EXPECT_ERROR(tidemill_submit(engine, &request, &id), TIDEMILL_TOKEN_OUT_OF_RANGE, "8192");
  request.prompt_count = SIZE_MAX;
  EXPECT_ERROR(tidemill_submit(engine, &request, &id), TIDEMILL_INVALID_ARGUMENT, "prompt");
  request = *base;
  request.temperature = -1;
  EXPECT_ERROR(tidemill_submit(engine, &request, &id), TIDEMILL_INVALID_ARGUMENT, "temperature");
  request = *base;
  request.constraint = 99;
  EXPECT_ERROR(tidemill_submit(engine, &request, &id), TIDEMILL_INVALID_ARGUMENT, "99");
  request = *base;
  request.struct_size = 8;
  EXPECT_ERROR(tidemill_submit(engine, &request, &id), TIDEMILL_INVALID_ARGUMENT, "struct_size");
  EXPECT_ERROR(tidemill_submit(engine, NULL, &id), TIDEMILL_INVALID_ARGUMENT, "NULL");
  EXPECT_ERROR(tidemill_submit(NULL, base, &id), TIDEMILL_INVALID_ARGUMENT, "NULL");

  memset(&grown, 0, sizeof(grown));
  grown.known = *base;
  grown.known.struct_size = sizeof(grown);
  grown.newer[3] = 1;
  EXPECT_ERROR(tidemill_submit(engine, &grown.known, &id), TIDEMILL_INVALID_ARGUMENT, "field");

  EXPECT_OK(tidemill_cancel(engine, 123456, &found));
  EXPECT(found == 0);
  EXPECT(id == 0);
}

static void test_own_loop(const int32_t* prompt, size_t prompt_count, const answer* expected) {
  tidemill_engine* engine = open_engine("false");
  tidemill_request request = greedy(engine, prompt, prompt_count);
  answer answers[kChoices];
  int32_t worked = 77;
  ask(engine, &request, 1, answers);
  EXPECT(answers[0].token_count == expected->token_count);
  EXPECT(memcmp(answers[0].tokens, expected->tokens, sizeof(expected->tokens)) == 0);
  EXPECT_OK(tidemill_flush(engine, 1000));
  EXPECT_OK(tidemill_step(engine, 0, &worked));
  EXPECT(worked == 0);
  tidemill_close(engine);
}

int main(void) {
  tidemill_engine* engine;
  tidemill_request request;
  answer expected[kChoices], answers[kChoices];
  int32_t prompt[kMaxTokens];
  size_t prompt_count = 0;
  const char* question = "The sea was calm, and";

  test_options();
  engine = open_engine("true");
  test_facts(engine);
  test_text(engine);
  EXPECT_OK(tidemill_encode(engine, question, strlen(question), prompt, kMaxTokens, &prompt_count));
  request = greedy(engine, prompt, prompt_count);
  EXPECT(request.n == 1 && request.timeout_ms == HUGE_VAL && request.logprobs == -1);
  ask(engine, &request, 0, expected);
  EXPECT(expected[0].finishes == 1 && expected[0].token_count > 0);

  test_answers(engine, &request, &expected[0]);
  test_bad_requests(engine, &request);
  test_own_loop(prompt, prompt_count, &expected[0]);

  /* Nothing of the above has left a trace. */
  ask(engine, &request, 0, answers);
  EXPECT(memcmp(answers[0].tokens, expected[0].tokens, sizeof(expected[0].tokens)) == 0);
  EXPECT_OK(tidemill_drain(engine, 1000));
  EXPECT_ERROR(tidemill_submit(engine, &request, NULL), TIDEMILL_NO_CAPACITY, "drain");
  tidemill_close(engine);
  if (failures == 0) printf("passed\n");
  return failures == 0 ? 0 : 1;
}
