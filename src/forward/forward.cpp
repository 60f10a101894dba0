#include "forward/forward.h"

#include <algorithm>
#include <atomic>
#include <unordered_set>

namespace tidemill {
namespace {

int64_t length_after(const StepItem& item) {
  return item.sequence->length() + static_cast<int64_t>(item.tokens.size());
}

}  // namespace

Result<Forward> Forward::create(const Model& model, Backend& backend, StatePool& pool,
                                ForwardOptions options) {
  if (options.max_tokens < 1) {
    return fail(ErrorCode::kInvalidArgument, "a step of {} tokens cannot run", options.max_tokens);
  }
  const Config& config = model.config();
  CHECK_OK(backend.check(config));
  // A draft block and its verification have a fixed size, whatever the largest step.
  options.max_tokens = std::max(options.max_tokens, config.dspark_block_size + 1);
  static std::atomic<int64_t> made = 0;
  Forward forward;
  forward.identity_ = ++made;
  forward.model_ = &model;
  forward.backend_ = &backend;
  forward.pool_ = &pool;
  forward.options_ = options;
  TRY(forward.work_, Workspace::create(backend, config, pool.layout(), options.max_tokens));
  return forward;
}

Status Forward::check(std::span<const StepItem> items) const {
  const Config& config = model_->config();
  std::unordered_set<const Sequence*> seen;
  int64_t tokens = 0;
  for (const StepItem& item : items) {
    tokens += static_cast<int64_t>(item.tokens.size());
    if (item.tokens.empty() || !seen.insert(item.sequence).second) {
      return fail(ErrorCode::kInvalidArgument,
                  "a step needs at least one token of each sequence, and each sequence once");
    }
    if (length_after(item) > config.max_position_embeddings) {
      return fail(ErrorCode::kContextLength,
                  "{} tokens exceed the context of {} tokens; shorten the prompt",
                  length_after(item), config.max_position_embeddings);
    }
    for (const int32_t id : item.tokens) {
      if (id < 0 || id >= config.vocab_size) {
        return fail(ErrorCode::kTokenOutOfRange, "token id {} is outside the vocabulary of {}", id,
                    config.vocab_size);
      }
    }
  }
  if (tokens == 0 || tokens > options_.max_tokens) {
    return fail(ErrorCode::kInvalidArgument, "a step of {} tokens: this engine runs 1 to {}",
                tokens, options_.max_tokens);
  }
  return {};
}

// All or nothing: counts before it takes.
Status Forward::reserve(std::span<const StepItem> items) {
  int64_t blocks = 0;
  for (const StepItem& item : items) {
    blocks += pool_->blocks_needed(*item.sequence, length_after(item));
  }
  if (blocks > pool_->free_blocks()) {
    return fail(ErrorCode::kNoCapacity, "the step needs {} more blocks of {} tokens; {} are free",
                blocks, kBlockTokens, pool_->free_blocks());
  }
  for (const StepItem& item : items) CHECK_OK(pool_->reserve(*item.sequence, length_after(item)));
  return {};
}

Status Forward::reserve_logits(int64_t rows) {
  if (rows <= logits_capacity_) return {};
  rows =
      std::clamp(2 * logits_capacity_, rows, options_.max_tokens);  // seldom: keys change with it
  const int64_t row_bytes = model_->config().vocab_size * static_cast<int64_t>(sizeof(float));
  logits_ = {};  // no room is planned for both
  logits_capacity_ = 0;
  TRY(logits_, backend_->allocate(rows * row_bytes));
  logits_capacity_ = rows;
  return {};
}

Status Forward::prepare(std::span<const StepItem> items, std::span<const DrawRow> draws) {
  CHECK_OK(check(items));
  for (const StepItem& item : items) {
    const int64_t needed = pool_->layout().blocks_for(length_after(item));
    if (static_cast<int64_t>(item.sequence->blocks.size()) < needed) {
      return fail(ErrorCode::kInternal, "{} tokens need {} blocks; the sequence has {}",
                  length_after(item), needed, item.sequence->blocks.size());
    }
  }
  build_step_input(model_->config(), model_->engram(), pool_->layout(), options_.replay_form, items,
                   input_);
  key_.clear();
  logits_rows_ = input_.logits_row.count();
  const int64_t filled = input_.uniform() ? repeated_rows(input_.all.count) : 0;
  if (filled > 0) input_.fill_up(filled);
  CHECK_OK(reserve_logits(input_.logits_row.count()));
  if (!draws.empty() && std::ssize(draws) != logits_rows_) {
    return fail(ErrorCode::kInternal, "{} rows of logits, and {} to draw from", logits_rows_,
                draws.size());
  }
  std::vector<StagedArray> arrays = input_.staged();
  draws_.assign(draws);
  arrays.push_back(draws_.staged());
  CHECK_OK(backend_->stage(arrays));
  arrays.pop_back();  // no op that is repeated reads it
  prefetch_tables();
  if (filled > 0) {
    const RowSet& rows = input_.all;
    key_ = key_of(Ops::kStep,
                  {filled, rows.most_visible[1], rows.most_visible[2],
                   static_cast<int64_t>(rows.image.empty()), address(logits_.get())},
                  arrays);
  }
  return {};
}

int64_t Forward::repeated_rows(int64_t rows, int64_t each) const {
  if (options_.pager != nullptr || observer_) return 0;  // they look at values in between
  const int64_t filled = backend_->repeated_rows(rows);
  return filled * each <= options_.max_tokens ? filled : 0;
}

// All that ops are given on the way: their other numbers are the model's and this object's. Sizes
// of arrays follow from the number of rows.
std::vector<int64_t> Forward::key_of(Ops kind, std::initializer_list<int64_t> numbers,
                                     std::span<const StagedArray> arrays) const {
  std::vector<int64_t> key{identity_, static_cast<int64_t>(kind)};
  key.insert(key.end(), numbers);
  for (const StagedArray& array : arrays) key.push_back(address(*array.device));
  return key;
}

void Forward::run_ops(std::span<const int64_t> key, const std::function<void()>& ops) {
  if (key.empty() || observer_) {
    ops();
  } else {
    backend_->repeat(key, ops);
  }
}

// The rows are known from the token ids, long before the layers that read them.
void Forward::prefetch_tables() {
  if (options_.pager == nullptr) return;
  for (size_t layer = 0; layer < weights().layers.size(); ++layer) {
    const int64_t table = model_->topology().layers[layer].engram;
    if (table < 0) continue;
    options_.pager->prefetch_rows(weights().layers[layer].engram.table,
                                  input_.engram_rows[static_cast<size_t>(table)].values());
  }
}

Result<StepOutput> Forward::execute() {
  const int64_t vocabulary = model_->config().vocab_size;
  const int64_t count = input_.logits_row.count();
  const Rows logits{logits_.get(), count, vocabulary, vocabulary};
  run_ops(key_, [&] {
    run_backbone();
    if (count == 0) return;
    narrow_streams(input_.logits_row);
    const Rows z = work_.z.first(count);
    collapse(pre_, weights().norm, z);
    head(z, logits);
  });
  TRY(const StepOutput output, fetch(logits.first(logits_rows_)));
  CHECK_OK(backend_->finish());
  return output;
}

Result<StepOutput> Forward::fetch(const Rows& logits) {
  last_logits_ = logits;
  last_fetched_ = draws_.empty();
  if (last_fetched_) {
    TRY(last_logits_, on_host(logits));
    return StepOutput{last_logits_, {}};
  }
  drawn_.resize(draws_.size());
  backend_->draw({.logits = logits, .rows = draws_.device(), .drawn = work_.drawn});
  backend_->copy(drawn_.data(), work_.drawn, draws_.count() * static_cast<int64_t>(sizeof(Drawn)));
  return StepOutput{{}, drawn_};
}

Result<Rows> Forward::logits(int64_t first, int64_t count) {
  const Rows& all = last_logits_;
  const Rows some{all.f32(first), count, all.width, all.stride};
  if (last_fetched_) return some;
  TRY(const Rows rows, on_host(some));
  CHECK_OK(backend_->finish());
  return rows;
}

Result<Rows> Forward::on_host(const Rows& rows) {
  if (backend_->host_memory()) return rows;
  const int64_t bytes = rows.width * static_cast<int64_t>(sizeof(float));
  if (rows.count * bytes > host_rows_capacity_) {
    TRY(host_rows_, backend_->allocate_host(rows.count * bytes));
    host_rows_capacity_ = rows.count * bytes;
  }
  const Rows host{host_rows_.get(), rows.count, rows.width, rows.width};
  const bool dense = rows.stride == rows.width;
  for (int64_t t = 0; t < rows.count; t += dense ? rows.count : 1) {
    backend_->copy(host.f32(t), rows.f32(t), dense ? rows.count * bytes : bytes);
  }
  return host;
}

void Forward::commit(std::span<const StepItem> items) {
  for (const StepItem& item : items) {
    item.sequence->tokens.insert(item.sequence->tokens.end(), item.tokens.begin(),
                                 item.tokens.end());
  }
}

Result<StepOutput> Forward::run(std::span<const StepItem> items) {
  CHECK_OK(check(items));
  CHECK_OK(reserve(items));
  CHECK_OK(prepare(items));
  TRY(const StepOutput output, execute());
  commit(items);
  return output;
}

// Keeps the given rows of the residual streams, in this order.
void Forward::narrow_streams(const StepArray<int64_t>& rows) {
  const int64_t count = rows.count();
  const auto narrow = [&](Rows& current, Rows& spare) {
    spare = spare.first(count);
    backend_->select_rows({.in = current, .row = rows.device(), .out = spare});
    std::swap(current, spare);
  };
  narrow(h_, h_spare_);
  narrow(pre_, pre_spare_);
}

}  // namespace tidemill
