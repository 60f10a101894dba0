// From the body of a request to what the engine gets and what makes the answer of it.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "serve/service/answer_assembly.h"
#include "serve/service/answer_sink.h"
#include "text/tokenizer.h"

namespace tidemill {

// The model as clients see it. Immutable; any thread.
struct ServedModel {
  const Tokenizer* tokenizer = nullptr;
  int64_t context = 0;
  size_t longest_token = 1;  // bytes
  RequestPolicy policy;
  // What requests may call it; the first is its name in lists and in answers to requests that name
  // none. "*" among them: whatever they like.
  std::vector<std::string> names;

  bool answers_to(std::string_view name) const;
};

size_t longest_token(const Tokenizer& tokenizer);  // ServedModel::longest_token

// 404, with the names that there are.
HttpError no_such_model(std::string_view asked, const ServedModel& model);

struct PreparedAnswer {
  std::vector<Request> requests;  // without id, tenant and deadline
  std::unique_ptr<AnswerAssembly> answer;
  std::string id;  // as the client sees it
  std::string model;
  bool stream = false;
  int64_t max_tokens = 0;     // of all choices
  int64_t prompt_tokens = 0;  // of all prompts
  uint64_t seed = 0;
  std::vector<std::string> ignored;  // fields of the body that no protocol knows
};

// Reads, renders and tokenises: milliseconds for a long prompt. `nonce`: AnswerHead::nonce.
// Unless the body has a seed, `seed` is used. Errors: of the body, kContextLength; 404 for a model
// that is not here.
tl::expected<PreparedAnswer, HttpError> prepare_answer(Protocol protocol, std::string_view body,
                                                       const ServedModel& model, std::string nonce,
                                                       uint64_t seed);

// The bodies of the tokens' own endpoints; answers are JSON objects. Errors as above.
// {"prompt": TEXT, "add_special_tokens": true} or {"messages": ..} -> {"tokens", "count",
// "max_model_len"}
tl::expected<Json, HttpError> tokenize(std::string_view body, const ServedModel& model);
// {"tokens": [..]} -> {"prompt"}
tl::expected<Json, HttpError> detokenize(std::string_view body, const ServedModel& model);
// A body of /v1/messages, max_tokens left out or not -> {"input_tokens"}
tl::expected<Json, HttpError> count_tokens(std::string_view body, const ServedModel& model);

}  // namespace tidemill
