// A loaded model with a backend, its state and a forward pass: what every front end starts from.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "base/result.h"
#include "base/thread_team.h"
#include "forward/forward.h"
#include "model/model.h"
#include "model/weight_pager.h"
#include "ops/backend.h"
#include "ops/placed_weights.h"
#include "state/state_pool.h"

namespace tidemill {

struct RunnerOptions {
  static constexpr int64_t kAutoState = -1;
  std::string backend = "cpu";  // of backend_names()
  Rounding rounding;            // other than the released one: reference only
  int threads = 0;              // 0: what affinity and cgroup quota allow
  int64_t alias_bytes = 0;      // LoadOptions::alias_bytes
  int64_t memory_bytes = 0;     // LoadOptions::memory_bytes
  HugePages huge_pages = HugePages::kAuto;
  int64_t context = 0;  // tokens that fit per sequence; 0: the model's own limit
  // Not 0: state begins as random rows, different ones for so many tokens (random_state.h).
  int64_t fill_context = 0;
  int64_t sequences = 1;
  // Bytes for blocks, slots and window snapshots, split by MemoryPlan; kAutoState: what a whole
  // context for each sequence takes, half of the machine's memory at most; 0: by pool_blocks.
  int64_t state_bytes = 0;
  int64_t pool_blocks = 0;        // of 128 tokens, for all sequences; 0: a whole context for each
  int64_t max_step_tokens = 512;  // the largest prefill chunk
  // On a device: steps are halved, down to so many tokens, until what they need is a third of the
  // memory beside the weights at most. 0: never.
  int64_t least_step_tokens = 0;
  // Tokens of a prompt that the decoder layers see in prefill (bounded replay); 0: all of them.
  int64_t replay_keep = 0;
  ReplayForm replay_form = ReplayForm::kCompact;
  // In place of the named backend: for tests.
  std::function<std::unique_ptr<Backend>(ThreadTeam&)> make_backend;
};

// Not thread safe.
class ModelRunner {
 public:
  // Errors: those of Model::load; those of make_named_backend; kInvalidArgument (absurd numbers);
  // kConflictingOptions (replay on a layout without a decoder half).
  static Result<std::unique_ptr<ModelRunner>> load(const std::filesystem::path& directory,
                                                   const RunnerOptions& options,
                                                   std::function<void(double)> progress = {});

  const Model& model() const { return *model_; }
  Backend& backend() const { return *backend_; }
  StatePool& pool() { return *pool_; }
  Forward& forward() { return *forward_; }
  const RunnerOptions& options() const { return options_; }
  int threads() const { return team_->size(); }
  const WeightPager* pager() const { return pager_.get(); }
  // Host bytes that window snapshots may take.
  int64_t snapshot_bytes() const { return snapshot_bytes_; }
  // Where the memory goes, section by section.
  const std::string& memory_table() const { return memory_table_; }

  // Runs tokens [sequence.length(), end) of `tokens` in chunks of `chunk` (0: the largest step).
  // With replay on, a sequence that is still empty gets its decoder floor from the prompt's size.
  // `each` sees the logits of every chunk, rows in token order, and may be empty; kAll asks for
  // every row, kLast for the last token's.
  using LogitsSink = std::function<Status(int64_t first_position, const Rows& logits)>;
  Status prefill(Sequence& sequence, std::span<const int32_t> tokens, Logits logits,
                 const LogitsSink& each, int64_t chunk = 0, bool replay = true);

 private:
  ModelRunner() = default;
  Status make_pool();
  int64_t device_workspace(const StateLayout& layout) const;
  RunnerOptions options_;
  int64_t snapshot_bytes_ = 0;
  std::string memory_table_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<ThreadTeam> team_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<PlacedWeights> weights_;  // null: where the model has them
  std::unique_ptr<WeightPager> pager_;      // null: all weights are in memory
  std::unique_ptr<StatePool> pool_;
  std::unique_ptr<Forward> forward_;
};

}  // namespace tidemill
