// tidemill draft: what the drafter proposes after given tokens.
#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/engine_flags.h"
#include "cli/output.h"
#include "cli/token_inputs.h"
#include "text/json.h"

namespace tidemill::cli {
namespace {

constexpr size_t kTop = 5;

struct DraftOptions {
  EngineFlags engine;
  std::string tokens;
  int32_t anchor = -1;
};

// 0 without a drafter.
int64_t max_drafts(const Config& config) {
  return config.num_nextn_predict_layers > 0 ? config.dspark_block_size : 0;
}

// Ids of the largest logits, the lower id first among equals.
std::vector<int32_t> largest(std::span<const float> logits, size_t count) {
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  count = std::min(count, ids.size());
  std::partial_sort(
      ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(count), ids.end(),
      [&](int32_t a, int32_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; });
  ids.resize(count);
  return ids;
}

std::span<const float> row_of(const Rows& rows, int64_t row) {
  return {rows.f32(row), static_cast<size_t>(rows.width)};
}

// The greedy continuation of the drafter, each position given the draft before it.
Result<Json> draft_after(ModelRunner& engine, Sequence& sequence, std::span<const int32_t> ids,
                         int32_t anchor) {
  const auto take = [&](int64_t, const Rows& logits) -> Status {
    if (anchor < 0) anchor = largest(row_of(logits, logits.count - 1), 1)[0];
    return {};
  };
  CHECK_OK(engine.prefill(sequence, ids, Logits::kLast, take));

  Forward& forward = engine.forward();
  const Forward::DraftItem item{.sequence = &sequence, .anchor = anchor};
  CHECK_OK(forward.draft({&item, 1}));
  Json answer;
  answer["tokens"] = ids.size();
  answer["anchor"] = anchor;
  answer["drafts"] = Json::array();
  answer["top"] = Json::array();
  answer["confidence"] = Json::array();
  answer["probability"] = Json::array();
  int32_t previous = anchor;
  for (int64_t k = 0; k < max_drafts(engine.model().config()); ++k) {
    TRY(const Forward::DraftRow row, forward.draft_logits(k, {&previous, 1}));
    const auto logits = row_of(row.logits, 0);
    Json top = Json::array();
    for (const int32_t id : largest(logits, kTop))
      top.push_back({{"id", id}, {"logit", logits[id]}});
    previous = top[0]["id"];
    answer["drafts"].push_back(previous);
    answer["top"].push_back(std::move(top));
    answer["confidence"].push_back(row.confidence[0]);
    answer["probability"].push_back(1 / (1 + std::exp(-row.confidence[0])));
  }
  return answer;
}

Status draft(const DraftOptions& options) {
  TRY(const auto engine, options.engine.load());
  const Model& model = engine->model();
  if (max_drafts(model.config()) == 0) {
    return fail(ErrorCode::kInvalidArgument,
                "this model has no drafter (num_nextn_predict_layers is 0)");
  }
  if (options.anchor >= model.config().vocab_size) {
    return fail(ErrorCode::kTokenOutOfRange, "--anchor {} is not below vocab_size {}",
                options.anchor, model.config().vocab_size);
  }
  TRY(const auto inputs, read_token_inputs(options.tokens, model.tokenizer(), model.config()));
  for (const auto& ids : inputs) {
    TRY(Sequence sequence, engine->pool().acquire());
    const auto answer = draft_after(*engine, sequence, ids, options.anchor);
    engine->pool().release(sequence);
    if (!answer) return tl::unexpected(answer.error());
    CHECK_OK(stream_stdout(answer->dump() + "\n"));
  }
  return {};
}

}  // namespace

void add_draft(CLI::App& app, Action& action) {
  auto* command = app.add_subcommand(
      "draft", "Drafts after given tokens: ids, the top 5 logits of each, confidences, as JSON");
  const auto options = std::make_shared<DraftOptions>();
  options->engine.add_to(*command);
  command->add_option("--tokens", options->tokens, "As for score; - is stdin")->required();
  command
      ->add_option("--anchor", options->anchor,
                   "The token that follows, not yet processed (default: the most likely one)")
      ->check(CLI::Range(0, INT32_MAX));
  command->callback([options, &action] { action = [options] { return draft(*options); }; });
}

}  // namespace tidemill::cli
