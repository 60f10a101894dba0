// The DeepSeek-V4.1 forward pass over one step: any mixture of prefill chunks, decode tokens and
// draft verifications of many sequences (spec sections 0, 5 to 10).
//
// A token's values depend on its own sequence only: not on the batch, on how a prompt is cut into
// chunks, or on the number of threads.
#pragma once

#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "forward/step_input.h"
#include "forward/workspace.h"
#include "model/model.h"
#include "model/weight_pager.h"
#include "ops/backend.h"
#include "state/state_pool.h"

namespace tidemill {

struct ForwardOptions {
  int64_t max_tokens = 512;  // rows of the largest step
  ReplayForm replay_form = ReplayForm::kCompact;
  WeightPager* pager = nullptr;  // null: all weights are in memory
  // Where ops read weights; null: the model's own are where they can.
  const ModelWeights* weights = nullptr;
};

// What the host sees of the rows whose logits were asked for, items in order: all of their logits
// (66 MB for 128 rows), or, if it has said how to draw from each, what was drawn (5 KB). In memory
// of the host, valid until the next call.
struct StepOutput {
  Rows logits;                   // [rows, vocab] float32; without data if `drawn` has any
  std::span<const Drawn> drawn;  // [rows]
};

// Something that a test wants to see or to replace: float rows, or a list of ids per row.
struct Observation {
  std::string_view name;  // "hidden", "pre", "attention", "ffn", "selected", "pool", "expert_ids",
                          // "expert_weights", "engram_gate"
  int64_t layer = 0;
  const RowSet* rows = nullptr;
  Rows values;
  const int32_t* ids = nullptr;
  int64_t ids_width = 0;
};
using Observer = std::function<void(const Observation&)>;

// Not thread safe. Model, backend and pool must outlive it.
class Forward {
 public:
  static Result<Forward> create(const Model& model, Backend& backend, StatePool& pool,
                                ForwardOptions options = {});

  // Runs one step and appends the items' tokens to their sequences; reserves blocks as needed.
  // Errors leave every sequence as it was: kTokenOutOfRange, kContextLength, kNoCapacity,
  // kInvalidArgument (no tokens, more than max_tokens, the same sequence twice), kDevice.
  Result<StepOutput> run(std::span<const StepItem> items);

  // The same in its parts, for an engine that manages the pool on another thread: the sequences are
  // this thread's own copies, whose blocks have been reserved (otherwise kInternal) and are not
  // handed out again before the step has finished. Nothing here asks the pool for any. execute()
  // fails as Backend::finish does.
  // `draws`: how to draw from each row of logits; or empty.
  Status prepare(std::span<const StepItem> items, std::span<const DrawRow> draws = {});
  Result<StepOutput> execute();
  static void commit(std::span<const StepItem> items);
  // Some rows of the last step's logits, or of the last draft position's, for the host: fetched now
  // if they have not been. May be changed. Valid until the next call.
  Result<Rows> logits(int64_t first, int64_t count);

  // ---- drafter (spec: DSpark). Error kInvalidArgument when the checkpoint has none.
  // The block pass for sequences whose last sampled token (`anchor`) is not in any cache yet.
  // Afterwards draft_logits(k) gives the rows of draft position k = 0 .. block - 1 in order:
  // `previous` holds, per sequence, the token before that position (the anchor for k = 0).
  struct DraftItem {
    const Sequence* sequence = nullptr;
    int32_t anchor = 0;
  };
  struct DraftRow {
    Rows logits;  // [sequences, vocab], Markov-corrected; this and `drawn` as of StepOutput
    std::span<const Drawn> drawn;
    std::span<const float> confidence;  // [sequences], before the sigmoid
  };
  Status draft(std::span<const DraftItem> items);
  Result<DraftRow> draft_logits(int64_t k, std::span<const int32_t> previous,
                                std::span<const DrawRow> draws = {});

  void observe(Observer observer) { observer_ = std::move(observer); }
  const Model& model() const { return *model_; }
  const ModelWeights& weights() const {
    return options_.weights != nullptr ? *options_.weights : model_->weights();
  }
  StatePool& pool() const { return *pool_; }
  Backend& backend() const { return *backend_; }
  int64_t max_tokens() const { return options_.max_tokens; }
  int64_t workspace_bytes() const { return work_.bytes; }

 private:
  // Where a sublayer works: its rows, their rotations, its ring, its role.
  struct Scope {
    const RowSet* rows = nullptr;
    Rows rope;
    int64_t ring_add = 0;             // of the layer's ring inside a slot
    const LayerRole* role = nullptr;  // null: a drafter stage, which only has a window
    int64_t layer = 0;
  };

  // What a layer does beside its longest chain of ops (Backend::beside).
  enum Lane : int {
    kCoefficients,  // of the hyper-connection, until the sublayer's result is added
    kWindow,        // this step's window rows
    kSelection,     // a cache's entries and keys, the indexer
  };
  static_assert(kSelection < Backend::kLanes);

  Forward() = default;
  Status check(std::span<const StepItem> items) const;
  Status reserve(std::span<const StepItem> items);
  Status reserve_logits(int64_t rows);
  void prefetch_tables();
  // Backend::repeat's key for ops of this kind, which read these arrays.
  enum class Ops : int64_t { kStep, kDraft };
  std::vector<int64_t> key_of(Ops kind, std::initializer_list<int64_t> numbers,
                              std::span<const StagedArray> arrays) const;
  static int64_t address(const void* pointer) { return reinterpret_cast<intptr_t>(pointer); }
  // How many rows to fill `rows` up to, each of `each` tokens; 0: not to be repeated.
  int64_t repeated_rows(int64_t rows, int64_t each = 1) const;
  // Calls ops, or has them repeated if there is a key.
  void run_ops(std::span<const int64_t> key, const std::function<void()>& ops);
  void narrow_streams(const StepArray<int64_t>& rows);
  // The same rows for the host: themselves, or a copy, valid until the next call.
  Result<Rows> on_host(const Rows& rows);
  Result<StepOutput> fetch(const Rows& logits);

  // drafter.cpp
  void run_draft(int64_t tokens);

  // backbone.cpp
  void run_backbone();
  void run_layer(int64_t layer);
  void cut_to_tail();
  void apply_engram(int64_t layer);
  Scope scope_of(int64_t layer) const;
  void head(const Rows& z, const Rows& logits);
  void see(std::string_view name, const Scope& scope, const Rows& values);
  void see(std::string_view name, const Scope& scope, int32_t* ids, int64_t width);

  // sublayers.cpp: shared by the backbone and the drafter
  void attention_half(const Scope& scope, const LayerWeights& w);
  void ffn_half(const Scope& scope, const LayerWeights& w, int64_t topk);
  void attention(const Scope& scope, const LayerWeights& w);
  void window_rows(const Scope& scope, const AttentionWeights& w);
  void weigh_heads(const Scope& scope, const IndexerWeights& w);
  void select_entries(const Scope& scope, const IndexerWeights& w);
  void mix(const HcWeights& w, const Rows& pre_out);  // until expand()
  void collapse(const Rows& pre, const Bf16Vector& norm, const Rows& x);
  void expand();

  // caches.cpp: what a step writes
  void compress(int64_t layer);
  void store_window(const Scope& scope);
  void fill_draft_rings();
  PagedRows paged(int64_t source, bool keys) const;

  int64_t identity_ = 0;  // of all that have been made
  const Model* model_ = nullptr;
  Backend* backend_ = nullptr;
  StatePool* pool_ = nullptr;
  ForwardOptions options_;
  Workspace work_;
  Backend::Buffer logits_;
  int64_t logits_capacity_ = 0;

  // The current step.
  StepInput input_;
  int64_t logits_rows_ = 0;   // that are wanted: the first of those that are computed
  std::vector<int64_t> key_;  // empty: the step is not repeated
  const RowSet* rows_ = nullptr;
  Rows h_, h_spare_;      // residual streams of rows_
  Rows pre_, pre_spare_;  // `pre` handed to the next attention half
  Rows x_;                // input of the next sublayer
  Rows taps_;

  // The current draft block.
  RowSet draft_rows_;
  StepArray<int64_t> draft_ids_;
  StepArray<int64_t> draft_ring_offset_;
  StepArray<int64_t> draft_head_row_;  // rows in the order of draft_logits_
  StepArray<int64_t> draft_previous_;  // token before the position whose logits are due
  std::vector<float> draft_confidence_;
  Backend::Buffer draft_logits_;  // first those of position 0 of all sequences
  int64_t draft_logits_capacity_ = 0;
  int64_t draft_sequences_ = 0;
  int64_t draft_next_ = 0;  // position whose logits are due

  Observer observer_;
  Backend::Buffer host_rows_;
  int64_t host_rows_capacity_ = 0;  // bytes
  Rows last_logits_;                // of the last step or draft position
  bool last_fetched_ = true;        // they are where the host can read them
  StepArray<DrawRow> draws_;
  std::vector<Drawn> drawn_;
};

}  // namespace tidemill
